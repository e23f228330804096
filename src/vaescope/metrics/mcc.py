"""Mean correlation coefficient: are the factors found, up to order, sign and scale?"""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import rankdata

from vaescope.errors import InputError
from vaescope.metrics.cautions import cautions
from vaescope.metrics.inputs import Data, data, standardised
from vaescope.metrics.score import Parts, Score


class MCC(Score):
    """The mean correlation, the correlation of every factor with its latent, and which latent that is."""

    @property
    def assignment(self) -> np.ndarray:
        """The latent matched to every factor; -1 where none was left."""
        return self.parts.detail["assignment"]


def correlations(codes: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """|Pearson correlation| (d, k); a constant column correlates with nothing."""
    return np.abs(standardised(codes).T @ standardised(factors) / len(codes)).clip(0.0, 1.0)


def rank_correlations(codes: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """|Spearman correlation| (d, k)."""
    return correlations(rankdata(codes, axis=0), rankdata(factors, axis=0))


METHODS = {"pearson": correlations, "spearman": rank_correlations}


def matched(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best one-to-one matching of a relevance matrix (d, k): value and latent per factor."""
    latents, factors = linear_sum_assignment(matrix, maximize=True)
    values, assignment = np.zeros(matrix.shape[1]), np.full(matrix.shape[1], -1)
    values[factors], assignment[factors] = matrix[latents, factors], latents
    return values, assignment


def mcc(codes: object, factors: object, *, method: str = "pearson") -> MCC:
    """Mean absolute correlation over the best one-to-one matching of latents to factors.

    With fewer latents than factors, the factors left over count as zero. `method` is `pearson`
    or `spearman` (the same on ranks: unchanged by monotone maps of a latent).

    >>> z = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(mcc(-3 * z[:, ::-1], z).score, 6)
    1.0
    """
    if method not in METHODS:
        raise InputError(f"method must be pearson or spearman, got {method!r}.")
    arrays = data(codes, factors, discrete=False, least=2)
    compute = partial(_mcc, method=method)
    name = "MCC" if method == "pearson" else "MCC (Spearman)"
    return MCC(name, compute(arrays), partial(_cautions, arrays), compute, arrays)


def _cautions(arrays: Data) -> tuple[str, ...]:
    if arrays.latents >= arrays.factors.shape[1]:
        return cautions(arrays)
    return (
        *cautions(arrays),
        f"{arrays.latents} latents for {arrays.factors.shape[1]} factors: those left over count as 0.",
    )


def _mcc(arrays: Data, method: str) -> Parts:
    values, assignment = matched(METHODS[method](arrays.codes, arrays.factors))
    return Parts({"mcc": float(values.mean())}, values, {"assignment": assignment})
