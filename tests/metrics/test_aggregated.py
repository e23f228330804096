"""MIG of posteriors against closed forms and binned MIG."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from vaescope.core.errors import InputError
from vaescope.metrics import aggregated_mig, mig

GRID = np.array(list(itertools.product(range(4), range(5), range(6), range(3))), dtype=float)


def test_separated_posteriors_have_all_information_about_their_factor():
    found = aggregated_mig(GRID[:, :3], np.full((len(GRID), 3), 1e-4), GRID[:, :3])
    assert found.score == pytest.approx(1, abs=1e-9)
    assert found.sup == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(found.mutual_information, np.diag(np.log([4, 5, 6])), atol=1e-9)


@pytest.mark.parametrize("sigma", [0.3, 0.6, 2.0])
def test_overlapping_posteriors_match_integration(sigma):
    """Two values at ±1: I = H(mixture) - H(normal), one integral."""
    v = np.repeat([-1.0, 1.0], 2000)[:, None]
    other = np.tile([0.0, 1.0], 2000)[:, None]

    def mixture(z):
        return 0.5 * (norm.pdf(z, -1, sigma) + norm.pdf(z, 1, sigma))

    entropy = quad(lambda z: -mixture(z) * math.log(mixture(z) + 1e-300), -15, 15, limit=200)[0]
    expected = entropy - norm(0, sigma).entropy()
    found = aggregated_mig(v, np.full_like(v, sigma**2), np.hstack([v, other]), draws=4000)
    assert found.mutual_information[0, 0] == pytest.approx(expected, abs=0.03)
    assert found.mutual_information[0, 1] == pytest.approx(0, abs=0.01)


def test_means_that_move_less_than_the_noise_have_no_information():
    """Binned means are a copy of the factor, but the posterior is far wider than their range."""
    codes = np.hstack([1e-3 * GRID[:, :1], GRID[:, 1:2]])
    variance = np.tile([1.0, 1e-4], (len(GRID), 1))
    found = aggregated_mig(codes, variance, GRID[:, :2])
    assert found.mutual_information[0].max() < 1e-4
    assert mig(codes, GRID[:, :2]).score > 0.98
    assert found.score < 0.51


def test_few_draws_match_many_and_two_copies_have_no_gap():
    codes = np.hstack([GRID[:, :1], GRID[:, :1]])
    few, many = (aggregated_mig(codes, np.full_like(codes, 0.2), GRID[:, :1], draws=n) for n in (200, 360))
    np.testing.assert_allclose(few.mutual_information, many.mutual_information, atol=0.1)
    assert abs(many.score) < 0.06


def test_only_active_latents_count_for_the_sup():
    codes = np.hstack([GRID[:, :1], np.zeros((len(GRID), 1))])
    variance = np.tile([1e-4, 1.0], (len(GRID), 1))
    assert aggregated_mig(codes, variance, GRID[:, :2]).sup == pytest.approx(0.5, abs=1e-6)
    assert aggregated_mig(codes, variance, GRID[:, :2], active=[True, False]).sup == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variance": -np.ones((360, 4))}, "variance must be > 0; pass variances, not log-variances"),
        ({"variance": np.ones((360, 2))}, "mean and variance must have the same shape"),
        ({"draws": 1}, "draws must be at least 2"),
        ({"active": [True]}, "active must hold True or False for each of 4 latents"),
        ({"factors": GRID[:9]}, "same number of rows"),
    ],
)
def test_bad_input_is_rejected(change, message):
    with pytest.raises(InputError, match=message):
        aggregated_mig(**{"mean": GRID, "variance": np.ones_like(GRID), "factors": GRID} | change)
