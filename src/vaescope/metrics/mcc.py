"""Mean correlation coefficient: is every factor one latent, up to order, sign and scale?"""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import rankdata

from vaescope import validation
from vaescope.metrics.input_warnings import input_warnings
from vaescope.metrics.inputs import CodesAndFactors, read_inputs, standardise
from vaescope.metrics.score import MetricValues, Score


class MCC(Score):
    """The mean correlation, the correlation of every factor with its latent, and the index of that latent."""

    @property
    def assignment(self) -> np.ndarray:
        """The latent matched to every factor; -1 for factors without a latent."""
        return self.values.details["assignment"]


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
    compute = partial(_mcc, method=method)
    name = "MCC" if method == "pearson" else "MCC (Spearman)"
    return MCC(name, compute(inputs), partial(_warnings, inputs), compute, inputs)


def _warnings(inputs: CodesAndFactors) -> tuple[str, ...]:
    found = input_warnings(inputs)
    if inputs.latents >= inputs.factor_count:
        return found
    return (*found, f"{inputs.latents} latents for {inputs.factor_count} factors: unmatched factors count as 0.")


def _mcc(inputs: CodesAndFactors, method: str) -> MetricValues:
    values, assignment = best_matching(CORRELATIONS[method](inputs.codes, inputs.factors))
    return MetricValues({"mcc": float(values.mean())}, values, {"assignment": assignment})
