"""`loss=` of `vs.diagnose`, `vs.certify` and `vs.compare`: likelihood, precision and β come from the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributions as td
import torch.nn.functional as F
from torch import Tensor, nn

import vaescope as vs
from vaescope.adapters import from_modules
from vaescope.analysis.loss.reading import models_with_loss
from vaescope.cli import dispatch
from vaescope.core.errors import InputError


def kl_of(mu: Tensor, log_var: Tensor) -> Tensor:
    return 0.5 * (mu**2 + log_var.exp() - 1 - log_var).sum(1)


def weighted_mean(recon: Tensor, x: Tensor, mu: Tensor, log_var: Tensor) -> Tensor:
    return F.mse_loss(recon, x) + 0.01 * kl_of(mu, log_var).mean()  # γ² = 2 / 5 / 0.01 = 40


def linear_vae() -> tuple[nn.Linear, nn.Linear, Tensor]:
    torch.manual_seed(0)
    encoder, decoder = nn.Linear(5, 4), nn.Linear(2, 5)
    return encoder, decoder, torch.randn(300, 2) @ torch.randn(2, 5) + 0.1 * torch.randn(300, 5)


@pytest.mark.parametrize("given", ["networks", "model"])
def test_a_model_with_its_loss_is_the_model_with_the_precision_of_the_loss(given):
    encoder, decoder, x = linear_vae()
    model = (encoder, decoder) if given == "networks" else from_modules(encoder, decoder, latent_dim=2, precision=1.0)
    stated = from_modules(encoder, decoder, latent_dim=2, precision=40.0)
    found = vs.diagnose(model, x, loss=weighted_mean, progress=None)
    expected = vs.diagnose(stated, x, progress=None)
    assert [f.code for f in found.findings] == [f.code for f in expected.findings]
    again = vs.diagnose(model, x, loss=vs.audit(weighted_mean, x=x, latent_dim=2), progress=None)
    elbos = [float(d.evidence.elbo.elbo.mean()) for d in (expected, found, again)]
    assert elbos == pytest.approx([elbos[0]] * 3, rel=1e-6)


def test_a_gaussian_with_beta_is_the_elbo_of_another_precision():
    """No encoder is called too narrow because its likelihood is written with another variance."""
    encoder, decoder, x = linear_vae()
    (model,) = models_with_loss((encoder, decoder), weighted_mean, x)
    assert (model.likelihood, model.beta) == ("gaussian", 1.0)
    assert model.precision == pytest.approx(40.0)
    torch.testing.assert_close(model.encode(x)[1], encoder(x)[:, 2:].exp())


def test_bernoulli_logits_become_probabilities_and_beta_is_kept():
    def loss(logits, x, mu, log_var):
        return F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / len(x) + 4 * kl_of(mu, log_var).mean()

    encoder, decoder, x = linear_vae()
    (model,) = models_with_loss((encoder, decoder), loss, (x > 0).float())
    assert (model.likelihood, model.precision) == ("bernoulli", None)
    assert model.beta == pytest.approx(4.0)
    z = torch.randn(6, 2)
    torch.testing.assert_close(model.decode(z), decoder(z).sigmoid())


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda x, y, mu, s: ((x - y).abs() / 0.3).sum(1).mean() + kl_of(mu, s).mean(), lambda y: td.Laplace(y, 0.3)),
        (lambda x, y, mu, s: (y.exp() - x * y).sum(1).mean() + kl_of(mu, s).mean(), lambda y: td.Poisson(y.exp())),
    ],
)
def test_other_likelihoods_are_those_of_torch_and_can_be_simulated(loss, expected):
    encoder, decoder, _ = linear_vae()
    x, z = torch.poisson(torch.ones(100, 5)), torch.randn(4000, 2)
    (model,) = models_with_loss((encoder, decoder), loss, x)
    p = expected(decoder(z[:100]))
    torch.testing.assert_close(model.log_likelihood(x, z[:100]), p.log_prob(x).sum(1))
    drawn = model.sample_observations(z, torch.Generator().manual_seed(0))
    torch.testing.assert_close((drawn - expected(decoder(z)).mean).mean(0), torch.zeros(5), atol=0.15, rtol=0)


def test_certify_and_compare_take_losses():
    encoder, decoder, x = linear_vae()
    stated = from_modules(encoder, decoder, latent_dim=2, precision=40.0)
    left = vs.certify((encoder, decoder), x, loss=weighted_mean, simulations=200, budget=2.0, progress=None)
    right = vs.certify(stated, x, simulations=200, budget=2.0, progress=None)
    np.testing.assert_allclose(left.width_ratio, right.width_ratio, rtol=1e-5)
    models = {"pair": (encoder, decoder), "stated": from_modules(encoder, decoder, latent_dim=2)}
    found = vs.compare(models, x, loss=weighted_mean, budget=2.0, progress=None)
    assert abs(float(found.pairwise["difference"][0, 1])) < 1e-4
    with pytest.raises(InputError, match="no loss of stated"):
        vs.compare(models, x, loss={"pair": weighted_mean}, progress=None)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda recon, x, mu, s: F.mse_loss(recon, x), "not the loss of a VAE"),
        (lambda recon, x, mu, s: (recon - x).pow(4).sum() + kl_of(mu, s).sum(), "known likelihood"),
        (lambda recon, x, mu, s: (recon - x).square().sum() + kl_of(mu, s).mean(), "depends on the batch size"),
        (lambda recon, x, mu, s: (recon - x).square().mean() - kl_of(mu, s).mean(), "not the loss of a VAE"),
    ],
)
def test_losses_that_say_nothing_of_the_model_are_refused(loss, message):
    encoder, decoder, x = linear_vae()
    with pytest.raises(InputError, match=message):
        vs.diagnose((encoder, decoder), x, loss=loss, progress=None)


def test_networks_that_fail_are_refused_in_a_line():
    encoder, decoder, x = linear_vae()
    with pytest.raises(InputError, match="fail on x"):
        vs.diagnose((encoder, nn.Linear(3, 5)), x, loss=weighted_mean, progress=None)
    with pytest.raises(InputError, match="must return mu"):
        vs.diagnose((lambda x: (x,), decoder), x, loss=weighted_mean, progress=None)


def test_losses_are_read_without_gradients_around():
    with torch.no_grad():
        assert vs.audit(weighted_mean, x=torch.rand(8, 5)).beta_over_precision == pytest.approx(0.025)
    with torch.inference_mode():
        assert vs.audit(weighted_mean, x=torch.rand(8, 5)).beta_over_precision == pytest.approx(0.025)


def test_the_command_line_takes_a_loss(tmp_path, capsys):
    file = tmp_path / "own_model_with_loss.py"
    file.write_text(
        "import torch\nimport torch.nn.functional as F\nimport vaescope as vs\n"
        "torch.manual_seed(0)\n"
        "vae = vs.adapters.from_modules(torch.nn.Linear(5, 4), torch.nn.Linear(2, 5), latent_dim=2)\n"
        "def loss(recon, x, mu, log_var):\n"
        "    return F.mse_loss(recon, x) - 0.005 * (1 + log_var - mu**2 - log_var.exp()).sum(1).mean()\n"
    )
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(200, 5)).astype("float32"))
    page = tmp_path / "page.html"
    arguments = [f"{file}:vae", "--data", f"{tmp_path / 'x.npy'}", "--loss", f"{file}:loss", "--html", f"{page}"]
    assert dispatch(["diagnose", *arguments]) == 0
    assert "ELBO: " in capsys.readouterr().out  # without its likelihood a model has none
