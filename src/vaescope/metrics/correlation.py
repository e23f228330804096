"""Correlations of latents: with factors, up to order, sign and scale (MCC), and between models (stability, UDR)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import rankdata

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.metrics.inputs import (
    CodesAndFactors,
    input_warnings,
    is_varying,
    read_inputs,
    rescale_exactly,
    standardise,
)
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


ActiveLatents = Sequence[Sequence[bool] | None] | None
Average = Callable[[np.ndarray], float]


@dataclass(frozen=True, eq=False)
class ModelCodes:
    """Active latents of several models on the same observations, in the same random order."""

    codes: tuple[np.ndarray, ...]

    @property
    def samples(self) -> int:
        return len(self.codes[0])

    def subset(self, rows: slice | np.ndarray) -> ModelCodes:
        return ModelCodes(tuple(code[rows] for code in self.codes))

    def shuffled(self, rng: np.random.Generator) -> ModelCodes:
        """Every model's rows in their own random order, so that models are independent."""
        return ModelCodes(tuple(code[rng.permutation(self.samples)] for code in self.codes))


class Stability(Score):
    """Pairwise agreement of models."""

    pairs = Detail()
    """Agreement of every pair of models, (M, M), 1 on the diagonal."""

    @property
    def per_member(self) -> np.ndarray:
        """Agreement of every model with the others."""
        return self.values.per_factor


def stability(members: Sequence[object], *, active: ActiveLatents = None, method: str = "pearson") -> Stability:
    """Mean correlation of matched latents, averaged over pairs of models. Unmatched active latents count as 0.

    Args:
        members: codes (N, d) of every model on the same N samples.
        active: for every model, which latents are active; by default those that vary.
        method: `pearson` or `spearman` correlations.

    >>> z = np.random.default_rng(0).normal(size=(200, 2))
    >>> round(stability([z, -z[:, ::-1], 3 * z]).score, 6)
    1.0
    """
    return _agreement_score("stability", members, active, method, _matched_correlation, np.mean)


def udr(members: Sequence[object], *, active: ActiveLatents = None, method: str = "spearman") -> Stability:
    """Unsupervised disentanglement ranking (Duan et al. 2020): do models agree latent by latent?

    The score of a model is the median over the other models; the result is the mean over models. The published UDR
    excludes latents with a low KL: pass the others as `active`, or passive latents that vary lower the agreement.

    Args:
        members: codes (N, d) of every model on the same N samples.
        active: for every model, which latents are active; by default those that vary.
        method: `pearson` or `spearman` correlations.
    """
    return _agreement_score("UDR", members, active, method, _udr, np.median)


def _agreement_score(
    name: str, members: Sequence[object], active: ActiveLatents, method: str, agreement: Average, average: Average
) -> Stability:
    validation.choice("method", method, CORRELATIONS)
    inputs, notes = _read_members(members, active)
    compute = partial(_compare, method=method, agreement=agreement, average=average)
    return Stability(name, compute, inputs, lambda _: notes, resamples=50)


def _read_members(members: Sequence[object], active: ActiveLatents) -> tuple[ModelCodes, tuple[str, ...]]:
    """Codes of active latents, and warnings."""
    codes = [rescale_exactly(validation.matrix(member, "codes", minimum=20)) for member in members]
    if len(codes) < 2:
        raise InputError(f"stability needs at least two models, got {len(codes)}.")
    samples = validation.same_rows({f"model {i}": len(code) for i, code in enumerate(codes)})
    masks = [None] * len(codes) if active is None else list(active)
    if len(masks) != len(codes):
        raise InputError(f"active needs an entry per model, {len(codes)}, got {len(masks)}.")
    order = np.random.default_rng(0).permutation(samples)
    chosen = [
        is_varying(code) if mask is None else validation.latent_mask(mask, code.shape[1])
        for code, mask in zip(codes, masks, strict=True)
    ]
    notes = tuple(f"model {i} has no active latent." for i, mask in enumerate(chosen) if not mask.any())
    return ModelCodes(tuple(code[order][:, mask] for code, mask in zip(codes, chosen, strict=True))), notes


def _compare(inputs: ModelCodes, method: str, agreement: Average, average: Average) -> MetricValues:
    count = len(inputs.codes)
    pairs = np.eye(count)
    for a, b in combinations(range(count), 2):
        pairs[a, b] = pairs[b, a] = agreement(CORRELATIONS[method](inputs.codes[a], inputs.codes[b]))
    per_member = [average(np.delete(pairs[a], a)) for a in range(count)]
    return MetricValues({"agreement": float(np.mean(per_member))}, np.array(per_member), {"pairs": pairs})


def _matched_correlation(correlations: np.ndarray) -> float:
    if 0 in correlations.shape:
        return 0.0
    return float(best_matching(correlations)[0].sum() / max(correlations.shape))


def _udr(correlations: np.ndarray) -> float:
    """Eq. 4 of Duan et al. 2020: the share of every latent's similarity that is with one latent of the other model."""
    if 0 in correlations.shape:
        return 0.0
    total = 0.0
    for axis in (0, 1):
        best, summed = correlations.max(axis), correlations.sum(axis)
        total += float((np.square(best) / np.where(summed > 0, summed, 1.0)).sum())
    return total / sum(correlations.shape)
