"""Cross-fitted MCC: matching and maps are found on one half of the samples and scored on the other."""

from __future__ import annotations

from functools import cached_property, partial

import numpy as np

from vaescope import validation
from vaescope.metrics.input_warnings import input_warnings
from vaescope.metrics.inputs import CodesAndFactors, read_inputs
from vaescope.metrics.mcc import CORRELATIONS, best_matching
from vaescope.metrics.rdc import held_out_rdc
from vaescope.metrics.score import MetricValues, Score

METHODS = ("pearson", "spearman", "rdc")
PERMUTATIONS = 50


class CrossfittedMCC(Score):
    """MCC on samples that the matching was not chosen on, with a permutation null and the coverage of factors."""

    @property
    def coverage(self) -> float:
        """Share of factors that have a latent: below 1 if there are fewer latents than factors."""
        return self.scores["coverage"]

    @property
    def matched(self) -> float:
        """Mean over the factors that have a latent: the score over the coverage."""
        return self.scores["matched"]

    @cached_property
    def null(self) -> np.ndarray:
        """Scores of codes with shuffled rows."""
        rng = np.random.default_rng(2)
        return np.array([self.compute(self.inputs.shuffled(rng)).scores["mcc"] for _ in range(PERMUTATIONS)])

    @property
    def p_value(self) -> float:
        """Probability of a score this high if codes and factors are independent."""
        return float((1 + (self.null >= self.score).sum()) / (1 + len(self.null)))

    @property
    def above_chance(self) -> float:
        """(score - null) / (coverage - null): 0 for independent codes, 1 if all that can be matched is recovered."""
        chance = float(self.null.mean())
        return max(0.0, (self.score - chance) / max(self.coverage - chance, 1e-12))


def mcc_crossfitted(codes: object, factors: object, *, method: str = "pearson") -> CrossfittedMCC:
    """MCC without the optimism of choosing the matching on the samples that are scored.

    With many latents and few samples, the best of many chance correlations is high: MCC of independent codes grows with
    the number of latents per sample. Here the matching is chosen on one half and scored on the other, and vice versa.

    Args:
        codes: (N, d).
        factors: (N, k).
        method: `pearson`, `spearman`, or `rdc`, which is invariant to any smooth map of a latent, monotone or not.

    >>> rng = np.random.default_rng(0)
    >>> v = rng.uniform(-1, 1, (300, 2))
    >>> found = mcc_crossfitted(np.column_stack([v[:, 1] ** 2, v[:, 0]]), v, method="rdc")
    >>> found.values.details["assignment"].tolist(), bool(found.score > 0.9)
    ([1, 0], True)
    """
    validation.choice("method", method, METHODS)
    inputs = read_inputs(codes, factors, discrete=False, minimum=20)
    compute = partial(_crossfitted, method=method)
    name = f"MCC (cross-fitted, {method})"
    notes = partial(input_warnings, inputs)
    return CrossfittedMCC(name, compute(inputs), notes, compute, inputs, resamples=20)


def _crossfitted(inputs: CodesAndFactors, method: str) -> MetricValues:
    middle = (inputs.samples + 1) // 2
    halves = slice(None, middle), slice(middle, None)
    fits = [_scored(inputs, method, fit, test) for fit, test in (halves, halves[::-1])]
    per_factor = np.mean([values for values, _ in fits], axis=0)
    coverage = min(inputs.latents, inputs.factor_count) / inputs.factor_count
    score = float(per_factor.mean())
    scores = {"mcc": score, "matched": score / coverage, "coverage": coverage}
    return MetricValues(scores, per_factor, {"assignment": fits[0][1]})


def _scored(inputs: CodesAndFactors, method: str, fit: slice, test: slice) -> tuple[np.ndarray, np.ndarray]:
    """Held-out value of every factor under the matching of `fit`, and that matching."""
    here = _relevance(inputs, method, fit, fit)
    there = _relevance(inputs, method, fit, test)
    _, assignment = best_matching(here)
    matched = assignment >= 0
    values = np.zeros(inputs.factor_count)
    values[matched] = there[assignment[matched], np.flatnonzero(matched)]
    return values, assignment


def _relevance(inputs: CodesAndFactors, method: str, fit: slice, test: slice) -> np.ndarray:
    """(d, k) correlations on `test`; correlations of Pearson and Spearman need no fit."""
    if method == "rdc":
        return held_out_rdc(inputs.codes, inputs.factors, fit, test)
    return CORRELATIONS[method](inputs.codes[test], inputs.factors[test])
