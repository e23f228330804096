"""The weight on the log-likelihood, as identities with unweighted objectives."""

import pytest
import torch

from vaescope.core.errors import InputError
from vaescope.distributions import DiagonalGaussian
from vaescope.models import Terms
from vaescope.objectives import DIP, BetaTC, Capacity, Factor, Weighted, beta_elbo
from vaescope.objectives.elbo import describe
from vaescope.objectives.weighted import WeightRise

WEIGHT = 4.0


def terms(seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean, variance, noise = torch.randn(3, 2, 16, 3, generator=generator)
    posterior = DiagonalGaussian(mean, variance.exp())
    likelihood, kl, error = torch.rand(3, 2, 16, generator=generator)
    return Terms(-100 * likelihood, 10 * kl, error, posterior, posterior.sample(noise))


def test_a_weight_on_the_beta_elbo_is_a_lower_beta():
    """Weight w at β is w times the loss at β/w: the same optimum."""
    beta = torch.tensor([1.0, 6.0])
    weighted = Weighted(beta_elbo, WEIGHT)(terms(), beta)
    torch.testing.assert_close(weighted, WEIGHT * beta_elbo(terms(), beta / WEIGHT))


@pytest.mark.parametrize("objective", [beta_elbo, BetaTC(100), DIP(2), Capacity(5.0)], ids=describe)
def test_only_the_log_likelihood_is_weighted(objective):
    beta = torch.tensor([1.0, 6.0])
    difference = Weighted(objective, WEIGHT)(terms(), beta) - objective(terms(), beta)
    torch.testing.assert_close(difference, (1 - WEIGHT) * terms().log_likelihood.mean(-1))
    torch.testing.assert_close(Weighted(objective, 1.0)(terms(), beta), objective(terms(), beta))


def test_the_total_correlation_keeps_its_weight():
    """β-TCVAE: weight w equals w times a loss whose KL and total correlation count 1/w."""
    beta, own = torch.tensor([1.0, 6.0]), BetaTC(100)
    regulariser = own(terms()._replace(log_likelihood=torch.zeros(2, 16)), beta)
    expected = WEIGHT * (regulariser / WEIGHT - terms().log_likelihood.mean(-1))
    torch.testing.assert_close(Weighted(own, WEIGHT)(terms(), beta), expected)


def test_the_description_is_that_of_the_objective_with_its_weight():
    """A checkpoint is continued by the same weighted objective only."""
    assert describe(Weighted(BetaTC(9), 4.0)) == describe(Weighted(BetaTC(9), 4.0))
    assert len({describe(Weighted(o, w)) for o in (beta_elbo, BetaTC(9)) for w in (1.0, 4.0)}) == 4
    hidden = Weighted(lambda terms, beta: beta, 4.0)
    assert describe(hidden) != describe(hidden)


@pytest.mark.parametrize(
    ("objective", "weight", "message"),
    [(beta_elbo, 0.0, "likelihood_weight must be > 0"), (Factor(2), 2.0, "cannot be weighted; scale β instead")],
)
def test_bad_arguments(objective, weight, message):
    with pytest.raises(InputError, match=message):
        Weighted(objective, weight)


def test_a_weight_that_rises_is_reached_and_kept():
    """Held, then geometric; validation, which has no step, sees the final weight."""
    rise = WeightRise(0.25, hold=10, warmup=20)
    beta, weighted = torch.tensor([1.0, 6.0]), Weighted(beta_elbo, WEIGHT, rise)
    for step, weight in ((1, 1.0), (10, 1.0), (20, 2.0), (30, WEIGHT), (1000, WEIGHT)):
        found = weighted(terms()._replace(step=torch.tensor(float(step))), beta)
        torch.testing.assert_close(found, Weighted(beta_elbo, weight)(terms(), beta))
    torch.testing.assert_close(weighted(terms(), beta), Weighted(beta_elbo, WEIGHT)(terms(), beta))
    assert describe(weighted) != describe(Weighted(beta_elbo, WEIGHT))


@pytest.mark.parametrize(("start", "message"), [(0.0, "start must be > 0"), (2.0, "start must be at most 1")])
def test_a_bad_start_of_a_rise(start, message):
    with pytest.raises(InputError, match=message):
        WeightRise(start, hold=0, warmup=0)
