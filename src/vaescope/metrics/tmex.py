"""T-MEX: does every latent measure the factors that it should, and no others?"""

from __future__ import annotations

from functools import partial

import numpy as np
from jaxtyping import Float
from scipy.stats import t as student

from vaescope import validation
from vaescope.errors import InputError
from vaescope.metrics.dependent import conditional_residuals
from vaescope.metrics.features import shared_error_inflation
from vaescope.metrics.input_warnings import input_warnings
from vaescope.metrics.inputs import CodesAndFactors, read_inputs
from vaescope.metrics.mcc import best_matching
from vaescope.metrics.score import MetricValues, Score


class TMEX(Score):
    """The number of latent-factor pairs that contradict the expected structure; 0 is best."""

    @property
    def p_values(self) -> Float[np.ndarray, "d k"]:
        """Of the tests of each latent and factor, given all other factors."""
        return self.values.details["p_values"]

    @property
    def structure(self) -> np.ndarray:
        """Which latent was expected to depend on which factor, (d, k)."""
        return self.values.details["structure"]


def tmex(codes: object, factors: object, *, structure: object | None = None, level: float = 0.05) -> TMEX:
    """Test-based measurement exclusivity (Yao, Huang, Cadei, Zhang & Locatello 2025).

    A latent measures a factor if it depends on it given all other factors. Every pair is tested for conditional
    independence with the generalised covariance measure (Shah & Peters 2020), on residuals of cross-fitted non-linear
    regressions. The score counts pairs where the test and the expected structure disagree. It is valid for dependent
    factors. With few samples the errors of the regressions matter, and the statistic is divided by what they add to its
    spread; absent pairs are then rejected about as often as `level` says from 100 samples on. Factors that depend on
    each other in ways that the regression cannot fit, such as one that is the square of another, are still rejected too
    often. The test has no power against dependence without correlation of residuals, such as an even function.

    Args:
        codes: (N, d).
        factors: (N, k), which may depend on each other.
        structure: (d, k) of True and False: which latent should measure which factor. By default one latent per factor,
            matched by the strength of the dependence.
        level: of each test; a correct structure of m absent pairs still has about level · m contradictions.

    >>> v = np.random.default_rng(0).normal(size=(500, 2))
    >>> tmex(v[:, ::-1], v, level=0.001).score, tmex(v @ np.array([[1.0, 1.0], [-1.0, 1.0]]), v, level=0.001).score
    (0.0, 2.0)
    """
    validation.number("level", level, above=0.0)
    inputs = read_inputs(codes, factors, discrete=False, minimum=40)
    expected = None if structure is None else _checked(structure, inputs)
    compute = partial(_tmex, structure=expected, level=level)
    pairs = float(inputs.latents * inputs.factor_count)
    notes = partial(input_warnings, inputs)
    return TMEX("T-MEX", compute(inputs), notes, compute, inputs, bounds=(0.0, pairs), resamples=20)


def _checked(structure: object, inputs: CodesAndFactors) -> np.ndarray:
    found = validation.array(structure, "structure")
    shape = (inputs.latents, inputs.factor_count)
    if found.shape != shape:
        raise InputError(f"structure must have a row per latent and a column per factor, {shape}, got {found.shape}.")
    return found.astype(bool)


def _tmex(inputs: CodesAndFactors, structure: np.ndarray | None, level: float) -> MetricValues:
    statistic = np.column_stack([_covariance_measure(codes, factor) for codes, factor in conditional_residuals(inputs)])
    others = [np.delete(inputs.factors, k, axis=1) for k in range(inputs.factor_count)]
    statistic /= np.sqrt([shared_error_inflation(given) for given in others])
    p_values = 2 * student.sf(np.abs(statistic), inputs.samples - 1)
    expected = _matched(np.abs(statistic)) if structure is None else structure
    wrong = (p_values < level) != expected
    return MetricValues(
        {"tmex": float(wrong.sum()), "share": float(wrong.mean())},
        wrong.sum(0).astype(float),
        {"p_values": p_values, "structure": expected},
    )


def _covariance_measure(codes: Float[np.ndarray, "N d"], factor: Float[np.ndarray, " N"]) -> Float[np.ndarray, " d"]:
    """√N mean / standard deviation of the products of residuals: standard normal under independence."""
    products = codes * factor[:, None]
    spread = products.std(0)
    return np.sqrt(len(products)) * products.mean(0) / np.where(spread > 0, spread, np.inf)


def _matched(strength: np.ndarray) -> np.ndarray:
    """One latent per factor: the matching with the largest sum."""
    _, assignment = best_matching(strength)
    expected = np.zeros(strength.shape, dtype=bool)
    matched = assignment >= 0
    expected[assignment[matched], np.flatnonzero(matched)] = True
    return expected
