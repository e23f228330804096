"""Agreement between models of the same samples: which latents of one are which of another, and as subspaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.spatial.distance import cdist, pdist

from vaescope import metrics
from vaescope.metrics.correlation import (
    Stability,
    best_matching,
    held_out_r2,
    pearson_correlations,
    spearman_correlations,
)
from vaescope.metrics.inputs import CodesAndFactors, standardise


def canonical_correlations(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Canonical correlations of two sets of codes, highest first: 1 for directions that both contain.

    >>> z = np.random.default_rng(0).normal(size=(300, 3))
    >>> canonical_correlations(z[:, :2], z[:, 1:] @ np.array([[1.0, 2.0], [0.5, -1.0]])).round(1)
    array([1., 0.])
    """
    if not first.shape[1] or not second.shape[1]:
        return np.zeros(0)
    bases = [np.linalg.qr(standardise(codes))[0] for codes in (first, second)]
    return np.asarray(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False).clip(0.0, 1.0))


def explained_variance(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Share (k,) of the variance of each target that a linear function of the inputs explains, held out."""
    if not inputs.shape[1]:
        return np.zeros(targets.shape[1])
    first, second = CodesAndFactors(inputs, targets, (False,) * targets.shape[1]).halves
    return ((held_out_r2(first, second) + held_out_r2(second, first)) / 2).clip(0.0, 1.0)


def explained_smoothly(inputs: np.ndarray, target: np.ndarray, *, samples: int = 1000, ridge: float = 1e-2) -> float:
    """Held-out R² of one target by kernel ridge regression on inputs, with the median distance as bandwidth."""
    inputs, target = standardise(inputs[:samples]), target[:samples]
    middle, width = len(inputs) // 2, float(np.median(pdist(inputs[:200]))) or 1.0
    kernel = np.exp(-0.5 * cdist(inputs, inputs[:middle], "sqeuclidean") / width**2)
    centre = target[:middle].mean()
    weights = np.linalg.solve(kernel[:middle] + ridge * np.eye(middle), target[:middle] - centre)
    residual = target[middle:] - centre - kernel[middle:] @ weights
    total = float(np.square(target[middle:] - centre).mean())
    return max(0.0, 1 - float(np.square(residual).mean()) / total) if total > 0 else 0.0


# any number of models ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Agreement:
    """How similar the codes of models are."""

    axes: Stability
    """Mean correlation of matched latents in use."""
    subspace: float
    """Mean squared canonical correlation of the latents in use, the worst pair of models: 1 if one model's codes are
    a linear function of the other's."""

    @property
    def score(self) -> float:
        return float(self.axes.score)


def measure_agreement(codes: Sequence[np.ndarray], used: Sequence[list[int]]) -> Agreement:
    """Compare models.

    Args:
        codes: posterior means (N, d) of every model on the same samples.
        used: latents in use of every model.
    """
    masks = [np.isin(np.arange(code.shape[1]), latents).tolist() for code, latents in zip(codes, used, strict=True)]
    subspaces = []
    for a, b in combinations([code[:, sorted(latents)] for code, latents in zip(codes, used, strict=True)], 2):
        most, least = max(a.shape[1], b.shape[1]), min(a.shape[1], b.shape[1])
        shared = float(np.square(canonical_correlations(a, b)).sum()) / max(most, 1)
        subspaces.append(shared if least else float(most == 0))
    return Agreement(metrics.stability(codes, active=masks), min(subspaces))


# one model and the others -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SeedAgreement:
    """Of each latent in use of the first model with the other models, (M, u): one row per other model."""

    axis: np.ndarray
    """Rank correlation with its match in the other model."""
    subspace: np.ndarray
    """Share of its variance that is a linear function of the other model's latents, held out."""
    up_to_rotation: np.ndarray
    """Correlation with the best linear function of the matches of all latents that it can be rotated into freely. For
    a latent that cannot be rotated freely it is `axis`."""
    interval: np.ndarray
    """(2, u): 95 % interval of the median of `axis` over models, from resampled models and samples."""
    axis_median: np.ndarray
    subspace_median: np.ndarray
    same: np.ndarray
    """(u,) whether at least half of the other models have the latent: a rank correlation of at least 0.95."""
    credibility: np.ndarray
    """(u,) 1 if most other models have the latent, up to free rotations; less the larger the angle between them.

    It is min(1, (18° / θ)⁸), where the cosine of θ is the median of `up_to_rotation` and that of 18° is 0.95. The
    exponent was chosen on the development mixings of benchmarks/identifiability.py. Disagreement about a rotation that
    costs nothing says nothing about the rest of the model, and what a free rotation means for a latent is already in
    the cost of rotations."""


def seed_agreement(
    codes: np.ndarray, others: Sequence[np.ndarray], free: np.ndarray | None = None, *, resamples: int = 50
) -> SeedAgreement:
    """Compare one model with others.

    Args:
        codes: (N, u) latents in use of the first model.
        others: (N, u) latents in use of every other model, on the same samples.
        free: (u,) a label per latent, the same for latents that can be rotated into each other at no cost; by default
            no rotation is free.
        resamples: of models and samples, for the interval.
    """
    axis, match = (np.array(values) for values in zip(*(_matched(codes, other) for other in others), strict=True))
    labels = np.arange(codes.shape[1]) if free is None else free
    rotated = axis.copy()
    for own, partners, other in zip(rotated, match, others, strict=True):
        for label in np.unique(labels):
            group = np.flatnonzero(labels == label)
            chosen = partners[group][partners[group] >= 0]
            if len(group) > 1 and len(chosen):
                # largest correlation of each target with a linear function of the inputs
                inputs = other[:, chosen]
                targets = codes[:, group]
                inputs, targets = inputs - inputs.mean(0), targets - targets.mean(0)
                fitted = inputs @ np.linalg.lstsq(inputs, targets, rcond=None)[0]
                own[group] = np.asarray(
                    np.sqrt(np.square(fitted).sum(0) / np.square(targets).sum(0).clip(1e-300)).clip(0.0, 1.0)
                )
    subspace = np.array([explained_variance(other, codes) for other in others])
    rng, medians = np.random.default_rng(0), []
    for _ in range(resamples):
        rows = rng.integers(len(codes), size=min(500, len(codes)))
        models = rng.integers(len(others), size=len(others)).tolist()
        values = {m: _matched(codes[rows], others[m][rows])[0] for m in set(models)}
        medians.append(np.median([values[m] for m in models], axis=0))
    same_axis = 0.95  # rank correlation of latents that are the same: convention
    angle = np.arccos(np.median(rotated, axis=0).clip(0.0, same_axis))
    return SeedAgreement(
        axis,
        subspace,
        rotated,
        np.quantile(medians, (0.025, 0.975), axis=0),
        axis_median=np.median(axis, axis=0),
        subspace_median=np.median(subspace, axis=0),
        same=(axis >= same_axis).mean(0) >= 0.5,
        credibility=(np.arccos(same_axis) / angle) ** 8,
    )


def _matched(codes: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank correlation of each latent with its match in the other model, and that match; -1 for none."""
    if not other.shape[1]:
        return np.zeros(codes.shape[1]), np.full(codes.shape[1], -1)
    return best_matching(spearman_correlations(other, codes))


# a pair of models -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class UsedCodes:
    """Posterior means (N, u) of the latents in use."""

    name: str
    latents: list[int]
    values: np.ndarray


@dataclass(frozen=True)
class MatchedLatent:
    """A latent of the first model with its match in the second."""

    first: int
    second: int | None
    """None if the second model has fewer latents in use."""
    correlation: float
    """Signed Pearson correlation with the match."""
    r2: float
    """Share of variance that a linear function of the match explains, held out."""
    nonlinear_r2: float
    """Of a smooth function of the match, held out; at least the linear one."""
    r2_of_all: float
    """Of a linear function of all latents of the second model."""
    nonlinear_r2_of_all: float


@dataclass(frozen=True, eq=False)
class MatchedLatents:
    """The latents in use of two models."""

    names: tuple[str, str]
    latents: list[MatchedLatent]
    """Highest correlation first."""
    canonical: np.ndarray
    """Canonical correlations of the two sets of latents in use, highest first."""

    @property
    def shared(self) -> int:
        """Directions that both models have, whatever their axes: canonical correlations of at least 0.9."""
        return int((self.canonical >= 0.9).sum())

    def rows(self) -> list[dict[str, object]]:
        """A row per latent in use of the first model."""
        first, second = self.names
        return [
            {
                f"latent of {first}": m.first,
                f"latent of {second}": m.second,
                "correlation": m.correlation,
                "linear R²": m.r2,
                "non-linear R²": m.nonlinear_r2,
                "linear R², all latents": m.r2_of_all,
                "non-linear R², all latents": m.nonlinear_r2_of_all,
            }
            for m in self.latents
        ]


def match_latents(first: UsedCodes, second: UsedCodes) -> MatchedLatents:
    """Match the latents of two models of the same samples by their correlations."""
    matches, everything = [], second.values
    assignment = np.full(len(first.latents), -1)
    if len(first.latents) and len(second.latents):
        assignment = best_matching(pearson_correlations(everything, first.values))[1]
    for k, match in enumerate(assignment.tolist()):
        code, correlation, partner, of_match = first.values[:, [k]], 0.0, None, (0.0, 0.0)
        if match >= 0:
            matched = everything[:, [match]]
            correlation = float((standardise(matched) * standardise(code)).mean())
            partner, of_match = second.latents[match], _both_r2(matched, code)
        matches.append(MatchedLatent(first.latents[k], partner, correlation, *of_match, *_both_r2(everything, code)))
    matches.sort(key=lambda m: (-abs(m.correlation), m.first))
    return MatchedLatents((first.name, second.name), matches, canonical_correlations(first.values, everything))


def _both_r2(inputs: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Held-out R² of a linear and of a smooth function; 0 at least."""
    if not inputs.shape[1]:
        return 0.0, 0.0
    linear = float(explained_variance(inputs, target)[0])
    return linear, max(linear, explained_smoothly(inputs, target[:, 0]))
