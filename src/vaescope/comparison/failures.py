"""Do models fail at the same samples?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

WORST = 0.05  # share of samples that count as failures


@dataclass(frozen=True, eq=False)
class Failures:
    """The samples with the lowest values of each model."""

    rows: list[np.ndarray]
    """For every model the row numbers in x of its worst samples, worst first."""
    overlap: np.ndarray
    """(M, M) share of the worst samples of one model that are among the worst of the other; 0.05 by chance."""
    rank_correlation: np.ndarray
    """(M, M) of the values of all samples."""
    common: np.ndarray
    """Rows that are among the worst of every model, worst first."""


def find_failures(values: np.ndarray, rows: np.ndarray) -> Failures:
    """The worst samples of every model.

    Args:
        values: (N, M) a value per sample and model, such as the ELBO.
        rows: row numbers in x.

    >>> x = np.arange(100.0)
    >>> find_failures(np.stack([x, x + 1, -x], axis=1), np.arange(100)).overlap[0]
    array([1., 1., 0.])
    """
    count = max(1, round(WORST * len(values)))
    worst = np.argsort(values, axis=0, kind="stable")[:count]
    flags = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(flags, worst, values=True, axis=0)
    shared = np.flatnonzero(flags.all(1))
    shared = shared[np.argsort(values[shared].mean(1), kind="stable")]
    ranks = rankdata(values, axis=0)
    return Failures(
        [rows[column] for column in worst.T],
        flags.T.astype(float) @ flags.astype(float) / count,
        np.atleast_2d(np.corrcoef(ranks.T)),
        rows[shared],
    )
