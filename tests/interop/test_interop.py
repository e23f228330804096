"""Results in other tools are the same numbers, and survive a round trip through a file."""

import json

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope import interop
from vaescope.core.errors import InputError

WEIGHTS = torch.linspace(-1, 1, 10).reshape(2, 5)


@pytest.fixture(scope="module")
def x():
    return torch.randn(80, 5, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    """A linear decoder: its Jacobian is known."""
    return vs.adapters.from_callables(
        encode=lambda x: (x[:, :2], torch.full_like(x[:, :2], 0.25)),
        decode=lambda z: z @ WEIGHTS.to(z),
        latent_dim=2,
        precision=1.0,
    )


@pytest.fixture(scope="module")
def found(model, x):
    return vs.diagnose(model, x, progress=None)


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_frames_have_the_rows(found, kind):
    frame = found.to_frame(kind)
    rows = frame.to_dict("records") if kind == "pandas" else frame.to_pylist()
    assert [row["latent"] for row in rows] == [row["latent"] for row in found.summary()]
    assert list(rows[0]) == list(found.summary()[0])


def test_rows_of_different_columns_and_unknown_frames():
    table = interop.to_frame([{"a": 1}, {"b": 2.0}], "arrow")
    assert table.to_pydict() == {"a": [1, None], "b": [None, 2.0]}
    with pytest.raises(InputError, match="kind must be one of pandas, polars, arrow, got 'excel'"):
        interop.to_frame([], "excel")


def test_draws_have_the_moments_of_the_posteriors(model, x, found):
    tree = interop.to_datatree(model, x, draws=4000, diagnosis=found)
    z = tree["posterior"]["z"]
    assert z.dims == ("chain", "draw", "sample", "latent")
    np.testing.assert_allclose(z.mean(("chain", "draw")), x[:, :2], atol=5 * 0.5 / 4000**0.5)
    np.testing.assert_allclose(z.var(("chain", "draw")), 0.25, atol=5 * 0.25 * (2 / 4000) ** 0.5)
    np.testing.assert_array_equal(tree["observed_data"]["x"], x)
    assert len(tree.attrs["findings"]) == len(found.findings)


def test_a_datatree_survives_a_file(model, x, tmp_path):
    xarray = pytest.importorskip("xarray")
    tree = interop.to_datatree(model, x, draws=3)
    tree.to_netcdf(tmp_path / "tree.nc", engine="h5netcdf") if _has("h5netcdf") else pytest.skip("no h5netcdf")
    again = xarray.open_datatree(tmp_path / "tree.nc", engine="h5netcdf")
    np.testing.assert_array_equal(again["posterior"]["z"], tree["posterior"]["z"])


def _has(name):
    import importlib.util

    return importlib.util.find_spec(name) is not None


def test_anndata_holds_posteriors_and_findings(model, x, found, tmp_path):
    anndata = pytest.importorskip("anndata")
    data = anndata.AnnData(x.numpy())
    interop.add_to_anndata(data, model, x, diagnosis=found)
    data.write_h5ad(tmp_path / "cells.h5ad")
    again = anndata.read_h5ad(tmp_path / "cells.h5ad")
    np.testing.assert_allclose(again.obsm["X_vae"], x[:, :2])
    np.testing.assert_allclose(again.obsm["X_vae_variance"], 0.25)
    np.testing.assert_allclose(again.varm["vae_jacobian"], WEIGHTS.T, atol=1e-6)
    stored = json.loads(again.uns["vaescope"]["diagnosis"])
    assert [f["code"] for f in stored["findings"]] == [f.code for f in found.findings]


def test_anndata_of_other_rows_is_refused(model, x):
    anndata = pytest.importorskip("anndata")
    with pytest.raises(InputError, match="data has 79 rows, the posteriors have 80"):
        interop.add_to_anndata(anndata.AnnData(x[1:].numpy()), model, x)
    with pytest.raises(InputError, match="data must be an AnnData object, got ndarray"):
        interop.add_to_anndata(x.numpy(), model, x)


def test_a_model_card_has_every_finding_and_no_html():
    arrays = vs.adapters.from_arrays(np.zeros((300, 2)), np.ones((300, 2)))
    found = vs.diagnose(arrays, name="<b>|", progress=None)
    card = interop.model_card(found)
    assert all(f.advice.replace("|", r"\|") in card for f in found.findings)
    assert "<b>" not in card


def test_a_hub_folder_opens_as_the_run_it_was(tmp_path):
    x = torch.randn(100, 3)
    run = vs.fit(x, latent_dim=2, epochs=1, seeds=2, out=str(tmp_path / "run"), progress=vs.training.NoProgress())
    found = vs.diagnose(run, x, progress=None)
    folder = interop.to_hub_folder(tmp_path / "run", tmp_path / "hub", diagnosis=found)
    assert torch.equal(vs.adapters.from_run(folder).encode(x)[0], run.best.encode(x)[0])
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: vaescope\n")
    assert "## Diagnosis" in card
    assert (folder / "diagnosis.html").exists()
    with pytest.raises(InputError, match="is not empty"):
        interop.to_hub_folder(tmp_path / "run", folder)


def test_predictive_groups(model, x):
    tree = interop.to_datatree(model, x, draws=200, predictive=True)
    log_p, z = tree["log_likelihood"]["x"].values[0], torch.from_numpy(tree["posterior"]["z"].values[0])
    expected = torch.distributions.Normal(z.float() @ WEIGHTS, 1.0).log_prob(x).sum(-1)
    assert log_p.shape == (200, 80)
    assert np.allclose(log_p, expected.numpy(), atol=1e-3)
    made = tree["posterior_predictive"]["x"].values[0]
    assert made.shape == (200, 80, 5)
    means = z.numpy() @ WEIGHTS.numpy()
    assert abs((made - means).var() - 1.0) < 0.02
    prior = tree["prior_predictive"]["x"].values[0].reshape(-1, 5)
    exact = WEIGHTS.T.numpy() @ WEIGHTS.numpy() + np.eye(5)
    assert np.abs(np.cov(prior.T) - exact).max() < 0.06


def test_predictive_groups_need_a_likelihood(x):
    unknown = vs.adapters.from_callables(encode=lambda x: (x[:, :2], 1 + x[:, :2] ** 2), latent_dim=2)
    with pytest.raises(InputError, match="predictive=True needs"):
        interop.to_datatree(unknown, x, predictive=True)


@pytest.mark.filterwarnings("ignore:Estimated shape parameter")  # of the model that is wrong
def test_arviz_estimates_and_compares_log_p_of_x():
    """With exact posteriors of weak data, the leave-one-out estimate of a sample with its own code is log p(x)."""
    az = pytest.importorskip("arviz")
    generator = torch.Generator().manual_seed(0)
    right = 0.5 * torch.randn(300, 1, generator=generator) + torch.randn(300, 3, generator=generator)

    def linear(weight):
        S = 1 / (1 + 3 * weight**2)
        return vs.adapters.from_callables(
            encode=lambda x: (S * weight * x.sum(1, keepdim=True), S + 0 * x[:, :1]),
            decode=lambda z: (weight * z).expand(-1, 3),
            latent_dim=1,
            precision=1.0,
        )

    trees = {str(w): interop.to_datatree(linear(w), right, draws=1000, predictive=True) for w in (0.5, 1.5)}
    exact = torch.distributions.MultivariateNormal(torch.zeros(3), torch.eye(3) + 0.25).log_prob(right)
    if az.__version__ < "1":
        trees = {name: az.InferenceData.from_datatree(tree) for name, tree in trees.items()}
    loo = az.loo(trees["0.5"], pointwise=True)
    estimate = loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo
    assert abs(float(estimate) / 300 - float(exact.mean())) < 0.05  # optimistic, as such estimates are
    assert az.compare(trees).index[0] == "0.5"
