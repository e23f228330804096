"""Paired differences: intervals that cover known differences, simultaneously for all pairs."""

import numpy as np
import pytest
import torch

from vaescope import theory
from vaescope.products.compare.measure import find_failures, paired_differences

DRAWS = 1000


def linear_models(seed):
    """Three linear VAEs, and the covariance of the data."""
    generator = torch.Generator().manual_seed(seed)
    models = [(torch.randn(4, 2, generator=generator, dtype=torch.float64), precision) for precision in (2.0, 3.0, 5.0)]
    root = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    return models, root @ root.T + 0.3 * torch.eye(4).double()


def expected_log_likelihood(W, precision, covariance):
    own = W @ W.T + torch.eye(len(W)).double() / precision
    fit = torch.linalg.solve(own, covariance).trace() + torch.linalg.slogdet(own).logabsdet
    return -0.5 * float(fit + len(W) * np.log(2 * np.pi))


def known_differences(seed, samples):
    """Paired differences of many draws, and the truth."""
    models, covariance = linear_models(seed)
    truth = np.array([expected_log_likelihood(*model, covariance) for model in models])
    noise = torch.randn(DRAWS * samples, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = noise @ torch.linalg.cholesky(covariance).T
    values = torch.stack([theory.linear.log_likelihood(x, *model) for model in models], 1).numpy()
    return [paired_differences(part) for part in np.split(values, DRAWS)], truth[:, None] - truth[None]


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("samples", [60, 200])
def test_known_differences_are_covered_in_95_percent_of_draws(samples, seed):
    """Their skewness is up to 2.8: Student's quantile alone covers 92 % with 60 samples."""
    found, truth = known_differences(seed, samples)
    inside = np.mean([np.abs(p.difference - truth) <= p.half_width for p in found], axis=0)
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert 0.93 <= inside[i, j] <= 0.97


def test_intervals_and_p_values_say_the_same():
    rng = np.random.default_rng(0)
    for _ in range(50):
        found = paired_differences(rng.exponential(size=(30, 2)) * np.array([1.0, 1.5]))
        assert found.indistinguishable[0, 1] == (abs(found.difference[0, 1]) <= found.half_width[0, 1])


def test_p_values_hold_for_all_pairs_together():
    """Without a difference, one of the pairs is called different in 5 % of draws; with single tests in more."""
    rng = np.random.default_rng(0)
    wrong, naive = [], []
    for _ in range(200):
        common, own = rng.normal(size=(60, 1)), rng.normal(size=(60, 6))
        drawn = paired_differences(common + own)
        wrong.append(not drawn.indistinguishable.all())
        naive.append((np.abs(drawn.difference) > drawn.half_width).any())
    assert np.mean(wrong) == pytest.approx(0.05, abs=0.04)
    assert np.mean(naive) > 0.2


def test_pairing_removes_what_is_hard_for_both():
    rng = np.random.default_rng(0)
    hard = 100 * rng.normal(size=(200, 1))
    found = paired_differences(hard + np.array([0.0, 0.5]) + 0.1 * rng.normal(size=(200, 2)))
    assert found.difference[1, 0] == pytest.approx(0.5, abs=0.05)
    assert not found.indistinguishable[0, 1]
    assert found.stderr[0, 1] < 0.02


@pytest.mark.parametrize("count", [2, 3, 5])
def test_copies_are_indistinguishable(count):
    values = np.repeat(np.random.default_rng(0).normal(size=(50, 1)), count, axis=1)
    found = paired_differences(values)
    assert (found.difference == 0).all()
    assert (found.stderr == 0).all()
    assert found.indistinguishable.all()


def test_the_order_of_models_does_not_matter():
    values = np.random.default_rng(0).normal(size=(80, 4)) + np.array([0.0, 0.1, 0.2, 0.6])
    order = [2, 0, 3, 1]
    first, second = paired_differences(values), paired_differences(values[:, order])
    for name in ("difference", "stderr", "p_value"):
        np.testing.assert_allclose(getattr(second, name), getattr(first, name)[np.ix_(order, order)], atol=1e-12)


def test_failures_are_those_of_the_lowest_values():
    values = np.tile(np.arange(200.0)[:, None], (1, 2))
    found = find_failures(values, np.arange(1000, 1200))
    assert found.common.tolist() == list(range(1000, 1010))
    assert found.rank_correlation[0, 1] == pytest.approx(1.0)
