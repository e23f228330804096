"""Statistics that claims are judged by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.stats import norm, rankdata

POWER = 0.8


def median(values: Sequence[float]) -> float:
    return float(np.median(values))


def slope(x: Iterable[float], y: Iterable[float]) -> float:
    """Least-squares slope of log y on log x; NaN with fewer than two x, or values that have no logarithm.

    >>> round(slope([1.0, 10.0, 100.0], [5.0, 0.5, 0.05]), 9)
    -1.0
    """
    first, second = np.asarray(list(x), dtype=float), np.asarray(list(y), dtype=float)
    values = np.concatenate([first, second])
    if len(set(first.tolist())) < 2 or not (np.isfinite(values) & (values > 0)).all():
        return float("nan")
    return float(np.polyfit(np.log(first), np.log(second), 1)[0])


def rank_interval(x: Sequence[float], y: Sequence[float], *, resamples: int = 1000) -> tuple[float, float]:
    """95 % bootstrap interval of Spearman's rank correlation."""
    first, second = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    picks = np.random.default_rng(0).integers(0, len(first), (resamples, len(first)))
    low, high = np.nanquantile([rank_correlation(first[pick], second[pick]) for pick in picks], (0.025, 0.975))
    return float(low), float(high)


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rank correlation; NaN if x or y is constant."""
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])


def members_needed(effect: float, p: float) -> int:
    """Sample size at which a rank correlation of this size has a p-value below `p` with a probability of 80 %.

    From Fisher's z-transformation, with the variance 1.06 / (n - 3) of Spearman's correlation (Bonett & Wright 2000).

    >>> members_needed(0.7, 0.01), members_needed(0.5, 0.01)
    (20, 45)
    """
    spread = float(norm.isf(p / 2) + norm.isf(1 - POWER))
    return math.ceil(1.06 * (spread / math.atanh(effect)) ** 2 + 3)
