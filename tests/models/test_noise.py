"""Learned covariances of the observations: against torch, factor analysis and the closed form of a full covariance."""

import math

import numpy as np
import pytest
import torch
from sklearn.decomposition import FactorAnalysis

from vaescope.models import VAE
from vaescope.models.noise import covariance_log_likelihood, noise_precision
from vaescope.theory.anisotropic import Noise, log_marginal_with_noise, project_with_noise
from vaescope.training import MemberSpec, TrainSettings, train

SETTINGS = TrainSettings(epochs=80, batch_size=400, learning_rate=3e-2, patience=80, decay="cosine", compile="never")
LOADINGS = torch.tensor([[1.0, 0.8, -0.6, 0.5, 0.0]])
DEVIATIONS = torch.tensor([0.3, 0.6, 0.2, 1.0, 0.5])


def observations(rows: int = 2000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    z, noise = torch.randn(rows, 1, generator=generator), torch.randn(rows, 5, generator=generator)
    return z @ LOADINGS + DEVIATIONS * noise


def fitted(noise: str):
    x = observations()
    model = VAE.mlp(5, 1, hidden=(), noise=noise)
    members = train(model, x[None], x[None], [MemberSpec(seed, data=0) for seed in (0, 1)], SETTINGS)
    return members, x.double()


@pytest.mark.parametrize("noise", ["learned-diagonal", "learned-full"])
def test_the_likelihood_agrees_with_torch(noise):
    generator = torch.Generator().manual_seed(0)
    params = {"noise.log_scale": torch.randn(2, 3, generator=generator, dtype=torch.float64)}
    if noise == "learned-full":
        params["noise.lower"] = torch.randn(2, 3, 3, generator=generator, dtype=torch.float64)
    residual = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    found = covariance_log_likelihood(params, residual)
    for member in range(2):
        Lambda = noise_precision({name: value[member : member + 1] for name, value in params.items()})
        Lambda = torch.diag(Lambda) if Lambda.ndim == 1 else Lambda
        expected = torch.distributions.MultivariateNormal(torch.zeros(3).double(), precision_matrix=Lambda)
        torch.testing.assert_close(found[member], expected.log_prob(residual[member]))


def test_a_linear_vae_with_a_learned_diagonal_covariance_is_factor_analysis():
    """The latents can be rotated so that the gap is zero: the best ELBO is the likelihood of factor analysis."""
    members, x = fitted("learned-diagonal")
    analysis = FactorAnalysis(1, svd_method="lapack", tol=1e-8, max_iter=5000).fit(x.numpy())
    for member in members:
        noise = Noise(member.noise_precision.double())
        np.testing.assert_allclose(1 / noise.precision.numpy(), analysis.noise_variance_, rtol=0.08)
        exact = log_marginal_with_noise(member.decode, x[:400], noise=noise, latent_dim=1).value.mean()
        assert float(exact) == pytest.approx(analysis.score(x[:400].numpy()), abs=0.01)
        best = project_with_noise(member.decode, x[:400], noise=noise, latent_dim=1).elbo.mean()
        assert float(best) == pytest.approx(float(exact), abs=1e-6)  # one latent has no gap
        assert member.best_elbo == pytest.approx(analysis.score(x.numpy()), abs=0.03)
        assert member.precision is None


def test_a_learned_full_covariance_reaches_the_gaussian_of_the_data():
    """Noise and latent together have the covariance of the data; how they share it is not determined."""
    members, x = fitted("learned-full")
    sample = torch.cov(x.mT, correction=0)
    best = -0.5 * (5 * math.log(2 * math.pi) + float(torch.logdet(sample)) + 5)
    for member in members:
        origin = torch.zeros(1, 1, dtype=torch.float64)
        W = member.decode(torch.ones(1, 1, dtype=torch.float64)) - member.decode(origin)
        covariance = torch.linalg.inv(member.noise_precision.double()) + W.mT @ W
        torch.testing.assert_close(covariance, sample, rtol=0.1, atol=0.03)
        assert member.best_elbo == pytest.approx(best, abs=0.03)


def test_a_member_tells_its_own_log_likelihood():
    model = VAE.mlp(3, 2, hidden=(4,), noise="learned-full")
    (member,) = train(
        model, torch.randn(1, 64, 3), torch.randn(1, 32, 3), [MemberSpec(0)], TrainSettings(epochs=2, compile="never")
    )
    x, z = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    expected = Noise(member.noise_precision.double()).log_likelihood(x, member.decode(z))
    torch.testing.assert_close(member.log_likelihood(x, z), expected)
    plain = VAE.mlp(3, 2, hidden=(4,))
    (other,) = train(
        plain, torch.randn(1, 64, 3), torch.randn(1, 32, 3), [MemberSpec(0)], TrainSettings(epochs=1, compile="never")
    )
    assert other.log_likelihood is None
    assert other.noise_precision is None
