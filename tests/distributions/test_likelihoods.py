"""Likelihoods against torch.distributions, and the precision that maximises them."""

import pytest
import torch
from torch import distributions as td

import vaescope as vs
from vaescope.distributions import bernoulli, check_precision, gaussian, optimal_precision


def test_gaussian_is_torchs():
    x, f = torch.randn(7, 4, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64)
    precision = torch.tensor(3.0, dtype=torch.float64)
    expected = td.Normal(f, precision**-0.5).log_prob(x).sum(-1)
    torch.testing.assert_close(gaussian((x - f).square().sum(-1), 4, precision), expected)


def test_bernoulli_is_torchs():
    x, logits = torch.randint(0, 2, (7, 4)).double(), torch.randn(7, 4, dtype=torch.float64)
    torch.testing.assert_close(bernoulli(x, logits), td.Bernoulli(logits=logits).log_prob(x).sum(-1))


def test_the_optimal_precision_is_optimal():
    errors = torch.rand(50, dtype=torch.float64)
    best = optimal_precision(errors.mean(), 6)
    at = [float(gaussian(errors, 6, best * factor).mean()) for factor in (0.9, 1.0, 1.1)]
    assert at[1] > max(at[0], at[2])
    slope = torch.func.grad(lambda p: gaussian(errors, 6, p).mean())(best)
    assert abs(float(slope)) < 1e-12


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), "high", None])
def test_bad_precisions_are_refused(bad):
    with pytest.raises(vs.InputError, match="precision must be"):
        check_precision(bad)
