"""Metrics for dependent factors: what a latent says about a factor beyond what the other factors say."""

from __future__ import annotations

from functools import partial

import numpy as np
from jaxtyping import Float

from vaescope.metrics.features import residuals
from vaescope.metrics.input_warnings import input_warnings
from vaescope.metrics.inputs import CodesAndFactors, read_inputs
from vaescope.metrics.mcc import MCC, best_matching, pearson_correlations
from vaescope.metrics.score import MetricValues

REDUNDANT = 0.05  # variance of a factor, given the others, below which it is a function of them


def conditional_mcc(codes: object, factors: object) -> MCC:
    """MCC in which a latent is credited only for what it says about a factor beyond the other factors.

    Correlated factors inflate MCC: a latent that encodes one factor correlates with all. Here the relevance of latent c
    for factor v is the smaller of |corr(c, v)| and |corr(c, r)| / |corr(v, r)|, where r is what is left of v once the
    other factors are regressed out (cross-fitted, non-linear): 1 for c = v, however v depends on the others, and 0 for
    a c that is a function of the others. With independent factors it is MCC. A factor that is a function of the others
    cannot be distinguished from them: it scores 0, with a warning.

    Args:
        codes: (N, d).
        factors: (N, k), which may depend on each other.

    >>> rng = np.random.default_rng(0)
    >>> first = rng.normal(size=1000)
    >>> v = np.column_stack([first, first + 0.3 * rng.normal(size=1000)])  # correlation 0.96
    >>> copied = np.column_stack([v[:, 0], v[:, 0]])  # the second factor is not encoded
    >>> from vaescope.metrics import mcc
    >>> bool(mcc(copied, v).score > 0.95), bool(conditional_mcc(copied, v).score < 0.6)
    (True, True)
    """
    inputs = read_inputs(codes, factors, discrete=False, minimum=40)
    return MCC("conditional MCC", _conditional(inputs), partial(_warnings, inputs), _conditional, inputs, resamples=20)


def _conditional(inputs: CodesAndFactors) -> MetricValues:
    plain = pearson_correlations(inputs.codes, inputs.factors)
    left = np.column_stack([factor for _, factor in conditional_residuals(inputs)])
    own = np.diag(pearson_correlations(inputs.factors, left))
    relevance = np.minimum(plain, pearson_correlations(inputs.codes, left) / np.where(own > 0, own, np.inf))
    relevance[:, redundant_factors(left)] = 0.0
    values, assignment = best_matching(relevance)
    return MetricValues({"mcc": float(values.mean())}, values, {"assignment": assignment, "relevance": relevance})


def conditional_residuals(
    inputs: CodesAndFactors,
) -> list[tuple[Float[np.ndarray, "N d"], Float[np.ndarray, " N"]]]:
    """For every factor: residuals of all codes and of that factor, given all other factors."""
    found = []
    for k in range(inputs.factor_count):
        others = np.delete(inputs.factors, k, axis=1)
        both = residuals(np.column_stack([inputs.codes, inputs.factors[:, k]]), others)
        found.append((both[:, :-1], both[:, -1]))
    return found


def redundant_factors(left: Float[np.ndarray, "N k"]) -> np.ndarray:
    """Which factors are functions of the others: standardised factors leave almost no variance."""
    return np.square(left).mean(0) < REDUNDANT


def _warnings(inputs: CodesAndFactors) -> tuple[str, ...]:
    left = np.column_stack([factor for _, factor in conditional_residuals(inputs)])
    redundant = np.flatnonzero(redundant_factors(left))
    listed = ", ".join(map(str, redundant))
    note = (f"Factors {listed} are functions of the others, so no latent can be credited for them.",)
    return (*input_warnings(inputs), *(note if len(redundant) else ()))
