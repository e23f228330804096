"""Linear R²: how well can every factor be predicted linearly from all latents?"""

from __future__ import annotations

from functools import partial

import numpy as np

from vaescope.metrics.input_warnings import input_warnings
from vaescope.metrics.inputs import CodesAndFactors, read_inputs, standardise
from vaescope.metrics.score import MetricValues, Score


def linear_r2(codes: object, factors: object) -> Score:
    """Held-out R² of a least-squares fit of every factor on all latents, averaged over factors.

    Fitted on each half and scored on the other. It is negative if the prediction is worse than the mean.

    Args:
        codes: (N, d).
        factors: (N, k).

    >>> z = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(linear_r2(z @ np.array([[1.0, 2.0], [0.5, -1.0]]), z).score, 6)
    1.0
    """
    inputs = read_inputs(codes, factors, discrete=False, minimum=4)
    return Score("linear R²", _r2(inputs), partial(input_warnings, inputs), _r2, inputs, bounds=(-np.inf, 1.0))


def _r2(inputs: CodesAndFactors) -> MetricValues:
    first, second = inputs.halves
    per_factor = (held_out_r2(first, second) + held_out_r2(second, first)) / 2
    return MetricValues({"r2": float(per_factor.mean())}, per_factor)


def held_out_r2(fit: CodesAndFactors, test: CodesAndFactors) -> np.ndarray:
    """R² (k,) on `test` of least squares on `fit`, relative to the mean of `fit`; 0 for constant factors."""
    factor_means = fit.factors.mean(0)
    codes, test_codes = np.split(standardise(np.vstack([fit.codes, test.codes])), [fit.samples])
    code_means = codes.mean(0)
    weights = np.linalg.lstsq(codes - code_means, fit.factors - factor_means, rcond=None)[0]
    residual = test.factors - factor_means - (test_codes - code_means) @ weights
    total = np.square(test.factors - factor_means).mean(0)
    return np.where(total > 0, 1 - np.square(residual).mean(0) / np.where(total > 0, total, 1.0), 0.0)
