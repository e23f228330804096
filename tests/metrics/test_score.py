"""Intervals, floors, warnings and errors of every metric."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import vaescope as vs
from tests.metrics.planted import classes, continuous
from vaescope import metrics
from vaescope.metrics.information import bin_indices
from vaescope.metrics.inputs import read_inputs

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
def test_the_interval_contains_the_score(measure):
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
    """The correlation is 1/√(1 + ¼) by construction: about 95 of 100 intervals contain it."""
    truth = 1 / np.sqrt(1.25)
    hits = 0
    for seed in range(100):
        factors = np.random.default_rng(seed).normal(size=(300, 3))
        codes = factors + 0.5 * np.random.default_rng(1000 + seed).normal(size=factors.shape)
        low, high = metrics.mcc(codes, factors).interval
        hits += low <= truth <= high
    assert 88 <= hits <= 100


def covered(measure, draw, truth, *, runs=20):
    intervals = [measure(*draw(seed)).interval for seed in range(runs)]
    return sum(low <= truth <= high for low, high in intervals)


def test_intervals_of_biased_estimates_cover_the_truth():
    """MIG from 20 bins is biased downwards with few samples; its interval includes the bias."""

    def draw(seed, count=1000):
        rng = np.random.default_rng(seed)
        factors = rng.normal(size=(count, 3))
        return factors + 0.5 * rng.normal(size=factors.shape), factors

    def mig(codes, factors):
        return metrics.mig(codes, factors, binning="mass")

    truth = mig(*draw(99, 200_000)).score
    assert abs(mig(*draw(0)).score - truth) > 0.01  # the bias
    assert covered(mig, draw, truth) >= 17
    assert any("interval does not cover the bias" in note for note in mig(*draw(0, 300)).warnings)


@pytest.mark.parametrize("measure", METRICS.values(), ids=METRICS)
def test_row_order_and_torch_tensors(measure):
    factors = classes(400)
    codes = noisy(factors)
    order = np.random.default_rng(5).permutation(400)
    plain = measure(codes, factors).score
    assert measure(torch.from_numpy(codes), torch.from_numpy(factors)).score == plain
    assert measure(codes[order], factors[order]).score == pytest.approx(plain, abs=0.12)  # other samples in the halves


@pytest.mark.parametrize("measure", METRICS.values(), ids=METRICS)
@pytest.mark.parametrize(
    ("codes", "factors", "message"),
    [
        (np.zeros((50, 3)), np.zeros((60, 3)), "codes has 50, factors has 60"),
        (np.full((50, 3), np.nan), np.zeros((50, 3)), "codes must be finite, got NaN or infinity in 50 of 50 rows"),
        (np.zeros((50, 3)), np.full((50, 3), np.inf), "factors must be finite, got NaN or infinity"),
        (np.array([["a"] * 3] * 50), np.zeros((50, 3)), "codes must be an array of numbers, got text"),
        (np.zeros((50, 3)), np.array([["a"] * 3] * 50), "factors must be an array of numbers, got text"),
        (np.zeros((1, 3)), np.zeros((1, 3)), "samples, got 1"),
        (np.zeros(50), np.zeros((50, 3)), "codes must have a row per sample"),
        (np.zeros((50, 0)), np.zeros((50, 3)), "codes must have at least one row and one column"),
        (np.zeros((50, 3)), np.ones((50, 3)), "factor 0 has the same value in every sample; remove it"),
    ],
)
def test_bad_input_is_rejected(measure, codes, factors, message):
    with pytest.raises(vs.InputError, match=message):
        measure(codes, factors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, f: (np.column_stack([c, np.ones(len(c))]), f), "latent 3 is constant and counts as uninformative"),
        (lambda c, f: (np.zeros_like(c), f), "every latent is constant"),
        (lambda c, f: (c, np.column_stack([f, f[:, 0] + 0.1 * c[:, 1]])), "factors 0 and 3 are correlated"),
        (lambda c, f: (c[:60], f[:60]), "only 60 samples"),
    ],
)
def test_violated_assumptions_give_warnings(change, message):
    factors = classes(400)
    table = metrics.evaluate(*change(noisy(factors), factors), intervals=False)
    assert any(message in note for note in table.warnings)


def test_small_classes_and_overfull_bins_give_warnings():
    factors = classes(400)
    factors[:3, 0] = 17
    assert any("factor 0 has a class with only 3 samples" in note for note in metrics.dci(factors, factors).warnings)
    spiky = np.random.default_rng(0).standard_cauchy((400, 3))
    assert any("binning='mass'" in note for note in metrics.mig(spiky, factors).warnings)
    assert not metrics.mig(spiky, classes(400), binning="mass").warnings


def test_a_healthy_table_has_no_warnings():
    factors = continuous(1000)
    assert metrics.evaluate(noisy(factors), factors, intervals=False).warnings == ()


def test_discrete_factors_are_detected_or_specified():
    factors = np.column_stack([continuous(500)[:, 0], classes(500)[:, 0]])
    codes = noisy(factors, 0.1)
    assert read_inputs(codes, factors).discrete == (False, True)
    assert metrics.dci(codes, factors, discrete=False).score != metrics.dci(codes, factors).score
    with pytest.raises(vs.InputError, match="an entry per factor, 2, got 1"):
        metrics.mig(codes, factors, discrete=[True])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda v: metrics.mig(v, v, estimator="magic"), "estimator must be one of binned, neighbours"),
        (lambda v: metrics.mig(v, v, binning="log"), "binning must be one of width, mass"),
        (lambda v: metrics.dci(v, v, model="lasso"), "model must be one of forest, boosted"),
        (lambda v: metrics.sap(v, v, classifier="knn"), "classifier must be one of thresholds, svm"),
        (lambda v: metrics.mig_sup(v, v, active=[True]), "each of 3 latents"),
        (lambda v: metrics.amari(v[:, :1], v), "a latent for each, got 1 latents and 3 factors"),
        (lambda v: metrics.evaluate(v[:30], v[:30]), "at least 40 samples, got 30"),
    ],
)
def test_bad_options_are_rejected(call, message):
    with pytest.raises(vs.InputError, match=message):
        call(classes(100))


@pytest.mark.parametrize("measure", METRICS.values(), ids=METRICS)
def test_a_large_offset_does_not_matter(measure):
    factors = classes(400)
    codes = noisy(factors)
    assert measure(codes + 1e7, factors).score == pytest.approx(measure(codes, factors).score, abs=0.02)


@pytest.mark.parametrize("scale", [1e-300, 1e160, 1e300])
@pytest.mark.parametrize("measure", METRICS.values(), ids=METRICS)
def test_units_do_not_matter(measure, scale):
    factors = classes(200)
    codes = noisy(factors)
    plain = measure(codes, factors).score
    assert measure(codes * scale, factors).score == pytest.approx(plain, abs=0.02)
    assert measure(codes * [scale, 1.0, 1.0], factors).score == pytest.approx(plain, abs=0.02)


EDGE_CASES = {
    "a class of one sample": lambda r: (
        r.normal(size=(300, 2)),
        np.column_stack([r.integers(0, 4, 300), np.arange(300) == 7]),
    ),
    "a latent that is almost always zero": lambda r: (
        np.column_stack([r.normal(size=300), np.arange(300) == 7]),
        r.integers(0, 4, (300, 2)),
    ),
    "forty samples": lambda r: (r.normal(size=(40, 2)), r.integers(0, 2, (40, 2))),
    "a factor that is mostly zero": lambda r: (
        r.normal(size=(600, 2)),
        np.column_stack([r.normal(size=600), np.where(r.random(600) < 0.95, 0.0, r.random(600))]),
    ),
    "more latents than samples": lambda r: (r.normal(size=(40, 50)), r.integers(0, 3, (40, 2))),
    "many ties": lambda r: (r.integers(0, 3, (300, 2)), r.integers(0, 3, (300, 2))),
}


SLOW = {"more latents than samples"}


@pytest.mark.parametrize("case", [pytest.param(c, marks=[pytest.mark.long] if c in SLOW else []) for c in EDGE_CASES])
def test_edge_cases_give_finite_scores(case):
    codes, factors = EDGE_CASES[case](np.random.default_rng(0))
    for row in metrics.evaluate(codes, factors).rows:
        assert np.isfinite([row["score"], row["floor"], row["low"], row["high"]]).all(), row
        assert row["low"] <= row["score"] <= row["high"]


def test_few_samples_per_latent_and_repeated_rows_give_warnings():
    rng = np.random.default_rng(0)
    wide = metrics.linear_r2(rng.normal(size=(60, 30)), rng.normal(size=(60, 2)))
    assert any("30 latents for 60 samples" in note for note in wide.warnings)
    rows = np.repeat(rng.normal(size=(40, 4)), 10, axis=0)
    assert any("only 40 of 400 rows are distinct" in note for note in metrics.mcc(rows[:, :2], rows[:, 2:]).warnings)


def test_noise_has_no_modularity():
    """Uniform noise fills all bins, which gives the largest bias of plug-in information."""
    scores = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        scores.append(metrics.infomec(rng.uniform(size=(500, 4)), rng.uniform(size=(500, 3))).modularity)
    assert np.count_nonzero(scores) <= 1
    few = continuous(60)
    assert metrics.infomec(few, few).modularity > 0.9


def test_a_frequent_value_gets_its_own_bin():
    values = np.concatenate([np.zeros(900), np.linspace(0.1, 1, 100)])
    assert len(np.unique(bin_indices(values, "mass"))) >= 2
    assert len(np.unique(bin_indices(-values, "mass"))) >= 2


def test_neighbour_estimates_of_mig_are_at_most_one():
    factors = continuous(300)
    result = replace(metrics.mig(factors, factors, estimator="neighbours"), resamples=10)  # each is slow
    assert 0.5 < result.score <= 1
    low, high = result.interval
    assert low <= result.score <= high


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ([[1, 2], [3]] * 20, "rows of different lengths"),
        (torch.zeros(40, 2, dtype=torch.complex64), "codes must be real"),
        ([["a", 1.0]] * 40, "must be an array of numbers"),
    ],
)
def test_unreadable_arrays_are_rejected(codes, message):
    with pytest.raises(vs.InputError, match=message):
        metrics.mcc(codes, classes(40)[:, :2])


def test_other_array_types(unchecked_shapes):
    factors = classes(200)
    codes = noisy(factors)
    plain = metrics.mcc(codes, factors).score
    assert metrics.mcc(torch.tensor(codes).bfloat16(), factors).score == pytest.approx(plain, abs=1e-3)
    assert metrics.mcc(list(torch.tensor(codes, requires_grad=True)), factors).score == pytest.approx(plain)
    assert metrics.mcc(codes.astype(object), factors).score == pytest.approx(plain)
    assert metrics.mig(codes, factors, discrete=np.True_).score == metrics.mig(codes, factors, discrete=True).score
    with pytest.raises(vs.InputError, match="an entry per factor"):
        metrics.mig(codes, factors, discrete=1)


@pytest.mark.parametrize("measure", [metrics.factor_vae_score, metrics.beta_vae_score])
def test_a_perfect_code_scores_high_with_few_samples(measure):
    factors = continuous(100)
    assert measure(factors, factors).score > 0.9


def test_only_active_latents_count_for_mig_sup():
    factors = classes(600)
    codes = np.hstack([factors, np.random.default_rng(0).normal(size=(600, 2))])
    every, active = metrics.mig_sup(codes, factors), metrics.mig_sup(codes, factors, active=[True] * 3 + [False] * 2)
    assert active.score > 0.9 > 0.7 > every.score


def test_the_table_as_text_and_html():
    factors = classes(200)
    table = metrics.evaluate(noisy(factors), factors)
    text, html = str(table), table._repr_html_()
    assert "DCI completeness" in text
    assert " to " in text
    assert html.count("<tr>") == len(table.rows) + 1
    assert all(row["low"] <= row["score"] <= row["high"] for row in table.rows)
