"""Amari distance: how far is the linear map from factors to codes from a scaled permutation?"""

from __future__ import annotations

from functools import partial

import numpy as np

from vaescope.errors import InputError
from vaescope.metrics.cautions import cautions
from vaescope.metrics.inputs import Data, data, matrix, standardised
from vaescope.metrics.mcc import correlations, matched
from vaescope.metrics.score import Parts, Score


def amari_distance(weights: object) -> float:
    """Distance of a square matrix from a scaled permutation (Amari et al. 1996), from 0 to 1.

    >>> amari_distance(np.array([[0.0, -2.0], [3.0, 0.0]])), amari_distance(np.ones((2, 2)))
    (0.0, 1.0)
    """
    m = np.abs(matrix(weights, "weights"))
    if m.shape[0] != m.shape[1] or len(m) < 2:
        raise InputError(f"the Amari distance needs a square matrix of two rows or more, got shape {m.shape}.")
    return float(np.mean([_excess(m).mean(), _excess(m.T).mean()]))


def amari(codes: object, factors: object) -> Score:
    """Amari distance of the least-squares map from standardised factors to standardised codes: lower is better.

    With more latents than factors the latents that MCC would match are used. Only linear relations are seen.
    """
    arrays = data(codes, factors)
    count = arrays.factors.shape[1]
    if arrays.latents < count or count < 2:
        raise InputError(
            f"the Amari distance needs two factors or more and a latent for each, got {arrays.latents} latents "
            f"and {count} factors."
        )
    return Score("Amari distance", _amari(arrays), partial(_cautions, arrays), _amari, arrays)


def _cautions(arrays: Data) -> tuple[str, ...]:
    count = arrays.factors.shape[1]
    if arrays.latents == count:
        return cautions(arrays)
    return (
        *cautions(arrays),
        f"{arrays.latents} latents for {count} factors: only the best matched latents are compared.",
    )


def _excess(m: np.ndarray) -> np.ndarray:
    """Per row: what stands beside the largest entry, relative to it, from 0 (nothing) to 1 (all equal)."""
    largest = m.max(1)
    others = m.sum(1) - largest
    return np.where(largest > 0, others / np.where(largest > 0, largest, 1.0), len(m) - 1) / (len(m) - 1)


def _amari(arrays: Data) -> Parts:
    _, chosen = matched(correlations(arrays.codes, arrays.factors))
    design, targets = standardised(arrays.factors), standardised(arrays.codes[:, chosen])
    weights = np.abs(np.linalg.lstsq(design, targets, rcond=None)[0])  # (factors, latents)
    per_factor = (_excess(weights) + _excess(weights.T)) / 2
    return Parts({"amari": float(per_factor.mean())}, per_factor, {"weights": weights})
