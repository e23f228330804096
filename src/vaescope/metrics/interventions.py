"""FactorVAE and β-VAE scores: fix one factor, vary the others, and predict from the codes which factor was fixed.

Rows with the same value of a factor are used instead of a simulator, so that arrays are sufficient. Continuous factors
are cut into classes of equal mass: twenty, or fewer if there are few samples.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from vaescope.metrics.information import DEFAULT_BINS, factor_classes, mean_by_best_factor
from vaescope.metrics.informativeness import LogisticRegression
from vaescope.metrics.inputs import CodesAndFactors, Discrete, input_warnings, is_varying, read_inputs, standardise
from vaescope.metrics.score import MetricValues, Score

VOTES = 800  # for fitting, and as many for scoring
Half = tuple[np.ndarray, np.ndarray]
"""Standardised codes and class numbers of one half of the samples."""


def factor_vae_score(codes: object, factors: object, *, discrete: Discrete = None) -> Score:
    """Accuracy of predicting the fixed factor from the index of the latent with the lowest variance (Kim & Mnih 2018).

    The predictor is a majority vote per latent, fitted on one half and scored on the other. Chance is one over the
    number of factors. It does not penalise a factor that is encoded by several latents.

    Args:
        codes: (N, d).
        factors: (N, k).
        discrete: which factors are classes; by default those with few distinct values.
    """
    inputs = read_inputs(codes, factors, discrete=discrete, minimum=40)
    return Score("FactorVAE score", _factor_vae, inputs, partial(input_warnings, classes=True), resamples=50)


def beta_vae_score(codes: object, factors: object, *, discrete: Discrete = None) -> Score:
    """Held-out accuracy of predicting the fixed factor from differences of codes (Higgins et al. 2017).

    A linear classifier sees the mean absolute difference of codes between pairs of rows with the same value of one
    factor. It is the most lenient metric: high for many rotated or duplicated codes.

    Args:
        codes: (N, d).
        factors: (N, k).
        discrete: which factors are classes; by default those with few distinct values.
    """
    inputs = read_inputs(codes, factors, discrete=discrete, minimum=40)
    return Score("β-VAE score", _beta_vae, inputs, partial(input_warnings, classes=True), resamples=20, shuffles=5)


def _factor_vae(inputs: CodesAndFactors) -> MetricValues:
    varying, count = is_varying(inputs.codes), inputs.factor_count
    if not varying.any():
        return _accuracy(np.zeros(VOTES, int), np.arange(VOTES) % count, count)
    (latent, fixed), (test_latent, test_fixed) = (
        _least_varying_latent(half, varying, seed) for seed, half in enumerate(_halves(inputs))
    )
    votes = np.zeros((inputs.latents, count))
    np.add.at(votes, (latent, fixed), 1)
    return _accuracy(votes.argmax(1)[test_latent], test_fixed, count)


def _beta_vae(inputs: CodesAndFactors) -> MetricValues:
    (x, fixed), (x_test, test_fixed) = (_differences(half, seed) for seed, half in enumerate(_halves(inputs)))
    if inputs.factor_count == 1:
        return _accuracy(test_fixed, test_fixed, 1)
    scale = x.std(0) + 1e-12
    model = LogisticRegression(x / scale, fixed, inputs.factor_count)
    return _accuracy(model.probabilities(x_test / scale).argmax(1), test_fixed, inputs.factor_count)


def _accuracy(predicted: np.ndarray, truth: np.ndarray, count: int) -> MetricValues:
    correct = predicted == truth
    per_factor = np.array([correct[truth == k].mean() for k in range(count)])
    return MetricValues({"accuracy": float(correct.mean())}, per_factor)


def _halves(inputs: CodesAndFactors) -> tuple[Half, Half]:
    middle = (inputs.samples + 1) // 2
    bins = int(np.clip(middle // 10, 2, DEFAULT_BINS))
    codes, labels = standardise(inputs.codes), factor_classes(inputs, binning="mass", bins=bins)
    return (codes[:middle], labels[:middle]), (codes[middle:], labels[middle:])


def _least_varying_latent(half: Half, varying: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """For every vote of 64 rows, the latent with the lowest variance and the factor that was fixed."""
    codes, labels = half
    rows, fixed = rows_with_fixed_factor(labels, 64, np.random.default_rng(seed))
    chosen = codes[rows]
    centred = chosen - chosen[:, :1]  # no sample is far from another one of the same class
    mean_square, mean = np.einsum("vrd,vrd->vd", centred, centred) / rows.shape[1], centred.mean(1)
    variance = np.where(varying, mean_square - mean * mean, np.inf)
    return variance.argmin(1), fixed


def _differences(half: Half, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """For every vote, the mean absolute difference of codes between 32 pairs and the factor that was fixed."""
    codes, labels = half
    rows, fixed = rows_with_fixed_factor(labels, 2, np.random.default_rng(seed), repeats=32)
    pairs = codes[rows]
    differences = np.abs(pairs[:, 0] - pairs[:, 1]).reshape(32, VOTES, -1)
    return differences.mean(0), fixed[:VOTES]


def rows_with_fixed_factor(
    labels: np.ndarray, count: int, rng: np.random.Generator, *, repeats: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Random groups of rows with the same class of one factor.

    Args:
        labels: class numbers (N, k).
        count: rows per group; the first two are different rows.
        rng: random generator.
        repeats: groups per vote.

    Returns:
        Row indices (repeats · votes, count) and the fixed factor of every group; classes occur as often as in the data.
    """
    fixed = np.tile(np.arange(VOTES) % labels.shape[1], repeats)
    rows = np.empty((len(fixed), count), int)
    for k in range(labels.shape[1]):
        order = np.argsort(labels[:, k], kind="stable")
        _, start, size = np.unique(labels[order, k], return_index=True, return_counts=True)
        weight = np.where(size > 1, size, 0.0)
        groups = np.flatnonzero(fixed == k)
        weight = weight / weight.sum() if weight.any() else np.full(len(size), 1 / len(size))
        chosen = rng.choice(len(size), len(groups), p=weight)
        offsets = (rng.random((len(groups), count)) * size[chosen, None]).astype(int)
        steps = 1 + (rng.random(len(groups)) * (size[chosen] - 1)).astype(int)
        offsets[:, 1] = (offsets[:, 0] + steps) % size[chosen]  # a row different from the first
        rows[groups] = order[start[chosen, None] + offsets]
    return rows, fixed


def irs(codes: object, factors: object, *, discrete: Discrete = None) -> Score:
    """Interventional robustness score (Suter et al. 2019), averaged over latents that vary.

    For every latent and factor: 1 - the largest deviation of the latent from its mean among samples with the same value
    of the factor, relative to its largest deviation overall; the best factor counts. The largest deviation is the 99th
    percentile, classes are weighted by size, and codes are standardised first, so that the scale of a latent does not
    matter. Public code does not weight or standardise, and divides by the maximum.

    Args:
        codes: (N, d).
        factors: (N, k).
        discrete: which factors are classes; by default those with few distinct values.

    >>> v = np.random.default_rng(0).integers(0, 4, (1000, 2))
    >>> round(irs(v, v).score, 6)
    1.0
    """
    inputs = read_inputs(codes, factors, discrete=discrete)
    return Score("IRS", _irs, inputs, partial(input_warnings, classes=True), resamples=50)


def _irs(inputs: CodesAndFactors) -> MetricValues:
    codes, varying = standardise(inputs.codes), is_varying(inputs.codes)
    labels = factor_classes(inputs, binning="mass")
    overall = _largest(np.abs(codes))
    overall = np.where(overall > 0, overall, np.where(varying, np.abs(codes).max(axis=0), 1.0))
    within = np.column_stack([_deviation_within_classes(codes, column) for column in labels.T])
    robustness = np.where(varying[:, None], (1 - within / overall[:, None]).clip(0.0, 1.0), 0.0)
    per_latent = robustness.max(1)
    score = float(per_latent[varying].mean()) if varying.any() else 0.0
    per_factor = mean_by_best_factor(per_latent, robustness, varying)
    return MetricValues({"irs": score}, per_factor, {"per_latent": per_latent})


def _deviation_within_classes(codes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Largest deviation (d,) from the class mean, averaged over classes with their sizes as weights."""
    total = np.zeros(codes.shape[1])
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels))
    for inside in filter(len, np.split(codes[order], ends[:-1])):
        total += len(inside) * _largest(np.abs(inside - inside.mean(0)))
    return total / len(codes)


def _largest(deviations: np.ndarray) -> np.ndarray:
    """The 99th percentile, which depends less on outliers than the maximum: `np.quantile` without its overhead."""
    place = 0.99 * (len(deviations) - 1)
    below = int(place)
    above = min(below + 1, len(deviations) - 1)
    ordered = np.partition(deviations, (below, above), axis=0)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
