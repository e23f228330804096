"""Intervals, floors, cautions and refusals, for every metric."""

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope import metrics
from vaescope.metrics.planted import classes, continuous

METRICS = {
    "mcc": metrics.mcc,
    "linear_r2": metrics.linear_r2,
    "dci": metrics.dci,
    "mig": metrics.mig,
    "mig_sup": metrics.mig_sup,
    "sap": metrics.sap,
    "infomec": metrics.infomec,
    "modularity_explicitness": metrics.modularity_explicitness,
    "factor_vae_score": metrics.factor_vae_score,
    "beta_vae_score": metrics.beta_vae_score,
    "irs": metrics.irs,
    "amari": metrics.amari,
}


def noisy(factors, scale=0.5, seed=2):
    return factors + scale * factors.std(0) * np.random.default_rng(seed).normal(size=factors.shape)


@pytest.mark.parametrize("measure", METRICS.values(), ids=METRICS)
def test_the_interval_holds_the_score_and_the_floor_lies_apart(measure):
    factors = classes(400)
    result = measure(noisy(factors), factors)
    for name, score in result.scores.items():
        low, high = result.intervals[name]
        assert low <= score <= high
        assert high - low < 0.5
        assert np.isfinite(result.floors[name])
    assert max(high - low for low, high in result.intervals.values()) > 0
    assert result.interval == result.intervals[next(iter(result.scores))]
    assert result.per_factor.shape == (3,)
    assert measure(noisy(factors), factors).interval == result.interval  # reproducible


def test_intervals_cover_the_truth():
    """Correlation 1/√(1 + ¼) by construction: about 95 of 100 intervals hold it."""
    truth = 1 / np.sqrt(1.25)
    hits = 0
    for seed in range(100):
        factors = np.random.default_rng(seed).normal(size=(300, 3))
        codes = factors + 0.5 * np.random.default_rng(1000 + seed).normal(size=factors.shape)
        low, high = metrics.mcc(codes, factors).interval
        hits += low <= truth <= high
    assert 88 <= hits <= 100


@pytest.mark.parametrize("measure", METRICS.values(), ids=METRICS)
def test_rows_may_come_in_any_order_and_from_torch(measure):
    factors = classes(400)
    codes = noisy(factors)
    order = np.random.default_rng(5).permutation(400)
    plain = measure(codes, factors).score
    assert measure(torch.from_numpy(codes), torch.from_numpy(factors)).score == plain
    assert measure(codes[order], factors[order]).score == pytest.approx(plain, abs=0.12)  # other halves


@pytest.mark.parametrize("measure", METRICS.values(), ids=METRICS)
@pytest.mark.parametrize(
    ("codes", "factors", "message"),
    [
        (np.zeros((50, 3)), np.zeros((60, 3)), "got 50 and 60 rows"),
        (np.full((50, 3), np.nan), np.zeros((50, 3)), "codes must be finite, got nan in row 0, column 0"),
        (np.zeros((50, 3)), np.full((50, 3), np.inf), "factors must be finite, got inf"),
        (np.array([["a"] * 3] * 50), np.zeros((50, 3)), "codes must be numbers"),
        (np.zeros((50, 3)), np.array([["a"] * 3] * 50), "factors must be numbers"),
        (np.zeros((1, 3)), np.zeros((1, 3)), "samples, got 1"),
        (np.zeros(50), np.zeros((50, 3)), "codes must have a row per sample and a column per code"),
        (np.zeros((50, 0)), np.zeros((50, 3)), "codes must have a row per sample"),
        (np.zeros((50, 3)), np.ones((50, 3)), "factor 0 has the same value in every sample; leave it out"),
    ],
)
def test_bad_input_is_refused(measure, codes, factors, message):
    with pytest.raises(vs.InputError, match=message):
        measure(codes, factors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, f: (np.column_stack([c, np.ones(len(c))]), f), "latent 3 is constant"),
        (lambda c, f: (np.zeros_like(c), f), "every latent is constant"),
        (lambda c, f: (c, np.column_stack([f, f[:, 0] + 0.1 * c[:, 1]])), "factors 0 and 3 are correlated"),
        (lambda c, f: (c[:60], f[:60]), "only 60 samples"),
    ],
)
def test_violated_assumptions_are_said(change, message):
    factors = classes(400)
    table = metrics.evaluate(*change(noisy(factors), factors), intervals=False)
    assert any(message in note for note in table.warnings)


def test_rare_classes_and_crowded_bins_are_said():
    factors = classes(400)
    factors[:3, 0] = 17
    assert any("factor 0 has a class with only 3 samples" in note for note in metrics.dci(factors, factors).warnings)
    spiky = np.random.default_rng(0).standard_cauchy((400, 3))
    assert any("binning='mass'" in note for note in metrics.mig(spiky, factors).warnings)
    assert not metrics.mig(spiky, classes(400), binning="mass").warnings


def test_a_healthy_table_has_no_warnings():
    factors = continuous(1000)
    assert metrics.evaluate(noisy(factors), factors, intervals=False).warnings == ()


def test_kinds_of_factors_are_seen_and_can_be_said():
    factors = np.column_stack([continuous(500)[:, 0], classes(500)[:, 0]])
    codes = noisy(factors, 0.1)
    assert metrics.inputs.data(codes, factors).discrete == (False, True)
    assert metrics.dci(codes, factors, discrete=False).score != metrics.dci(codes, factors).score
    with pytest.raises(vs.InputError, match="an entry per factor, 2, got 1"):
        metrics.mig(codes, factors, discrete=[True])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v: metrics.mig(v, v, estimator="magic"), "binned or neighbours"),
        (lambda v: metrics.mig(v, v, binning="log"), "width or mass"),
        (lambda v: metrics.dci(v, v, model="lasso"), "forest or boosted"),
        (lambda v: metrics.sap(v, v, classifier="knn"), "thresholds or svm"),
        (lambda v: metrics.mig_sup(v, v, active=[True]), "each of 3 latents"),
        (lambda v: metrics.amari(v[:, :1], v), "a latent for each, got 1 latents and 3 factors"),
        (lambda v: metrics.amari_distance(v), "square matrix"),
        (lambda v: metrics.evaluate(v[:30], v[:30]), "at least 40 samples, got 30"),
    ],
)
def test_bad_options_are_refused(call, message):
    with pytest.raises(vs.InputError, match=message):
        call(classes(100))


@pytest.mark.parametrize("measure", METRICS.values(), ids=METRICS)
def test_a_large_offset_does_not_hide_a_latent(measure):
    factors = classes(400)
    codes = noisy(factors)
    assert measure(codes + 1e7, factors).score == pytest.approx(measure(codes, factors).score, abs=0.02)


def test_only_active_latents_count_for_mig_sup():
    factors = classes(600)
    codes = np.hstack([factors, np.random.default_rng(0).normal(size=(600, 2))])
    every, active = metrics.mig_sup(codes, factors), metrics.mig_sup(codes, factors, active=[True] * 3 + [False] * 2)
    assert active.score > 0.9 > 0.7 > every.score


def test_the_table_reads_well():
    factors = classes(200)
    table = metrics.evaluate(noisy(factors), factors)
    text, html = str(table), table._repr_html_()
    assert "DCI completeness" in text
    assert " to " in text
    assert html.count("<tr>") == len(table.rows) + 1
    assert all(row["low"] <= row["score"] <= row["high"] for row in table.rows)
