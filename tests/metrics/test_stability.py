"""Agreement between models, without factors."""

import numpy as np
import pytest

import vaescope as vs
from vaescope.metrics import stability, udr


@pytest.fixture
def codes():
    return np.random.default_rng(0).normal(size=(500, 3))


def rotation():
    c = np.sqrt(0.5)
    return np.array([[c, c, 0.0], [-c, c, 0.0], [0.0, 0.0, 1.0]])


@pytest.mark.parametrize("measure", [stability, udr])
def test_relabelled_copies_agree_and_independent_codes_do_not(measure, codes):
    copies = [codes, -2 * codes[:, [2, 0, 1]], codes + 0.01]
    independent = [np.random.default_rng(seed).normal(size=(500, 3)) for seed in range(3)]
    same, other = measure(copies), measure(independent)
    assert same.score > 0.85
    assert other.score < 0.1
    assert other.score == pytest.approx(other.floor, abs=0.05)
    assert same.pairs.shape == (3, 3)
    assert same.per_member.shape == (3,)
    low, high = same.interval
    assert low <= same.score <= high


@pytest.mark.parametrize("measure", [stability, udr])
def test_the_model_that_disagrees_is_identified(measure, codes):
    result = measure([codes, codes[:, ::-1], codes @ rotation(), 3 * codes])
    assert result.per_member.argmin() == 2
    assert stability([codes, codes @ rotation()]).score == pytest.approx((2 * np.sqrt(0.5) + 1) / 3, abs=0.03)


def test_unmatched_latents_count_as_zero(codes):
    wide = np.hstack([codes, np.zeros((500, 4))])
    assert stability([codes, wide]).score == pytest.approx(1.0)  # constant latents are not active
    assert stability([codes, codes[:, :2]]).score == pytest.approx(2 / 3)
    masked = stability([codes, codes[:, :2]], active=[[True, True, False], None])
    assert masked.score == pytest.approx(1.0)
    collapsed = stability([codes, np.zeros((500, 3))])
    assert collapsed.score == 0.0
    assert "model 1 has no active latent." in collapsed.warnings


def test_udr_by_hand(codes):
    """Two identical models of two uncorrelated latents: each latent is similar to exactly one of the other model."""
    one = np.linalg.qr(codes[:, :2] - codes[:, :2].mean(0))[0]
    assert udr([one, one], method="pearson").score == pytest.approx(1.0, abs=1e-9)
    repeated = np.hstack([one, one])  # each latent of the small model has two matches: r² / Σr = 1/2
    assert udr([one, repeated], method="pearson").score == pytest.approx((2 * 0.5 + 4 * 1.0) / 6, abs=1e-9)


@pytest.mark.parametrize(
    ("members", "options", "message"),
    [
        ([np.zeros((50, 2))], {}, "at least two models, got 1"),
        ([np.zeros((50, 2)), np.zeros((40, 2))], {}, "model 0 has 50, model 1 has 40"),
        ([np.zeros((5, 2))] * 2, {}, "at least 20 samples"),
        ([np.zeros((50, 2))] * 2, {"active": [None]}, "entry per model, 2, got 1"),
        ([np.zeros((50, 2))] * 2, {"active": [[True], None]}, "each of 2 latents"),
        ([np.zeros((50, 2))] * 2, {"method": "x"}, "method must be one of pearson, spearman"),
    ],
)
def test_bad_input_is_rejected(members, options, message):
    with pytest.raises(vs.InputError, match=message):
        stability(members, **options)
