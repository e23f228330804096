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


@dataclass(frozen=True, eq=False)
class SeedAgreement:
    """Of each latent in use of the first model with the other models, (M, u): one row per other model."""

    axis: np.ndarray
    """Rank correlation with its match in the other model."""
    subspace: np.ndarray
    """Share of its variance that is a linear function of the other model's latents, held out."""
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
    def same_share(self) -> np.ndarray:
        """(u,) share of all models that have the latent, this one included."""
        return np.asarray(((self.axis >= SAME).sum(0) + 1) / (len(self.axis) + 1))

    @property
    def subspace_median(self) -> np.ndarray:
        return np.asarray(np.median(self.subspace, axis=0))


def seed_agreement(codes: np.ndarray, others: Sequence[np.ndarray]) -> SeedAgreement:
    """Compare one model with others.

    Args:
        codes: (N, u) latents in use of the first model.
        others: (N, u) latents in use of every other model, on the same samples.
    """
    axis = np.array([_axis(codes, other) for other in others])
    subspace = np.array([_subspace(codes, other) for other in others])
    return SeedAgreement(axis, subspace, _interval(codes, others))


def _axis(codes: np.ndarray, other: np.ndarray) -> np.ndarray:
    if not other.shape[1]:
        return np.zeros(codes.shape[1])
    return best_matching(spearman_correlations(other, codes))[0]


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
