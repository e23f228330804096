"""Mean correlation coefficient: is every factor one latent, up to order, sign and scale?"""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import rankdata

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.metrics.inputs import CodesAndFactors, input_warnings, read_inputs, standardise
from vaescope.metrics.score import Detail, MetricValues, Score


class MCC(Score):
    """The mean correlation, the correlation of every factor with its latent, and the index of that latent."""

    assignment = Detail()
    """The latent matched to every factor; -1 for factors without a latent."""


def pearson_correlations(codes: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Absolute Pearson correlations (d, k); 0 for constant columns."""
    return np.abs(standardise(codes).T @ standardise(factors) / len(codes)).clip(0.0, 1.0)


def spearman_correlations(codes: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Absolute Spearman correlations (d, k)."""
    return pearson_correlations(rankdata(codes, axis=0), rankdata(factors, axis=0))


CORRELATIONS = {"pearson": pearson_correlations, "spearman": spearman_correlations}


def best_matching(relevance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The one-to-one matching that maximises the sum of a matrix (d, k): value and latent of every factor."""
    latents, factors = linear_sum_assignment(relevance, maximize=True)
    values, assignment = np.zeros(relevance.shape[1]), np.full(relevance.shape[1], -1)
    values[factors], assignment[factors] = relevance[latents, factors], latents
    return values, assignment


def mcc(codes: object, factors: object, *, method: str = "pearson") -> MCC:
    """Mean absolute correlation over the best one-to-one matching of latents to factors.

    With fewer latents than factors, unmatched factors count as 0.

    Args:
        codes: (N, d).
        factors: (N, k).
        method: `pearson`, or `spearman`, which is invariant to monotone maps of a latent.

    >>> z = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(mcc(-3 * z[:, ::-1], z).score, 6)
    1.0
    """
    validation.choice("method", method, CORRELATIONS)
    inputs = read_inputs(codes, factors, discrete=False, minimum=2)
    name = "MCC" if method == "pearson" else "MCC (Spearman)"
    return MCC(name, partial(_mcc, method=method), inputs, partial(_unmatched_warnings, unmatched="factors"))


def _unmatched_warnings(inputs: CodesAndFactors, unmatched: str) -> tuple[str, ...]:
    """Those of any metric, and one if there are unmatched `factors` or `latents`."""
    found, more = input_warnings(inputs), inputs.latents - inputs.factor_count
    if (more if unmatched == "latents" else -more) <= 0:
        return found
    so = "latents are ignored" if unmatched == "latents" else "factors count as 0"
    return (*found, f"{inputs.latents} latents for {inputs.factor_count} factors: unmatched {so}.")


def _mcc(inputs: CodesAndFactors, method: str) -> MetricValues:
    values, assignment = best_matching(CORRELATIONS[method](inputs.codes, inputs.factors))
    return MetricValues({"mcc": float(values.mean())}, values, {"assignment": assignment})


def linear_r2(codes: object, factors: object) -> Score:
    """Held-out R² of a least-squares fit of every factor on all latents, averaged over factors.

    Fitted on each half and scored on the other. It is negative if the prediction is worse than the mean.

    Args:
        codes: (N, d).
        factors: (N, k).

    >>> z = np.random.default_rng(0).normal(size=(100, 2))
    >>> round(linear_r2(z @ np.array([[1.0, 2.0], [0.5, -1.0]]), z).score, 6)
    1.0
    """
    inputs = read_inputs(codes, factors, discrete=False, minimum=4)
    return Score("linear R²", _r2, inputs, input_warnings, bounds=(-np.inf, 1.0))


def _r2(inputs: CodesAndFactors) -> MetricValues:
    first, second = inputs.halves
    per_factor = (held_out_r2(first, second) + held_out_r2(second, first)) / 2
    return MetricValues({"r2": float(per_factor.mean())}, per_factor)


def held_out_r2(fit: CodesAndFactors, test: CodesAndFactors) -> np.ndarray:
    """R² (k,) on `test` of least squares on `fit`, relative to the mean of `fit`; 0 for constant factors."""
    factor_means = fit.factors.mean(0)
    codes, test_codes = np.split(standardise(np.vstack([fit.codes, test.codes])), [fit.samples])
    code_means = codes.mean(0)
    weights = np.linalg.lstsq(codes - code_means, fit.factors - factor_means, rcond=None)[0]
    residual = test.factors - factor_means - (test_codes - code_means) @ weights
    total = np.square(test.factors - factor_means).mean(0)
    return np.where(total > 0, 1 - np.square(residual).mean(0) / np.where(total > 0, total, 1.0), 0.0)


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
    return Score("Amari distance", _amari, inputs, partial(_unmatched_warnings, unmatched="latents"))


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
