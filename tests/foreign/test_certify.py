"""Models of other libraries are certified; needs the extra `foreign`."""

import logging

import numpy as np
import pytest
import torch

import vaescope as vs

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("loss", ["bce", "mse"])
def test_pythae(loss, tmp_path):
    models = pytest.importorskip("pythae.models")
    torch.manual_seed(0)
    model = models.VAE(models.VAEConfig(input_dim=(1, 6, 6), latent_dim=3, reconstruction_loss=loss))
    x = torch.rand(120, 1, 6, 6)
    found = vs.certify(vs.adapters.from_pythae(model), x, simulations=200, budget=0.1, progress=None)
    assert found.skipped == {}
    assert found.ranks.shape == (200, 3)
    low, high = found.log_marginal_bounds.T
    assert (low <= high).all()
    assert "<svg" in found.to_html(tmp_path / "page.html").read_text()


def test_scvi():
    """Counts with the library sizes of the data, under the model's own likelihood."""
    scvi = pytest.importorskip("scvi")
    anndata = pytest.importorskip("anndata")
    logging.disable(logging.WARNING)
    counts = np.random.default_rng(0).poisson(3.0, (150, 20)).astype("float32")
    data = anndata.AnnData(counts)
    scvi.settings.seed = 0
    scvi.model.SCVI.setup_anndata(data)
    model = scvi.model.SCVI(data, n_latent=3, n_hidden=16)
    model.train(max_epochs=1, accelerator="cpu", enable_progress_bar=False, logger=False)
    logging.disable(logging.NOTSET)
    adapted = vs.adapters.from_scvi(model)
    with torch.no_grad():
        x, again = (adapted.sample_observations(torch.zeros(50, 3), torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(x, again)
    assert torch.equal(x, x.round())
    assert 0 < float(x.sum(1).mean()) < 1.2 * float(counts.sum(1).mean())  # some counts are dropped
    found = vs.certify(adapted, torch.from_numpy(counts), simulations=200, budget=0.1, progress=None)
    assert found.ranks.shape == (200, 3)
    assert found.log_marginal_bounds is not None
