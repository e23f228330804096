"""Mean correlation coefficient: are the factors found, up to order, sign and scale?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import rankdata

from vaescope.errors import InputError
from vaescope.metrics.inputs import pair


@dataclass(frozen=True, eq=False)
class MCC:
    """The score, the correlation of every factor with its latent, and which latent that is (-1: none left)."""

    score: float
    per_factor: np.ndarray
    assignment: np.ndarray


def correlations(codes: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """|Pearson correlation| (d, k); a constant column correlates with nothing."""

    def standardise(values: np.ndarray) -> np.ndarray:
        centred = values - values.mean(0)
        norm = np.linalg.norm(centred, axis=0)
        alive = norm > 1e-12 * np.abs(values).max(0, initial=0.0) * np.sqrt(len(values))
        return np.where(alive, centred / np.where(alive, norm, 1.0), 0.0)

    return np.abs(standardise(codes).T @ standardise(factors)).clip(0.0, 1.0)


def mcc(codes: object, factors: object, *, method: str = "pearson") -> MCC:
    """Mean absolute correlation over the best one-to-one matching of latents to factors.

    With fewer latents than factors, the factors left over count as zero. `method` is `pearson`
    or `spearman` (the same on ranks: unchanged by monotone maps of a latent).

    >>> z = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(mcc(-3 * z[:, ::-1], z).score, 6)
    1.0
    """
    c, f = pair(codes, factors)
    if method not in ("pearson", "spearman"):
        raise InputError(f"method must be pearson or spearman, got {method!r}.")
    if method == "spearman":
        c, f = rankdata(c, axis=0), rankdata(f, axis=0)
    matrix = correlations(c, f)
    latents, matched = linear_sum_assignment(matrix, maximize=True)
    per_factor, assignment = np.zeros(f.shape[1]), np.full(f.shape[1], -1)
    per_factor[matched], assignment[matched] = matrix[latents, matched], latents
    return MCC(float(per_factor.mean()), per_factor, assignment)
