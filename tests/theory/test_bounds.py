"""The bounds of the papers hold, and are not trivial."""

import pytest
import torch

import vaescope as vs
from vaescope.data.mixings import OrthogonalMLP
from vaescope.distributions import FullGaussian
from vaescope.distributions.mixture import Mixture
from vaescope.theory import elbo, jacobian, log_marginal, optimal_covariance, project
from vaescope.theory.bounds import (
    covariance_bounds,
    eigenvalue_bounds,
    kl_lower_bound,
    kl_upper_bound,
    kl_upper_limit,
    self_consistency_bound,
    taylor_bound,
)

MIXING = OrthogonalMLP(2, seed=0)  # slopes in [0.2, 1] twice: f is 1-Lipschitz, g is 25-Lipschitz


@pytest.fixture
def z():
    return torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("precision", [1.0, 1e2, 1e4])
def test_the_kl_is_between_its_bounds(z, precision):
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
    upper = kl_upper_bound(latent=z, log_marginal=likelihood, lipschitz=1e-3, precision=1e4)
    assert (divergence > upper - 1.0).any()


@pytest.mark.parametrize("prior", [vs.Normal(), vs.Normal(0.0, torch.tensor([0.1, 3.0], dtype=torch.float64))])
def test_eigenvalues_of_the_covariance_are_between_their_bounds(z, prior):
    covariance = optimal_covariance(MIXING, z, precision=20.0, prior=prior)
    eigenvalues = torch.linalg.eigvalsh(covariance)
    lower, upper = covariance_bounds(MIXING, z, precision=20.0, prior=prior)
    assert (lower - 1e-12 <= eigenvalues).all()
    assert (eigenvalues <= upper + 1e-12).all()
    if isinstance(prior.variance, float):
        torch.testing.assert_close(lower, eigenvalues)  # one prior variance: the bounds meet


def test_bounds_hold_for_conditional_priors_and_are_exact_for_isotropic_ones():
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    z = torch.zeros(5, 4, dtype=torch.float64)
    variance = 10 ** (2 * torch.rand(5, 4, generator=generator, dtype=torch.float64) - 2)
    for prior_variance, tight in ((variance, False), (torch.full_like(variance, 0.3), True)):
        covariance = optimal_covariance(
            lambda z: z @ W.T, z, precision=7.0, prior=vs.Normal(torch.zeros_like(z), prior_variance)
        )
        eigenvalues = torch.linalg.eigvalsh(covariance)
        J = jacobian(lambda z: z @ W.T, z)
        low, high = eigenvalue_bounds(J, prior_variance=prior_variance, precision=7.0)
        assert (eigenvalues >= low * (1 - 1e-9)).all()
        assert (eigenvalues <= high * (1 + 1e-9)).all()
        assert torch.allclose(low, high) == tight


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, 1e6), (torch.float64, 1e14)])
def test_bounds_of_a_decoder_of_low_rank_at_high_precision(dtype, precision):
    """Directions that the decoder does not use keep the prior's variance."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(1, 8, 3, generator=generator, dtype=dtype)
    right = torch.randn(1, 3, 6, generator=generator, dtype=dtype)
    low, high = eigenvalue_bounds(10 * left @ right, prior_variance=torch.ones(1, 6, dtype=dtype), precision=precision)
    assert (low > 0).all()
    assert (high[0, :3] < 1e-3).all()
    assert torch.allclose(high[0, 3:], torch.ones(3, dtype=dtype), rtol=0.2)  # up to rounding errors of the rank


@pytest.mark.parametrize("epsilon", [1e-3, 1e-7, 1e-9])
def test_bounds_of_nearly_parallel_columns_are_exact(epsilon):
    """The smaller squared singular value of [[1, 1], [0, ε]] is ε²/s₁; eigenvalues of JᵀJ lose it to rounding."""
    precision = 1e20
    J = torch.tensor([[1.0, 1.0], [0.0, epsilon]], dtype=torch.float64)
    total = 2 + epsilon**2  # s₁ + s₂, with s₁ s₂ = ε²
    largest = (total + (total**2 - 4 * epsilon**2) ** 0.5) / 2
    exact = 1 / (1 + precision * epsilon**2 / largest)
    z = torch.zeros(1, 2, dtype=torch.float64)
    of_matrix = eigenvalue_bounds(J[None], prior_variance=torch.ones(1, 2, dtype=torch.float64), precision=precision)
    of_decoder = covariance_bounds(lambda z: z @ J.T, z, precision=precision)
    for low, high in (of_matrix, of_decoder):
        assert float(high[0, 1]) == pytest.approx(exact, rel=1e-6)
        torch.testing.assert_close(low, high)
    squared = torch.linalg.eigvalsh(J.T @ J)[0].clamp(min=0)
    if epsilon == 1e-9:
        assert float(1 / (1 + precision * squared)) > 10 * exact  # what a Gram matrix would give


def test_bounds_of_a_flat_prior():
    low, high = covariance_bounds(
        lambda z: 2 * z, torch.full((1, 2), 0.5, dtype=torch.float64), precision=1.0, prior=vs.Uniform(0.0, 1.0)
    )
    assert low.tolist() == high.tolist() == [[0.25, 0.25]]


def test_assumptions_that_fail_are_said_to_fail(z):
    level = torch.zeros(20, dtype=torch.float64)
    lower = {"latent": z, "log_marginal": level, "lipschitz_inverse": 2.0, "precision": 1.0}
    modes = Mixture(torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.3, 0.3]).double())
    with pytest.raises(vs.InputError, match="log-concave"):
        kl_lower_bound(z, torch.ones_like(z), **lower, prior=modes)
    with pytest.raises(vs.InputError, match="supported on all of R"):
        kl_lower_bound(z, torch.ones_like(z), **lower, prior=vs.Uniform(-9.0, 9.0))
    with pytest.raises(vs.InputError, match="lipschitz_inverse"):
        kl_lower_bound(z, torch.ones_like(z), **{**lower, "lipschitz_inverse": 0.0})
    with pytest.raises(vs.InputError, match="log-concave"):
        covariance_bounds(MIXING, 0.01 * z, precision=1.0, prior=modes)
    with pytest.raises(vs.InputError, match="at least 1"):
        self_consistency_bound(latent=z, lipschitz=0.1, lipschitz_inverse=0.2, precision=1.0)
    with pytest.raises(vs.InputError, match="as many outputs"):
        kl_upper_limit(lambda z: z[:, :1], z, lipschitz=1.0)
    with pytest.raises(vs.InputError, match="domination"):
        kl_upper_limit(MIXING, z, lipschitz=1.0, prior=vs.Normal(0.0, 0.1))
    with pytest.raises(vs.InputError, match="second_derivative"):
        taylor_bound(torch.ones_like(z), outputs=2, second_derivative=-1.0)
    assert (
        kl_lower_bound(z, torch.ones_like(z), **lower, prior=vs.Laplace()).isfinite().all()
    )  # log-concave, not smooth
