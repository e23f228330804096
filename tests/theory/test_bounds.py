"""The papers' inequalities do bound, and not trivially."""

import pytest
import torch

import vaescope as vs
from vaescope.data.mixings import OrthogonalMLP
from vaescope.distributions import FullGaussian
from vaescope.theory import elbo, log_marginal, optimal_covariance, project
from vaescope.theory.bounds import covariance_bounds, kl_lower_bound, kl_upper_bound

MIXING = OrthogonalMLP(2, seed=0)  # slopes in [0.2, 1] twice: f is 1-Lipschitz, g is 25-Lipschitz


@pytest.fixture
def z():
    return torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("precision", [1.0, 1e2, 1e4])
def test_the_kl_lies_between_its_bounds(z, precision):
    x = MIXING(z)
    likelihood = log_marginal(MIXING, x, precision=precision).value
    best = project(MIXING, x, precision=precision)
    optimum = likelihood - best.elbo
    upper = kl_upper_bound(latent=z, log_marginal=likelihood, lipschitz=1.0, precision=precision)
    assert (optimum <= upper).all()
    generator = torch.Generator().manual_seed(1)
    for size in (0.0, 0.5, 2.0):
        noise = torch.randn(2, 20, 2, dtype=torch.float64, generator=generator)
        sd = best.variance.sqrt()
        mean, scale = best.mean + size * sd * noise[0], sd * (size * noise[1]).exp()
        divergence = likelihood - elbo(MIXING, x, FullGaussian(mean, torch.diag_embed(scale)), precision=precision)
        lower = kl_lower_bound(
            mean, scale**2, latent=z, log_marginal=likelihood, lipschitz_inverse=25.0, precision=precision
        )
        assert (divergence >= lower - 1e-9).all()


def test_a_wrong_constant_breaks_the_bounds(z):
    x = MIXING(z)
    likelihood = log_marginal(MIXING, x, precision=1e4).value
    best = project(MIXING, x, precision=1e4)
    divergence = likelihood - best.elbo
    lower = kl_lower_bound(
        best.mean, best.variance, latent=z, log_marginal=likelihood, lipschitz_inverse=0.5, precision=1e4
    )
    assert (divergence < lower).any()
    upper = kl_upper_bound(latent=z, log_marginal=likelihood, lipschitz=0.0, precision=1e4)
    assert (divergence > upper - 1.0).any()


@pytest.mark.parametrize("prior", [vs.Normal(), vs.Normal(0.0, torch.tensor([0.1, 3.0], dtype=torch.float64))])
def test_eigenvalues_of_the_covariance_lie_between_their_bounds(z, prior):
    covariance = optimal_covariance(MIXING, z, precision=20.0, prior=prior)
    eigenvalues = torch.linalg.eigvalsh(covariance)
    lower, upper = covariance_bounds(MIXING, z, precision=20.0, prior=prior)
    assert (lower - 1e-12 <= eigenvalues).all()
    assert (eigenvalues <= upper + 1e-12).all()
    if isinstance(prior.variance, float):
        torch.testing.assert_close(lower, eigenvalues)  # one prior variance: the bounds meet
