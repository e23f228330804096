"""Likelihoods against torch.distributions, and the precision that maximises them."""

import torch
from torch import distributions as td

from vaescope.distributions.likelihoods import bernoulli_log_likelihood, gaussian_log_likelihood, optimal_precision


def test_gaussian_matches_torch():
    x, f = torch.randn(7, 4, dtype=torch.float64), torch.randn(7, 4, dtype=torch.float64)
    precision = torch.tensor(3.0, dtype=torch.float64)
    expected = td.Normal(f, precision**-0.5).log_prob(x).sum(-1)
    torch.testing.assert_close(gaussian_log_likelihood((x - f).square().sum(-1), 4, precision), expected)


def test_bernoulli_matches_torch():
    x, logits = torch.randint(0, 2, (7, 4)).double(), torch.randn(7, 4, dtype=torch.float64)
    torch.testing.assert_close(bernoulli_log_likelihood(x, logits), td.Bernoulli(logits=logits).log_prob(x).sum(-1))


def test_optimal_precision_maximises_the_likelihood():
    errors = torch.rand(50, dtype=torch.float64)
    best = optimal_precision(errors.mean(), 6)
    values = [float(gaussian_log_likelihood(errors, 6, best * factor).mean()) for factor in (0.9, 1.0, 1.1)]
    assert values[1] > max(values[0], values[2])
    slope = torch.func.grad(lambda p: gaussian_log_likelihood(errors, 6, p).mean())(best)
    assert abs(float(slope)) < 1e-12
