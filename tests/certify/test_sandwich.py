"""Bounds on log p(x) against closed forms and quadrature."""

import pytest
import torch

import vaescope as vs
from tests.certify.models import LinearModel, curved
from vaescope.analysis.models import RepairedModel, repair
from vaescope.core.budget import Budget
from vaescope.distributions import Normal
from vaescope.inference.annealing import Sandwich, _Path, bound_log_marginal, next_temperatures
from vaescope.inference.joint import Gaussian, find_mode, laplace
from vaescope.products.certify.findings import Evidence, judge
from vaescope.products.certify.simulate import GapBounds, bound_gap, calibrate, simulate, unbounded_moments

ROUNDING = 1e-8


def simulated(model, x, count=200):
    return simulate(RepairedModel(model), repair(model, x, None, 50).sample, count, None, 0)


@pytest.mark.parametrize("latents", [2, 16])
def test_bounds_of_a_linear_model_are_exact(latents):
    """The starting Gaussian is the posterior, so every weight is p(x)."""
    linear = LinearModel.random(latents, latents + 4, mixing=0.2)
    simulation = simulated(linear.model(), linear.draw(50))
    found = bound_gap(simulation, Budget(60.0), points=16).sandwich
    exact = vs.theory.linear.log_likelihood(simulation.encoded.observations[:16], linear.W, linear.precision)
    torch.testing.assert_close(found.lower, exact, rtol=0, atol=ROUNDING)
    torch.testing.assert_close(found.upper, exact, rtol=0, atol=ROUNDING)


def check(found, exact):
    """Estimates are on the right side on average, within the error of that."""
    forward, reverse = found.errors.square().sum(1).sqrt() / found.errors.shape[1]  # observations are independent
    assert float((found.forward - exact).mean()) <= 3 * forward
    assert float((exact - found.reverse).mean()) <= 3 * reverse
    assert not found.contradictory


def test_bounds_contain_the_closed_form():
    linear = LinearModel.random(3, 6, mixing=0.2)
    simulation = simulated(linear.model(), linear.draw(50))
    joint, q = simulation.joint(16), simulation.posterior
    wrong = Gaussian(0.3 + q.mean[:16], torch.diag_embed(1.5 * q.variance[:16].sqrt()))
    found = bound_log_marginal(joint, wrong, simulation.u[:16], Budget(600.0), tolerance=0.5)
    assert found.width < 0.5
    check(
        found,
        vs.theory.linear.log_likelihood(simulation.encoded.observations[: len(joint)], linear.W, linear.precision),
    )


@pytest.mark.parametrize("latents", [1, 2, pytest.param(4, marks=pytest.mark.long)])
def test_bounds_contain_quadrature(latents):
    model, decode = curved(bend=0.8, precision=10.0, latents=latents)
    simulation = simulated(model, decode(torch.randn(20, latents, dtype=torch.float64)), count=24)
    found = bound_gap(simulation, Budget(600.0), points=24)
    exact = vs.theory.log_marginal(decode, simulation.encoded.observations, precision=10.0, latent_dim=latents).value
    assert found.sandwich.width <= 0.1
    check(found.sandwich, exact)
    low, high = found.gap
    assert low <= float((exact - found.elbo).mean()) <= high
    assert found.amortization < 0.02  # its posteriors are the best ones


@pytest.mark.parametrize("latents", [1, pytest.param(2, marks=pytest.mark.long)])
def test_nine_intervals_of_ten_contain_the_truth(latents):
    """Of 120: with errors that are not pooled, about 84 % do for one latent, whose weights are the most skewed."""
    model, decode = curved(bend=0.8, precision=10.0, latents=latents)
    simulation = simulated(model, decode(torch.randn(20, latents, dtype=torch.float64)), count=24)
    exact = vs.theory.log_marginal(decode, simulation.encoded.observations, precision=10.0, latent_dim=latents).value
    joint = simulation.joint()
    start = laplace(joint, find_mode(joint, simulation.posterior.mean, steps=25))
    found = [bound_log_marginal(joint, start, simulation.u, Budget(1e-9), seed=seed) for seed in range(5)]
    inside = torch.stack([(f.lower <= exact) & (exact <= f.upper) for f in found])
    assert float(inside.double().mean()) >= 0.9


def test_codes_that_x_were_not_drawn_from_give_contradictory_bounds():
    linear = LinearModel.random(3, 6, mixing=0.2)
    simulation = simulated(linear.model(), linear.draw(50))
    joint, q = simulation.joint(16), simulation.posterior
    start = Gaussian(q.mean[:16], torch.diag_embed(1.2 * q.variance[:16].sqrt()))
    right, wrong = (bound_log_marginal(joint, start, simulation.u[:16] + k, Budget(1e-9)) for k in (0.0, 1e4))
    assert not right.contradictory
    assert wrong.contradictory
    assert wrong.crossed.all()
    findings = judge(Evidence(calibrate(simulation), None, None, GapBounds(wrong, None, None), None))
    assert "contradictory-bounds" in [finding.code for finding in findings]


def test_chains_forget_where_they_began():
    """Four leapfrog steps of √2 return to the beginning in a standard normal distribution."""
    linear = LinearModel.random(2, 6)  # its posteriors are those of the encoder
    simulation = simulated(linear.model(), linear.draw(50))
    joint, q = simulation.joint(1), simulation.posterior
    start = Gaussian(q.mean[:1], torch.diag_embed(q.variance[:1].sqrt()))
    path = _Path(joint, start, torch.Generator().manual_seed(0), 1e-16)
    state = path.state(torch.full((400, 1, 2), 3.0, dtype=torch.float64))
    for _ in range(path.mixing):
        state, _ = path._transition(state, 1.0, torch.tensor([2**0.5], dtype=torch.float64))
    assert state.t.mean(0).abs().max() < 4 / 400**0.5
    assert state.t.std() == pytest.approx(1.0, abs=0.1)


def test_the_number_of_temperatures_grows_with_the_width_and_within_the_time():
    def bounds(width, temperatures=16):
        zero = torch.zeros(4, dtype=torch.float64)
        return Sandwich(zero, zero + width, torch.full((2, 4), 1e-9, dtype=torch.float64), temperatures, 0.75)

    assert next_temperatures(bounds(0.05), 0.1, 1e9) is None
    assert next_temperatures(bounds(0.2), 0.1, 1e9) == 64  # half the standard error needs four times as many
    assert next_temperatures(bounds(10.0), 0.1, 1e9) == 128  # at most eight times as many
    assert next_temperatures(bounds(10.0), 0.1, 2.5) == 40  # all that there is time for
    assert next_temperatures(bounds(10.0), 0.1, 1.2) is None  # not worth it
    assert next_temperatures(bounds(10.0, 8192), 0.1, 1e9) is None


def test_no_time_means_wide_bounds_not_wrong_ones():
    linear = LinearModel.random(3, 6)
    simulation = simulated(linear.model(), linear.draw(50))
    joint = simulation.joint(64)
    far = Gaussian(3 + simulation.posterior.mean[:64], torch.diag_embed(simulation.posterior.variance[:64].sqrt()))
    found = bound_log_marginal(joint, far, simulation.u[:64], Budget(1e-9))
    exact = vs.theory.linear.log_likelihood(simulation.encoded.observations[: len(joint)], linear.W, linear.precision)
    assert found.temperatures == 16
    assert found.lower.mean() < exact.mean() < found.upper.mean()


@pytest.mark.parametrize("prior", [vs.Uniform(-2.0, 3.0), vs.Beta(2.0, 3.0), Normal()])
def test_moments_of_bounded_latents_are_inverted(prior):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    variance = 2 * torch.rand(200, 3, generator=generator, dtype=torch.float64) + 1e-3
    found = unbounded_moments(prior, *prior.moments(mean, variance))
    torch.testing.assert_close(found, (mean, variance), rtol=1e-5, atol=1e-6)
