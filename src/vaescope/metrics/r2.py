"""Linear R²: how much of every factor is recovered up to mixing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vaescope.errors import InputError
from vaescope.metrics.inputs import pair


@dataclass(frozen=True, eq=False)
class R2:
    """The mean over factors of the held-out R² of a linear regression on all latents."""

    score: float
    per_factor: np.ndarray


def linear_r2(codes: object, factors: object) -> R2:
    """Fit every factor by least squares on one half of the samples, score on the other (and the reverse).

    >>> z = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(linear_r2(z @ np.array([[1.0, 2.0], [0.5, -1.0]]), z).score, 6)
    1.0
    """
    c, f = pair(codes, factors, least=4)
    if (f.std(0) == 0).any():
        raise InputError(f"factor {int(np.argmin(f.std(0)))} is constant; leave it out.")
    halves = [np.arange(len(c)) % 2 == 0, np.arange(len(c)) % 2 == 1]
    scores = [_held_out(c, f, fit) for fit in halves]
    per_factor = np.mean(scores, axis=0)
    return R2(float(per_factor.mean()), per_factor)


def _held_out(codes: np.ndarray, factors: np.ndarray, fit: np.ndarray) -> np.ndarray:
    design = np.column_stack([codes, np.ones(len(codes))])
    weights = np.linalg.lstsq(design[fit], factors[fit], rcond=None)[0]
    residual = factors[~fit] - design[~fit] @ weights
    return 1 - residual.var(0) / factors[~fit].var(0)
