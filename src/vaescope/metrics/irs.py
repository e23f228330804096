"""Interventional robustness: does a latent stay put when everything but its factor changes?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from vaescope.metrics.cautions import cautions
from vaescope.metrics.information import factor_classes
from vaescope.metrics.inputs import Data, alive, data, standardised
from vaescope.metrics.mig import by_best_factor
from vaescope.metrics.score import Parts, Score

QUANTILE = 0.99  # the largest deviation, less its outliers


def irs(codes: object, factors: object, *, discrete: bool | Sequence[bool] | None = None) -> Score:
    """Interventional robustness score (Suter et al. 2019), averaged over latents that vary.

    For every latent and factor: how far the latent strays from its mean among samples that share the
    factor's value, relative to how far it strays at all; one less that, for its best factor. Farthest is the
    99th percentile in both, classes count by their size, and codes are standardised first, so that no latent
    counts more for being larger (public code differs in the last two and divides by the maximum).

    >>> v = np.random.default_rng(0).integers(0, 4, (1000, 2))
    >>> round(irs(v, v).score, 6)
    1.0
    """
    arrays = data(codes, factors, discrete=discrete)
    return Score("IRS", _irs(arrays), partial(cautions, arrays, classes=True), _irs, arrays, resamples=50)


def _irs(arrays: Data) -> Parts:
    codes, living = standardised(arrays.codes), alive(arrays.codes)
    labels = factor_classes(arrays, binning="mass")
    widest = np.quantile(np.abs(codes), QUANTILE, axis=0)
    widest = np.where(widest > 0, widest, np.where(living, np.abs(codes).max(axis=0), 1.0))
    stray = np.column_stack([_stray(codes, column) for column in labels.T])
    robustness = np.where(living[:, None], (1 - stray / widest[:, None]).clip(0.0, 1.0), 0.0)
    per_latent = robustness.max(1)
    score = float(per_latent[living].mean()) if living.any() else 0.0
    return Parts({"irs": score}, by_best_factor(per_latent, robustness, living), {"per_latent": per_latent})


def _stray(codes: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The largest deviation (d,) from the class mean, averaged over samples."""
    total = np.zeros(codes.shape[1])
    for label in np.unique(labels):
        inside = codes[labels == label]
        total += len(inside) * np.quantile(np.abs(inside - inside.mean(0)), QUANTILE, axis=0)
    return total / len(codes)
