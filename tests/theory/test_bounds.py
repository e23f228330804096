"""The bounds of the papers hold, and are not trivial."""

import math

import pytest
import torch

import vaescope as vs
from vaescope.data.mixings import OrthogonalMLP
from vaescope.distributions import DiagonalGaussian, FullGaussian
from vaescope.distributions.priors import Mixture
from vaescope.inference import linear
from vaescope.theory import elbo, jacobian, log_marginal, optimal_covariance, project
from vaescope_papers.embrace_the_gap.theorems import (
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
    origin, twice = torch.zeros(1, 2, dtype=torch.float64), 2 * torch.eye(2, dtype=torch.float64)
    level = linear.log_likelihood(origin, twice, 1e4)
    assert kl_upper_bound(latent=origin, log_marginal=level, lipschitz=2.0, precision=1e4) > 0
    assert kl_upper_bound(latent=origin, log_marginal=level, lipschitz=0.1, precision=1e4) < 0  # below any KL


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("precision", [0.5, 30.0])
def test_both_bounds_are_exact_up_to_known_terms_for_scaled_identities(d, precision):
    """f = a z has C = a and B = 1/a, with equality. Prop. 6 then only drops ½ Σ σ², of Jensen's inequality."""
    z = torch.randn(4, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d))
    variance = 0.1 + torch.rand(4, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for scale in (0.5, 3.0):
        x, W = scale * z, scale * torch.eye(d, dtype=torch.float64)
        level = linear.log_likelihood(x, W, precision)

        def divergence(mean, variance, scale=scale, x=x, level=level):
            return level - elbo(lambda z: scale * z, x, DiagonalGaussian(mean, variance), precision=precision)

        given = {"latent": z, "log_marginal": level, "precision": precision}
        lower = kl_lower_bound(z + 0.3, variance, lipschitz_inverse=1 / scale, **given)
        torch.testing.assert_close(divergence(z + 0.3, variance), lower + 0.5 * variance.sum(1))
        upper = kl_upper_bound(lipschitz=scale, **given)  # the KL of N(g(x), I/γ²)
        torch.testing.assert_close(divergence(z, torch.full_like(z, 1 / precision)), upper)


@pytest.mark.parametrize("share", [1.0, 0.5, 0.1])
def test_equation_25_is_where_both_bounds_meet(share):
    """At σ² = B²/(νγ²), the minimum of Lemma 4, and with log p₀(μ) at its largest value."""
    d, precision, mode = 3, 7.0, -0.5 * math.log(2 * math.pi)
    z = torch.randn(5, d, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    given = {"latent": z, "precision": precision}
    bound = self_consistency_bound(lipschitz=6.0, lipschitz_inverse=3.0, share=share, **given)
    variance = torch.full_like(z, 9 / (share * precision))
    distance = bound - (1 - share) * variance.sum(1)
    assert (distance > 0).all()
    mean = z + distance.sqrt().unsqueeze(1) * torch.nn.functional.normalize(torch.ones_like(z), dim=1)
    level = torch.linspace(-3, 1, 5, dtype=torch.float64)
    lower = kl_lower_bound(mean, variance, log_marginal=level, lipschitz_inverse=3.0, **given)
    upper = kl_upper_bound(log_marginal=level, lipschitz=6.0, **given)
    torch.testing.assert_close(lower + vs.Normal().log_density(mean).sum(1) - d * mode, upper)


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
