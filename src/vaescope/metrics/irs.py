"""Interventional robustness: is a latent unaffected by changes of all factors but one?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from vaescope.metrics.information import factor_classes
from vaescope.metrics.input_warnings import input_warnings
from vaescope.metrics.inputs import CodesAndFactors, is_varying, read_inputs, standardise
from vaescope.metrics.mig import mean_by_best_factor
from vaescope.metrics.score import MetricValues, Score

DEVIATION_QUANTILE = 0.99  # instead of the maximum, which depends on outliers


def irs(codes: object, factors: object, *, discrete: bool | Sequence[bool] | None = None) -> Score:
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
    return Score("IRS", _irs(inputs), partial(input_warnings, inputs, classes=True), _irs, inputs, resamples=50)


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
    """`np.quantile` along the first axis, without its overhead."""
    place = DEVIATION_QUANTILE * (len(deviations) - 1)
    below = int(place)
    above = min(below + 1, len(deviations) - 1)
    ordered = np.partition(deviations, (below, above), axis=0)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
