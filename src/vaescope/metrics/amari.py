"""Amari distance: how far is the linear map from factors to codes from a scaled permutation?"""

from __future__ import annotations

from functools import partial

import numpy as np

from vaescope import validation
from vaescope.errors import InputError
from vaescope.metrics.input_warnings import input_warnings
from vaescope.metrics.inputs import CodesAndFactors, read_inputs, standardise
from vaescope.metrics.mcc import best_matching, pearson_correlations
from vaescope.metrics.score import MetricValues, Score


def amari_distance(weights: object) -> float:
    """Distance of a square matrix from a scaled permutation (Amari et al. 1996), from 0 to 1.

    >>> amari_distance(np.array([[0.0, -2.0], [3.0, 0.0]])), amari_distance(np.ones((2, 2)))
    (0.0, 1.0)
    """
    m = np.abs(validation.matrix(weights, "weights"))
    if m.shape[0] != m.shape[1] or len(m) < 2:
        raise InputError(f"weights must be a square matrix with at least two rows, got shape {m.shape}.")
    return float(np.mean([_excess(m).mean(), _excess(m.T).mean()]))


def amari(codes: object, factors: object) -> Score:
    """Amari distance of the least-squares map from standardised factors to standardised codes; 0 is best.

    With more latents than factors, only the latents that MCC matches are used. Non-linear relations are ignored.

    Args:
        codes: (N, d).
        factors: (N, k).
    """
    inputs = read_inputs(codes, factors)
    if inputs.latents < inputs.factor_count or inputs.factor_count < 2:
        raise InputError(
            f"the Amari distance needs at least two factors and a latent for each, got {inputs.latents} latents "
            f"and {inputs.factor_count} factors."
        )
    return Score("Amari distance", _amari(inputs), partial(_warnings, inputs), _amari, inputs)


def _warnings(inputs: CodesAndFactors) -> tuple[str, ...]:
    found = input_warnings(inputs)
    if inputs.latents == inputs.factor_count:
        return found
    return (*found, f"{inputs.latents} latents for {inputs.factor_count} factors: unmatched latents are ignored.")


def _excess(m: np.ndarray) -> np.ndarray:
    """Sum of the entries of every row other than the largest, relative to it, from 0 (none) to 1 (all equal)."""
    largest = m.max(1)
    others = m.sum(1) - largest
    return np.where(largest > 0, others / np.where(largest > 0, largest, 1.0), len(m) - 1) / (len(m) - 1)


def _amari(inputs: CodesAndFactors) -> MetricValues:
    _, matched = best_matching(pearson_correlations(inputs.codes, inputs.factors))
    design, targets = standardise(inputs.factors), standardise(inputs.codes[:, matched])
    weights = np.abs(np.linalg.lstsq(design, targets, rcond=None)[0])  # (factors, latents)
    per_factor = (_excess(weights) + _excess(weights.T)) / 2
    return MetricValues({"amari": float(per_factor.mean())}, per_factor, {"weights": weights})
