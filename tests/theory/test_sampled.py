"""The sampled gap against closed forms and against numerical integration."""

import math

import pytest
import torch

from vaescope import theory
from vaescope.distributions import DiagonalGaussian, Normal
from vaescope.inference.gap import sampled_gap

PRECISION = 4.0


def linear(seed, points=6, n=20, d=8):
    """A linear decoder with oblique columns, samples of it, and its best diagonal posteriors."""
    generator = torch.Generator().manual_seed(seed)
    W = torch.randn(n, d, generator=generator, dtype=torch.float64)
    z = torch.randn(points, d, generator=generator, dtype=torch.float64)
    noise = torch.randn(points, n, generator=generator, dtype=torch.float64)
    x = z @ W.T + noise / PRECISION**0.5
    mean = theory.linear.posterior(x, W, PRECISION)[0]
    return W, x, DiagonalGaussian(mean, theory.linear.optimal_variance(W, PRECISION).expand(points, d))


def gaussian(W, x):
    n = x.shape[1]

    def log_likelihood(rows, z):
        error = (x[rows] - z @ W.T).square().sum(1)
        return -0.5 * PRECISION * error + 0.5 * n * math.log(PRECISION / (2 * math.pi))

    return log_likelihood


def curvature(W):
    return lambda z: (PRECISION * W.T @ W).expand(len(z), -1, -1)


@pytest.mark.parametrize("seed", range(3))
def test_a_linear_model_agrees_with_closed_forms(seed):
    W, x, best = linear(seed)
    generator = torch.Generator().manual_seed(seed)
    off = torch.randn(best.mean.shape, generator=generator, dtype=torch.float64)
    start = DiagonalGaussian(best.mean + 3 * best.variance.sqrt() * off, best.variance * 2)
    found = sampled_gap(gaussian(W, x), start, Normal(), curvature=curvature(W))
    assert torch.allclose(found.log_marginal, theory.linear.log_likelihood(x, W, PRECISION), atol=0.1)
    gap = theory.linear.gap(W, PRECISION)
    assert torch.allclose(found.family, gap.expand(len(x)), atol=0.12)
    exact = theory.elbo(lambda z: z @ W.T, x, start, precision=PRECISION)
    lost = theory.linear.elbo(x, W, PRECISION) - exact
    assert torch.allclose(found.amortization, lost, rtol=0.1, atol=0.06)
    assert float(found.pareto_k.max()) < 0.7


def test_the_best_posterior_has_no_amortization_gap():
    W, x, best = linear(5)
    found = sampled_gap(gaussian(W, x), best, Normal(), curvature=curvature(W))
    assert float(found.amortization.max()) < 0.05
    assert float(found.amortization.min()) >= 0


def test_bernoulli_outputs_agree_with_integration_on_a_grid():
    generator = torch.Generator().manual_seed(0)
    W = 1.5 * torch.randn(12, 2, generator=generator, dtype=torch.float64)
    x = torch.bernoulli(torch.sigmoid(torch.randn(5, 2, generator=generator, dtype=torch.float64) @ W.T))
    line = torch.linspace(-6, 6, 401, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    log_prior = Normal().log_density(grid).sum(1)
    logits = grid @ W.T
    truth = torch.stack(
        [
            torch.logsumexp((row * logits - torch.nn.functional.softplus(logits)).sum(1) + log_prior, 0)
            + 2 * math.log(12 / 400)
            for row in x
        ]
    )

    def log_likelihood(rows, z):
        values = z @ W.T
        return (x[rows] * values - torch.nn.functional.softplus(values)).sum(1)

    start = DiagonalGaussian(torch.zeros(5, 2, dtype=torch.float64), torch.ones(5, 2, dtype=torch.float64))
    found = sampled_gap(log_likelihood, start, Normal())
    assert torch.allclose(found.log_marginal, truth, atol=0.05)
    assert float(found.amortization.min()) > 0.1
    assert float(found.family.min()) > -0.05


def test_each_point_may_have_its_own_prior():
    W, x, best = linear(3)
    own = Normal(torch.zeros_like(best.mean), torch.ones_like(best.mean))
    both = [sampled_gap(gaussian(W, x), best, prior, curvature=curvature(W)) for prior in (Normal(), own)]
    assert torch.equal(both[0].log_marginal, both[1].log_marginal)
