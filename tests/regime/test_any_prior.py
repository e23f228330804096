"""The regime under priors that are no Gaussians: floors in closed form, planted latents, parity with the projection."""

import functools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import betaln, log_expit

import vaescope as vs
from vaescope.core.errors import InputError
from vaescope.distributions import kl_per_latent
from vaescope.distributions.priors import Mixture, mixture_of_posteriors
from vaescope.regime import classify
from vaescope.regime.any_prior import classify_any, closest_gaussians
from vaescope.theory import project


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


MODES = Mixture(doubles(-3.0, 3.0), doubles(0.2, 0.2))
SKEWED = mixture_of_posteriors(doubles(-1.0, 0.0, 0.4, 2.5).unsqueeze(1), doubles(0.3, 0.5, 0.2, 0.6).unsqueeze(1))
PRIORS = {
    "normal": vs.Normal(0.5, 2.0),
    "laplace": vs.Laplace(),
    "uniform": vs.Uniform(-1.0, 1.0),
    "beta": vs.Beta(2.0, 5.0),
    "two modes": MODES,
    "pseudo-inputs": Mixture(SKEWED.mean[0], SKEWED.variance[0]),
}


@functools.cache
def closest(name: str) -> list[tuple[float, float, float]]:
    return closest_gaussians(PRIORS[name], 1)[0]


def test_the_floors_have_closed_forms():
    ((mean, variance, floor),) = closest("laplace")
    assert (mean, variance) == pytest.approx((0, math.pi / 2), abs=1e-6)
    assert floor == pytest.approx(0.5 + math.log(2) - math.log(math.pi))  # at variance π/2
    assert closest("normal") == [pytest.approx((0.5, 2.0, 0.0), abs=1e-7)]
    both = closest("two modes")
    assert [mode[2] for mode in both] == pytest.approx([math.log(2)] * 2, abs=1e-6)
    assert sorted(mode[0] for mode in both) == pytest.approx([-3, 3], abs=1e-4)


@pytest.mark.parametrize(("name", "a", "b"), [("uniform", 1, 1), ("beta", 2, 5)])
def test_floors_of_bounded_priors_against_a_minimum_by_scipy(name, a, b):
    """In u the density is σ(u)^a σ(-u)^b / B(a, b)."""
    t = np.linspace(-10, 10, 4001)
    weight = np.exp(-0.5 * t**2) / np.exp(-0.5 * t**2).sum()

    def divergence(q):
        u = q[0] + np.exp(q[1]) * t
        log_density = a * log_expit(u) + b * log_expit(-u) - betaln(a, b)
        return -0.5 * math.log(2 * math.pi * math.e) - q[1] - weight @ log_density

    best = minimize(divergence, [0.0, 0.0], method="BFGS", options={"gtol": 1e-9})
    ((mean, variance, floor),) = closest(name)
    assert (mean, variance, floor) == pytest.approx((best.x[0], math.exp(2 * best.x[1]), best.fun), abs=1e-5)


def test_a_narrow_and_a_wide_gaussian_around_one_mean_are_both_found():
    """A spike and a slab: a latent without information may be at either, and neither is used."""
    prior = Mixture(doubles(0.0, 0.0), doubles(2.5e-3, 1.0))
    wide, narrow = closest_gaussians(prior, 1)[0]
    assert wide[:2] == pytest.approx((0, 0.74), abs=0.01)
    assert narrow[:2] == pytest.approx((0, 3.8e-3), abs=1e-4)
    variance = torch.tensor([wide[1], narrow[1]], dtype=torch.float64).expand(100, 2)
    found = classify_any(torch.zeros_like(variance), variance, prior)
    assert found.kind == ["passive", "passive"]
    torch.testing.assert_close(found.passive_level.variance, variance[0])


@pytest.mark.parametrize("name", ["laplace", "beta", "two modes"])
def test_an_ignored_latent_has_the_closest_gaussian_as_its_exact_posterior(name):
    """Parity with the projection of a decoder that uses the first latent only."""
    prior = PRIORS[name]
    z = prior.sample(3, 2, generator=torch.Generator().manual_seed(1))
    found = project(lambda z: 3 * z[:, :1], 3 * z[:, :1], precision=100.0, prior=prior, start=z)
    candidates = closest(name)
    for row in range(3):
        mean, variance = float(found.posterior.mean[row, 1]), float(found.posterior.marginal_variance[row, 1])
        assert any((mean, variance) == pytest.approx((m, s), abs=2e-3) for m, s, _ in candidates)


@functools.cache
def planted(name: str, samples: int = 400) -> tuple[torch.Tensor, torch.Tensor]:
    """An active, a passive and a mixed latent: what an encoder at its optimum would return."""
    rng, prior = np.random.default_rng(0), PRIORS[name]
    level, variance, _ = closest(name)[0]
    codes = prior.from_support(prior.sample(samples, 3, generator=torch.Generator().manual_seed(2))).numpy()
    passive = np.stack([np.zeros(samples), np.ones(samples), rng.random(samples) < 0.5], axis=1).astype(bool)
    jitter = 0.05 * variance**0.5 * rng.normal(size=codes.shape)
    mean = np.where(passive, level + jitter, codes)
    spread = np.where(passive, variance * (1 + 0.05 * rng.uniform(-1, 1, codes.shape)), variance / 50)
    return torch.from_numpy(mean), torch.from_numpy(spread)


@pytest.mark.parametrize("name", ["laplace", "uniform", "beta", "two modes", "pseudo-inputs"])
def test_planted_kinds_are_found_and_passive_latents_are_at_the_floor(name):
    mean, variance = planted(name)
    found = classify_any(mean, variance, PRIORS[name])
    assert found.kind == ["active", "passive", "mixed"]
    assert float(found.excess[1]) == pytest.approx(0, abs=0.02)
    assert float(found.excess[0]) > 0.5
    assert found.regime.passive_fraction[2] == pytest.approx(0.5, abs=0.1)
    torch.testing.assert_close(found.kl, kl_per_latent(mean, variance, PRIORS[name]).mean(0))


def test_moments_of_the_prior_do_not_judge_a_prior_with_modes():
    """A passive posterior is in one mode, far narrower than the prior: relative to its moments it looks active."""
    mean, variance = planted("two modes")
    prior_mean, prior_variance = MODES.mean_and_variance()
    assert (
        classify(mean, variance, prior_mean=float(prior_mean), prior_variance=float(prior_variance)).kind[1] == "active"
    )
    assert classify_any(mean, variance, MODES).kind[1] == "passive"


def test_a_latent_that_chooses_a_mode_by_the_sample_is_not_passive():
    side = torch.where(torch.arange(300) % 2 == 0, 3.0, -3.0).double().unsqueeze(1)
    found = classify_any(side, torch.full_like(side, 0.2), MODES)
    assert found.kind == ["active"]
    assert float(found.excess[0]) == pytest.approx(0, abs=1e-6)  # although no sample is above the floor


NARROW = Mixture(torch.linspace(-2, 2, 20, dtype=torch.float64), torch.full((20,), 0.01, dtype=torch.float64))


@pytest.mark.parametrize("prior", [MODES, SKEWED, NARROW], ids=["two modes", "pseudo-inputs", "narrow components"])
def test_mixtures_against_numerical_integration(prior):
    grid = torch.linspace(-12, 12, 40_001, dtype=torch.float64)
    step = float(grid[1] - grid[0])
    density = prior.log_density(grid.unsqueeze(1)).exp().squeeze(1)
    assert float(density.sum() * step) == pytest.approx(1, abs=1e-6)
    mean, variance = (float(torch.as_tensor(v).reshape(-1)[0]) for v in prior.mean_and_variance())
    assert float((grid * density).sum() * step) == pytest.approx(mean, abs=1e-6)
    assert float(((grid - mean) ** 2 * density).sum() * step) == pytest.approx(variance, abs=1e-5)
    for at, spread in (
        (0.7, 0.4),
        (0.0, 1.0),
        (-2.5, 0.01),
    ):  # between modes, where the log-density has a bend, and in one
        q = torch.exp(-((grid - at) ** 2) / (2 * spread)) / math.sqrt(2 * math.pi * spread)
        expected = float((q * prior.log_density(grid.unsqueeze(1)).squeeze(1)).sum() * step)
        found = prior.expected_log_density(doubles(at).unsqueeze(0), doubles(spread).unsqueeze(0))
        assert float(found) == pytest.approx(expected, abs=1e-8)
    at = doubles(-2.7, 0.4, 1.3).unsqueeze(1)
    second = torch.func.vmap(torch.func.hessian(lambda z: prior.log_density(z).sum()))(at).reshape(3, 1)
    torch.testing.assert_close(prior.curvature(at), -second)
    draws = prior.sample(20_000, 1, generator=torch.Generator().manual_seed(0))
    assert float(draws.mean()) == pytest.approx(mean, abs=0.06)
    assert float(draws.var()) == pytest.approx(variance, rel=0.05)


def test_mixtures_do_not_depend_on_chunks(monkeypatch):
    mean, variance = torch.linspace(-3, 3, 14, dtype=torch.float64).reshape(7, 2), torch.full((7, 2), 0.3).double()
    prior = mixture_of_posteriors(torch.eye(3, 2).double(), torch.full((3, 2), 0.2).double())
    whole = prior.expected_log_density(mean, variance)
    monkeypatch.setattr("vaescope.distributions.priors.NUMBERS_AT_ONCE", 1)
    torch.testing.assert_close(prior.expected_log_density(mean, variance), whole)


def test_wrong_mixtures_are_explained(unchecked_shapes):
    with pytest.raises(InputError, match="one shape"):
        Mixture(doubles(0.0, 1.0), doubles(1.0))
    with pytest.raises(InputError, match="variance of a mixture"):
        Mixture(doubles(0.0), doubles(0.0))
    with pytest.raises(InputError, match="weight of a mixture"):
        Mixture(doubles(0.0), doubles(1.0), doubles(-1.0))
