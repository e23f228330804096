"""The gap by quadrature with a tolerance: against `theory.gap`, which solves the same problem to rounding error."""

import pytest
import torch

from vaescope import theory
from vaescope.distributions import DiagonalGaussian, Normal
from vaescope.inference.gap import QUADRATURE_ORDERS, quadrature_gap

PRECISION = 50.0


def curved(dim, outputs=6, seed=0):
    """A decoder with curved outputs, points that it may have generated, and posteriors that are somewhat off."""
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(dim, outputs, generator=generator, dtype=torch.float64)
    B = 0.5 * torch.randn(dim, outputs, generator=generator, dtype=torch.float64)

    def decoder(z):
        return z @ A + torch.sin(z @ B)

    z = torch.randn(8, dim, generator=generator, dtype=torch.float64)
    x = decoder(z) + torch.randn(8, outputs, generator=generator, dtype=torch.float64) / PRECISION**0.5
    J = theory.jacobian(decoder, z)
    variance = 1 / (1 + PRECISION * J.square().sum(1))
    return decoder, x, DiagonalGaussian(z + 0.5 * variance.sqrt(), 1.3 * variance)


@pytest.mark.parametrize("dim", sorted(QUADRATURE_ORDERS)[:3])
def test_agreement_with_the_exact_gap(dim):
    decoder, x, posterior = curved(dim)
    exact = theory.gap(decoder, x, posterior, precision=PRECISION)
    constant = 0.5 * x.shape[1] * torch.log(torch.tensor(PRECISION / (2 * torch.pi), dtype=torch.float64))

    def log_likelihood(rows, z):
        return constant - 0.5 * PRECISION * (x[rows] - decoder(z)).square().sum(1)

    def curvature(z):
        J = theory.jacobian(decoder, z)
        return PRECISION * J.mT @ J

    prior = Normal(torch.zeros_like(posterior.mean), torch.ones_like(posterior.mean))
    found = quadrature_gap(log_likelihood, posterior, prior, curvature)
    torch.testing.assert_close(found.log_marginal, exact.log_marginal, atol=0.02, rtol=0)
    torch.testing.assert_close(found.elbo, exact.elbo, atol=0.02, rtol=0)
    torch.testing.assert_close(found.best_elbo, exact.elbo_star, atol=0.02, rtol=0)
    assert bool(found.converged.all())
    assert float((found.best_elbo - found.elbo).mean()) > 0.05
