"""The variances beyond Eq. 12, against the projection, by measured slopes."""

import pytest
import torch

import vaescope as vs
from tests.theory.decoders import Bent
from vaescope.distributions.priors import Mixture
from vaescope.theory import optimal_variance, project
from vaescope_papers.embrace_the_gap.theorems import next_variance
from vaescope_papers.statistics import slope

MODES = Mixture(torch.tensor([-1.0, 1.0]).double(), torch.tensor([0.5, 0.5]).double())
CASES = [(d, d + extra, vs.Normal()) for d in (1, 2, 3, 4) for extra in (0, 2)]
CASES += [(2, 3, vs.Normal(0.5, 0.2)), (2, 3, MODES)]


@pytest.mark.parametrize(("d", "n", "prior"), CASES)
def test_the_relative_error_falls_with_the_square_of_the_precision(d, n, prior):
    decoder = Bent(d, n)
    z = torch.randn(2, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).clamp(-1.5, 1.5)
    precisions, errors, printed = [1e2, 1e3], [], []
    for precision in precisions:
        given = {"precision": precision, "prior": prior}
        best = project(decoder, decoder(z), start=z, **given).variance
        errors.append(float((next_variance(decoder, z, **given) / best - 1).abs().mean()))
        printed.append(float((optimal_variance(decoder, z, **given) / best - 1).abs().mean()))
    assert slope(precisions, errors) == pytest.approx(-2, abs=0.05)
    assert slope(precisions, printed) == pytest.approx(-1, abs=0.05)


def test_the_term_that_equation_12_drops_is_as_large_as_the_one_of_the_prior_that_it_keeps():
    """f = z + 0.4 sin z: 1/σ² - γ² f'² does not tend to 1, the prior's curvature; at z = 0 it tends to 3/7."""
    z = torch.tensor([[0.0], [0.7], [2.0]], dtype=torch.float64)
    first, second, third = 1 + 0.4 * z.cos(), -0.4 * z.sin(), -0.4 * z.cos()
    offset = (-z - 1.5 * second / first) / first**2  # times γ²
    expected = 1 + 3 * first * second * offset + 0.5 * (3 * second**2 + 4 * first * third) / first**2
    for precision in (1e4, 1e5):
        best = project(lambda z: z + 0.4 * z.sin(), z + 0.4 * z.sin(), precision=precision, start=z).variance
        torch.testing.assert_close(1 / best - precision * first**2, expected, rtol=20 / precision, atol=0)
    assert float(expected[0]) == pytest.approx(3 / 7)


def test_linear_decoders_are_exact_and_points_outside_the_assumptions_are_nan():
    W = torch.tensor([[1.0, 0.5], [0.0, 1.0], [0.3, 0.0]], dtype=torch.float64)
    z = torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = next_variance(lambda z: z @ W.T, z, precision=0.3)
    torch.testing.assert_close(found, vs.theory.linear.optimal_variance(W, 0.3).expand(3, 2))
    flat = next_variance(lambda z: z.sum(1, keepdim=True).square().expand(-1, 3), z, precision=10.0)
    assert flat.isnan().all()
    with pytest.raises(vs.InputError, match="unbounded"):
        next_variance(lambda z: z, 0.1 * z, precision=1.0, prior=vs.Uniform(-1.0, 1.0))
