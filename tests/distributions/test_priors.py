"""Priors: densities, curvatures and expectations against SciPy, autograd and adaptive quadrature."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from scipy.integrate import quad

import vaescope as vs
from vaescope.distributions import Prior

PRIORS: dict[str, tuple[Prior, object]] = {
    "normal": (vs.Normal(0.5, 4.0), scipy.stats.norm(0.5, 2.0)),
    "laplace": (vs.Laplace(-0.3, 0.7), scipy.stats.laplace(-0.3, 0.7)),
    "uniform": (vs.Uniform(-0.5, 0.5), scipy.stats.uniform(-0.5, 1.0)),
    "beta": (vs.Beta(3.0, 2.0, low=-1.0, high=2.0), scipy.stats.beta(3.0, 2.0, loc=-1.0, scale=3.0)),
}


@pytest.fixture(params=PRIORS)
def case(request):
    return PRIORS[request.param]


def points(prior: Prior) -> torch.Tensor:
    u = torch.linspace(-2.0, 2.0, 9, dtype=torch.float64)
    return prior.to_support(u)


def test_log_density_matches_scipy(case):
    prior, reference = case
    z = points(prior)
    np.testing.assert_allclose(prior.log_density(z), reference.logpdf(z.numpy()), rtol=1e-12, atol=1e-12)


def test_mean_and_variance_match_scipy(case):
    prior, reference = case
    np.testing.assert_allclose(prior.mean_and_variance(), (reference.mean(), reference.var()), rtol=1e-12)


def test_optimisers_start_within_the_bulk_of_the_prior(case):
    prior, reference = case
    start = float(prior.to_support(torch.tensor(prior.unbounded_centre(), dtype=torch.float64)))
    assert 0.3 < reference.cdf(start) < 0.7


def test_curvature_is_the_second_derivative(case):
    prior, _ = case
    z = points(prior)[1:-1] + 0.01
    second = torch.vmap(torch.func.grad(torch.func.grad(lambda t: prior.log_density(t))))(z)
    np.testing.assert_allclose(prior.curvature(z), -second, rtol=1e-9, atol=1e-9)


def test_to_support_and_its_inverse(case):
    prior, _ = case
    u = torch.linspace(-4.0, 4.0, 17, dtype=torch.float64)
    np.testing.assert_allclose(prior.from_support(prior.to_support(u)), u, atol=1e-12)
    slope = torch.vmap(torch.func.grad(prior.to_support))(u)
    np.testing.assert_allclose(prior.log_derivative(u), slope.log(), atol=1e-12)


@pytest.mark.parametrize(("mean", "sd"), [(0.0, 1.0), (1.5, 0.3), (-2.0, 1.8), (0.1, 1e-3)])
def test_expected_log_density_matches_adaptive_quadrature(case, mean, sd):
    prior, _ = case

    def integrand(t: float) -> float:
        u = torch.tensor(mean + sd * t, dtype=torch.float64)
        in_u = prior.log_density(prior.to_support(u)) + prior.log_derivative(u)
        return float(in_u) * math.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)

    kink = (float(getattr(prior, "mean", 0.0)) - mean) / sd  # of the Laplace density
    expected, _ = quad(integrand, -12, 12, points=[min(max(kink, -11.9), 11.9)], limit=400, epsabs=1e-12)
    m, v = torch.tensor([mean], dtype=torch.float64), torch.tensor([sd**2], dtype=torch.float64)
    # closed forms to rounding; 32 Gauss–Hermite nodes for the bounded priors
    tolerance = 1e-9 if prior.bounds is None else 2e-6
    assert float(prior.expected_log_density(m, v)) == pytest.approx(expected, abs=tolerance)


def test_samples_follow_the_density(case):
    prior, reference = case
    sample = prior.sample(4000, generator=torch.Generator().manual_seed(0))
    assert scipy.stats.kstest(sample.numpy(), reference.cdf).pvalue > 1e-3


def test_moments_of_z_match_sampling(case):
    prior, _ = case
    mean, variance = torch.tensor([0.4], dtype=torch.float64), torch.tensor([0.25], dtype=torch.float64)
    noise = torch.randn(400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    draws = prior.to_support(mean + variance.sqrt() * noise)
    first, second = prior.moments(mean, variance)
    assert float(first) == pytest.approx(float(draws.mean()), abs=4 * float(draws.std()) / 400_000**0.5)
    assert float(second) == pytest.approx(float(draws.var()), rel=0.01)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vs.Normal(0.0, 0.0), "variance of a normal prior must be > 0, got 0.0"),
        (lambda: vs.Laplace(0.0, -1.0), "scale of a laplace prior must be > 0"),
        (lambda: vs.Uniform(1.0, 1.0), "low < high"),
        (lambda: vs.Beta(-1.0, 1.0), "a of a beta prior must be > 0"),
        (lambda: vs.Beta(1.0, 1.0, low=2.0, high=1.0), "low < high"),
    ],
)
def test_bad_parameters_are_rejected(make, message):
    with pytest.raises(vs.InputError, match=message):
        make()
