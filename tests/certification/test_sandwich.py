"""Bounds on log p(x) against closed forms and quadrature."""

import pytest
import torch

import vaescope as vs
from tests.certification.models import LinearModel, curved
from vaescope.adapters.repaired import RepairedModel, repair
from vaescope.certification.coordinates import unbounded_moments
from vaescope.certification.gap import bound_gap
from vaescope.certification.joint import Joint
from vaescope.certification.sandwich import bound_log_marginal
from vaescope.certification.simulate import simulate
from vaescope.certification.start import Laplace
from vaescope.diagnosis.budget import Budget
from vaescope.distributions import Normal

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


def test_bounds_contain_the_closed_form():
    linear = LinearModel.random(3, 6, mixing=0.2)
    simulation = simulated(linear.model(), linear.draw(50))
    joint = Joint.of(simulation, 32)
    wrong = Laplace(
        0.7 + simulation.posterior.mean[:32], torch.diag_embed(2 * simulation.posterior.variance[:32].sqrt())
    )
    found = bound_log_marginal(joint, wrong, simulation.u[:32], Budget(600.0), tolerance=0.5)
    exact = vs.theory.linear.log_likelihood(joint.sample.observations, linear.W, linear.precision)
    assert found.width < 0.5
    inside = (found.lower <= exact) & (exact <= found.upper)
    assert float(inside.double().mean()) >= 0.9
    assert found.lower.mean() <= exact.mean() <= found.upper.mean()


@pytest.mark.parametrize("latents", [2, 4])
def test_bounds_contain_quadrature(latents):
    model, decode = curved(bend=0.8, precision=10.0, latents=latents)
    simulation = simulated(model, decode(torch.randn(20, latents, dtype=torch.float64)), count=16)
    found = bound_gap(simulation, Budget(600.0), points=16)
    x = simulation.encoded.observations
    exact = vs.theory.log_marginal(decode, x, precision=10.0, latent_dim=latents).value
    assert found.sandwich.width <= 0.1
    inside = (found.sandwich.lower - ROUNDING <= exact) & (exact <= found.sandwich.upper + ROUNDING)
    assert float(inside.double().mean()) >= 0.9
    low, high = found.gap
    assert low <= float((exact - found.elbo).mean()) <= high
    assert found.amortisation < 0.02  # its posteriors are the best ones


def test_no_time_means_wide_bounds_not_wrong_ones():
    linear = LinearModel.random(3, 6)
    simulation = simulated(linear.model(), linear.draw(50))
    joint = Joint.of(simulation, 64)
    far = Laplace(3 + simulation.posterior.mean[:64], torch.diag_embed(simulation.posterior.variance[:64].sqrt()))
    found = bound_log_marginal(joint, far, simulation.u[:64], Budget(1e-9))
    exact = vs.theory.linear.log_likelihood(joint.sample.observations, linear.W, linear.precision)
    assert found.temperatures == 16
    assert found.lower.mean() < exact.mean() < found.upper.mean()


@pytest.mark.parametrize("prior", [vs.Uniform(-2.0, 3.0), vs.Beta(2.0, 3.0), Normal()])
def test_moments_of_bounded_latents_are_inverted(prior):
    generator = torch.Generator().manual_seed(0)
    mean = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    variance = 2 * torch.rand(200, 3, generator=generator, dtype=torch.float64) + 1e-3
    found = unbounded_moments(prior, *prior.moments(mean, variance))
    torch.testing.assert_close(found, (mean, variance), rtol=1e-5, atol=1e-6)
