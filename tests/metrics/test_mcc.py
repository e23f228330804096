"""MCC and linear R² on codes with known answers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr

import vaescope as vs
from vaescope.metrics import linear_r2, mcc


@pytest.fixture
def factors():
    return np.random.default_rng(0).normal(size=(2000, 3))


def test_identity_is_perfect_and_noise_is_not(factors):
    assert mcc(factors, factors).score == pytest.approx(1.0)
    noise = np.random.default_rng(1).normal(size=(2000, 3))
    assert mcc(noise, factors).score < 0.1
    assert linear_r2(noise, factors).score < 0.02


@settings(max_examples=25)
@given(
    order=st.permutations(range(3)), scales=st.lists(st.floats(0.1, 10) | st.floats(-10, -0.1), min_size=3, max_size=3)
)
def test_order_sign_and_scale_do_not_matter(order, scales):
    factors = np.random.default_rng(0).normal(size=(300, 3))
    result = mcc(factors[:, order] * scales + 5.0, factors)
    assert result.score == pytest.approx(1.0)
    assert [order[latent] for latent in result.assignment] == [0, 1, 2]


def test_a_rotation_lowers_mcc_but_not_r2(factors):
    c = np.sqrt(0.5)
    rotated = factors @ np.array([[c, -c, 0.0], [c, c, 0.0], [0.0, 0.0, 1.0]])
    assert mcc(rotated, factors).score == pytest.approx((2 * c + 1) / 3, abs=0.02)
    assert linear_r2(rotated, factors).score == pytest.approx(1.0)


def test_only_spearman_is_invariant_to_monotone_maps(factors):
    mapped = np.exp(2 * factors)
    assert mcc(mapped, factors, method="spearman").score == pytest.approx(1.0)
    assert mcc(mapped, factors).score < 0.8


def test_correlations_match_scipy(factors):
    codes = factors + np.random.default_rng(2).normal(size=factors.shape)
    for method, reference in (("pearson", pearsonr), ("spearman", spearmanr)):
        expected = [abs(reference(codes[:, k], factors[:, k])[0]) for k in range(3)]
        np.testing.assert_allclose(mcc(codes, factors, method=method).per_factor, expected)


def test_more_and_fewer_latents_than_factors(factors):
    extra = np.random.default_rng(3).normal(size=(2000, 7))
    assert mcc(np.hstack([extra, factors]), factors).assignment.tolist() == [7, 8, 9]
    few = mcc(factors[:, :2], factors)
    assert few.score == pytest.approx(2 / 3)
    assert few.assignment.tolist() == [0, 1, -1]


def test_a_constant_latent_has_no_correlation(factors):
    codes = factors.copy()
    codes[:, 1] = 3.7
    result = mcc(codes, factors)
    assert result.per_factor[1] == 0
    assert result.score == pytest.approx(2 / 3)


def test_torch_and_numpy_agree(factors):
    codes = torch.from_numpy(factors).requires_grad_()
    assert mcc(codes, torch.from_numpy(factors)).score == mcc(factors, factors).score


@pytest.mark.parametrize(
    ("codes", "factors", "message"),
    [
        (np.zeros((3, 2)), np.zeros((4, 2)), "codes has 3, factors has 4"),
        (np.full((3, 2), np.nan), np.zeros((3, 2)), "codes must be finite"),
        (np.array([["a"], ["b"]]), np.zeros((2, 1)), "codes must be an array of numbers, got text"),
        (np.zeros((1, 2)), np.zeros((1, 2)), "at least 2 samples"),
        (np.zeros(3), np.zeros((3, 1)), "row per sample"),
    ],
)
def test_bad_input_is_rejected(codes, factors, message):
    with pytest.raises(vs.InputError, match=message):
        mcc(codes, factors)


def test_bad_method_and_constant_factor(factors):
    with pytest.raises(vs.InputError, match="method must be one of pearson, spearman"):
        mcc(factors, factors, method="kendall")
    with pytest.raises(vs.InputError, match="factor 0 has the same value in every sample"):
        linear_r2(factors, np.zeros((2000, 1)))
