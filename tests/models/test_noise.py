"""Learned covariances of the observations: against torch, factor analysis and the closed form of a full covariance."""

import math

import numpy as np
import pytest
import torch
from sklearn.decomposition import FactorAnalysis

from vaescope.inference.anisotropic import Noise
from vaescope.models import VAE
from vaescope.models.networks import covariance_log_likelihood, noise_precision
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


def covariance_of(member) -> torch.Tensor:
    """Λ⁻¹ + W Wᵀ, the covariance of x under a linear member."""
    precision = member.noise_precision.double()
    W = (member.decode(torch.ones(1, 1)) - member.decode(torch.zeros(1, 1))).double()
    return torch.linalg.inv(torch.diag(precision) if precision.ndim == 1 else precision) + W.mT @ W


def gaussian_score(covariance: torch.Tensor, sample: torch.Tensor) -> float:
    """Mean log-likelihood of centred data with this sample covariance."""
    fit = torch.logdet(covariance) + torch.trace(torch.linalg.solve(covariance, sample))
    return -0.5 * float(len(sample) * math.log(2 * math.pi) + fit)


def test_a_linear_vae_with_a_learned_diagonal_covariance_is_factor_analysis():
    """One latent has no gap, so that the best ELBO is the largest likelihood of factor analysis."""
    members, x = fitted("learned-diagonal")
    analysis = FactorAnalysis(1, svd_method="lapack", tol=1e-8, max_iter=5000).fit(x.numpy())
    best = analysis.score(x.numpy())
    for member in members:
        assert gaussian_score(covariance_of(member), torch.cov(x.mT, correction=0)) == pytest.approx(best, abs=0.005)
        assert member.best_elbo == pytest.approx(best, abs=0.03)  # one draw of z per row
        variances = 1 / member.noise_precision.numpy()
        np.testing.assert_allclose(variances, analysis.noise_variance_, rtol=0.2)  # of which the likelihood is flat
        assert member.precision is None


def test_a_learned_full_covariance_reaches_the_gaussian_of_the_data():
    """Noise and latent together have the covariance of the data; how they share it is not determined."""
    members, x = fitted("learned-full")
    sample = torch.cov(x.mT, correction=0)
    best = gaussian_score(sample, sample)
    for member in members:
        torch.testing.assert_close(covariance_of(member), sample, rtol=0, atol=0.03)
        assert member.best_elbo == pytest.approx(best, abs=0.03)


def test_a_member_tells_its_own_log_likelihood():
    model = VAE.mlp(3, 2, hidden=(4,), noise="learned-full")
    (member,) = train(
        model, torch.randn(1, 64, 3), torch.randn(1, 32, 3), [MemberSpec(0)], TrainSettings(epochs=2, compile="never")
    )
    x, z = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    expected = Noise(member.noise_precision.double()).log_likelihood(x, member.decode(z))
    torch.testing.assert_close(member.log_likelihood(x, z), expected, rtol=1e-4, atol=1e-5)  # weights are float32
    plain = VAE.mlp(3, 2, hidden=(4,))
    (other,) = train(
        plain, torch.randn(1, 64, 3), torch.randn(1, 32, 3), [MemberSpec(0)], TrainSettings(epochs=1, compile="never")
    )
    assert other.log_likelihood is None
    assert other.noise_precision is None
