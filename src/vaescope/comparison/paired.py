"""Paired differences between models: values of the same samples, so that what all models find hard cancels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.stats import t as student

DRAWS = 10_000  # of the largest t-statistic over all pairs
CONFIDENCE = 0.95
ROUNDING = 1e-9  # relative difference of values that are the same


@dataclass(frozen=True, eq=False)
class Paired:
    """Matrices (M, M) over pairs of models: row minus column."""

    difference: np.ndarray
    """Mean difference, in nats per sample."""
    stderr: np.ndarray
    covariance: np.ndarray
    """Of the values of the models over samples."""
    samples: int
    inflation: np.ndarray
    """Factor of intervals that are too short if differences are skewed and samples few: see `skewness_inflation`."""

    @cached_property
    def p_value(self) -> np.ndarray:
        """(M, M) of no difference, adjusted for all pairs together.

        The largest t-statistic over all pairs is compared with its distribution under no difference: a multivariate
        Student distribution with the covariance of the models' values (Hothorn, Bretz & Westfall 2008).
        """
        if self.samples < 2:
            return np.ones_like(self.difference)
        t = _t(self.difference, self.stderr) / self.inflation
        return _adjusted_p_values(t, self.covariance, self.samples - 1)

    @property
    def half_width(self) -> np.ndarray:
        """Half the width of the 95 % interval of each pair on its own."""
        return np.asarray(self.inflation * self.stderr * student.ppf((1 + CONFIDENCE) / 2, max(1, self.samples - 1)))

    @property
    def indistinguishable(self) -> np.ndarray:
        """(M, M) whether a difference could be chance, at 5 % for all pairs together."""
        return np.asarray(self.p_value > 1 - CONFIDENCE)


def paired_differences(values: np.ndarray) -> Paired:
    """Mean differences with standard errors and p-values that are valid for all pairs at once.

    Args:
        values: (N, M) a value per sample and model.

    >>> found = paired_differences(np.array([[1.0, 0.0], [2.0, 1.5], [3.0, 1.5]]))
    >>> found.difference[0, 1], round(float(found.stderr[0, 1]), 3)
    (np.float64(1.0), 0.289)
    """
    samples = len(values)
    centred = values - values.mean(0)
    covariance = np.atleast_2d(centred.T @ centred) / max(1, samples - 1)
    variance = covariance.diagonal()[:, None] + covariance.diagonal()[None] - 2 * covariance
    scale = np.abs(values).max() if values.size else 0.0
    difference = values.mean(0)[:, None] - values.mean(0)[None]
    stderr = np.sqrt(np.where(variance > (ROUNDING * scale) ** 2, variance, 0.0) / samples)
    difference = np.where((np.abs(difference) <= ROUNDING * scale) & (stderr == 0), 0.0, difference)
    return Paired(difference, stderr, covariance, samples, skewness_inflation(values, stderr))


def skewness_inflation(values: np.ndarray, stderr: np.ndarray) -> np.ndarray:
    r"""Factor (M, M) by which a 95 % interval of each mean difference has to be longer than Student's.

    .. math:: 1 + \frac{g^2}{18 N} (q^4 + 2 q^2 - 3)

    q is Student's quantile and g the skewness of the differences: the term of the Edgeworth expansion of a t-statistic
    by which skewness lowers the coverage of a symmetric interval (Hall 1992). Differences of log p(x)
    have heavy tails to one side, where one of the models fits badly.

    Args:
        values: (N, M) a value per sample and model.
        stderr: (M, M) of the mean differences; pairs without spread are not changed.

    >>> values = np.array([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 4.0]])
    >>> skewness_inflation(values, np.array([[0.0, 1.0], [1.0, 0.0]])).round(1)
    array([[1. , 3.2],
           [3.2, 1. ]])
    """
    samples = len(values)
    if samples < 2:
        return np.ones_like(stderr)
    centred = values - values.mean(0)
    third = np.stack([((column[:, None] - centred) ** 3).mean(0) for column in centred.T])
    spread = np.sqrt(samples - 1) * stderr  # the standard deviation, dividing by N
    skewness = np.divide(third, spread**3, out=np.zeros_like(third), where=spread > 0)
    q = student.ppf((1 + CONFIDENCE) / 2, samples - 1)
    return np.asarray(1 + skewness**2 * (q**4 + 2 * q**2 - 3) / (18 * samples))


def _t(difference: np.ndarray, stderr: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(difference == 0, 0.0, np.abs(difference) / stderr)


def _adjusted_p_values(t: np.ndarray, covariance: np.ndarray, freedom: int) -> np.ndarray:
    if len(t) == 2:
        return np.asarray(2 * student.sf(t, max(1, freedom)))
    order = np.lexsort(np.vstack([t.sum(0)[None], covariance.diagonal()[None]]))  # the same for any order of models
    largest = _largest_t(covariance[np.ix_(order, order)], max(1, freedom))
    found = (largest[:, None, None] >= t).mean(0) if len(t) <= 16 else _share_above(largest, t)
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)


def _share_above(largest: np.ndarray, t: np.ndarray) -> np.ndarray:
    return 1 - np.searchsorted(np.sort(largest), t) / len(largest)


def _largest_t(covariance: np.ndarray, freedom: int) -> np.ndarray:
    """Draws of the largest |t| over pairs under no difference."""
    rng = np.random.default_rng(0)
    values, vectors = np.linalg.eigh(covariance)
    factor = vectors * np.sqrt(values.clip(0))
    drawn = rng.normal(size=(DRAWS, len(covariance))) @ factor.T
    drawn /= np.sqrt(rng.chisquare(freedom, size=(DRAWS, 1)) / freedom)
    largest = np.zeros(DRAWS)
    for i in range(len(covariance)):
        deviation = np.sqrt((covariance[i, i] + covariance.diagonal() - 2 * covariance[i]).clip(0))
        valid = deviation > 1e-12 * np.sqrt(covariance.diagonal().max() + 1e-300)
        if valid.any():
            t = np.abs(drawn[:, [i]] - drawn[:, valid]) / deviation[valid]
            largest = np.maximum(largest, t.max(1))
    return largest
