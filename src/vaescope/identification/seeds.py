"""Agreement between models, latent by latent: by axes, and by the subspace that the other model's latents span."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vaescope.metrics.inputs import CodesAndFactors
from vaescope.metrics.mcc import best_matching, spearman_correlations
from vaescope.metrics.r2 import held_out_r2

RESAMPLES = 50
SAME = 0.95  # rank correlation of latents that are the same
STEEPNESS = (
    8  # with which disagreement lowers the score; chosen on development mixings of benchmarks/identifiability.py
)


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

    @property
    def axis_median(self) -> np.ndarray:
        return np.asarray(np.median(self.axis, axis=0))

    @property
    def same(self) -> np.ndarray:
        """(u,) whether at least half of the other models have the latent: a rank correlation of at least 0.95."""
        return np.asarray((self.axis >= SAME).mean(0) >= 0.5)

    @property
    def credibility(self) -> np.ndarray:
        """(u,) 1 if most other models have the latent, up to free rotations; less the larger the angle between them.

        It is min(1, (18° / θ)⁸), where the cosine of θ is the median of `up_to_rotation` and that of 18° is 0.95. The
        exponent was chosen on mixings with known sources. Disagreement about a rotation that costs nothing says nothing
        about the rest of the model, and what a free rotation means for a latent is already in the cost of rotations.
        """
        angle = np.arccos(np.median(self.up_to_rotation, axis=0).clip(0.0, SAME))
        return np.asarray((np.arccos(SAME) / angle) ** STEEPNESS)

    @property
    def subspace_median(self) -> np.ndarray:
        return np.asarray(np.median(self.subspace, axis=0))


def seed_agreement(codes: np.ndarray, others: Sequence[np.ndarray], free: np.ndarray | None = None) -> SeedAgreement:
    """Compare one model with others.

    Args:
        codes: (N, u) latents in use of the first model.
        others: (N, u) latents in use of every other model, on the same samples.
        free: (u,) a label per latent, the same for latents that can be rotated into each other at no cost; by default
            no rotation is free.
    """
    axis = np.array([_axis(codes, other) for other in others])
    subspace = np.array([_subspace(codes, other) for other in others])
    labels = np.arange(codes.shape[1]) if free is None else free
    rotated = np.array([_up_to_rotation(codes, other, labels) for other in others])
    return SeedAgreement(axis, subspace, rotated, _interval(codes, others))


def _axis(codes: np.ndarray, other: np.ndarray) -> np.ndarray:
    if not other.shape[1]:
        return np.zeros(codes.shape[1])
    return best_matching(spearman_correlations(other, codes))[0]


def _up_to_rotation(codes: np.ndarray, other: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Correlation (u,) of every latent with a linear function of the matches of its free latents."""
    if not other.shape[1]:
        return np.zeros(codes.shape[1])
    found, match = best_matching(spearman_correlations(other, codes))
    for label in np.unique(free):
        group = np.flatnonzero(free == label)
        matched = match[group][match[group] >= 0]
        if len(group) > 1 and len(matched):
            found[group] = _multiple_correlation(other[:, matched], codes[:, group])
    return found


def _multiple_correlation(inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Largest correlation of each target with a linear function of the inputs."""
    inputs, targets = inputs - inputs.mean(0), targets - targets.mean(0)
    fitted = inputs @ np.linalg.lstsq(inputs, targets, rcond=None)[0]
    return np.asarray(np.sqrt(np.square(fitted).sum(0) / np.square(targets).sum(0).clip(1e-300)).clip(0.0, 1.0))


def _subspace(codes: np.ndarray, other: np.ndarray) -> np.ndarray:
    if not other.shape[1]:
        return np.zeros(codes.shape[1])
    first, second = CodesAndFactors(other, codes, (False,) * codes.shape[1]).halves
    return ((held_out_r2(first, second) + held_out_r2(second, first)) / 2).clip(0.0, 1.0)


def _interval(codes: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(RESAMPLES):
        rows = rng.integers(len(codes), size=min(500, len(codes)))
        chosen = rng.integers(len(others), size=len(others))
        values = {m: _axis(codes[rows], others[m][rows]) for m in set(chosen.tolist())}
        found.append(np.median([values[m] for m in chosen.tolist()], axis=0))
    return np.quantile(found, (0.025, 0.975), axis=0)
