"""Linear R²: how much of every factor is recovered up to mixing."""

from __future__ import annotations

from functools import partial

import numpy as np

from vaescope.metrics.cautions import cautions
from vaescope.metrics.inputs import Data, data, standardised
from vaescope.metrics.score import Parts, Score


def linear_r2(codes: object, factors: object) -> Score:
    """Held-out R² of a least-squares fit of every factor on all latents, averaged over factors.

    Fitted on one half and scored on the other, then the reverse. Below zero the fit is worse than
    the factor's mean.

    >>> z = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(linear_r2(z @ np.array([[1.0, 2.0], [0.5, -1.0]]), z).score, 6)
    1.0
    """
    arrays = data(codes, factors, discrete=False, least=4)
    return Score("linear R²", _r2(arrays), partial(cautions, arrays), _r2, arrays, bounds=(-np.inf, 1.0))


def _r2(arrays: Data) -> Parts:
    first, second = arrays.halves
    per_factor = (held_out_r2(first, second) + held_out_r2(second, first)) / 2
    return Parts({"r2": float(per_factor.mean())}, per_factor)


def held_out_r2(fit: Data, test: Data) -> np.ndarray:
    """R² (k,) on `test` of least squares on `fit`, against the mean of `fit`; 0 where a factor does not vary."""
    middle = fit.factors.mean(0)
    codes, others = np.split(standardised(np.vstack([fit.codes, test.codes])), [fit.samples])
    centre = codes.mean(0)
    weights = np.linalg.lstsq(codes - centre, fit.factors - middle, rcond=None)[0]
    residual = test.factors - middle - (others - centre) @ weights
    total = np.square(test.factors - middle).mean(0)
    return np.where(total > 0, 1 - np.square(residual).mean(0) / np.where(total > 0, total, 1.0), 0.0)
