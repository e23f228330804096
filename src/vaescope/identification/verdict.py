"""From costs of rotations and agreement between models to a verdict, a score and a sentence per latent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import connected_components

from vaescope.identification.planes import TOLERANCE, PlaneCosts
from vaescope.identification.seeds import SeedAgreement

SAME_SUBSPACE = 0.8  # share of variance that is a linear function of the other model's latents
MIXED = 0.3  # correlation above which a latent of another model contains a latent


@dataclass(frozen=True, eq=False)
class Verdict:
    """What is known of each latent in use, in the order of `latents`."""

    latents: list[int]
    kind: list[str]
    score: np.ndarray
    groups: list[list[int]]
    """Latents that only mean something together."""


def axis_score(planes: PlaneCosts) -> np.ndarray:
    """Probability (u,) that each latent is within 18° of the axis that the ELBO prefers, in every plane with another.

    >>> from vaescope.identification.planes import free_planes
    >>> axis_score(free_planes([0, 1])).round(2)
    array([0.41, 0.41])
    """
    held = planes.held.copy()
    np.fill_diagonal(held, 1.0)
    return np.asarray(held.prod(1))


def judge(
    latents: list[int],
    planes: PlaneCosts | None,
    agreement: SeedAgreement | None,
    mixing: Sequence[np.ndarray] = (),
    tolerance: float = TOLERANCE,
) -> Verdict:
    """A verdict per latent in use.

    Args:
        latents: those in use.
        planes: what rotations cost; None if there is no decoder.
        agreement: with other models; None if there are none.
        mixing: (u', u) correlations of the latents of every other model with these.
        tolerance: nats per sample up to which a rotation is free.
    """
    count = len(latents)
    held = np.ones(count) if planes is None else axis_score(planes)
    credible = np.ones(count) if agreement is None else agreement.credibility
    shared = np.ones(count) if agreement is None else agreement.subspace_median
    axis = (held >= 0.5) & (True if agreement is None else agreement.same)
    kind = ["axis" if a else "subspace" if s >= SAME_SUBSPACE else "none" for a, s in zip(axis, shared, strict=True)]
    groups = _groups(planes, mixing, [k for k, name in enumerate(kind) if name == "subspace"], tolerance)
    return Verdict(latents, kind, held * credible, [sorted(latents[k] for k in group) for group in groups])


def free_groups(planes: PlaneCosts | None, count: int, tolerance: float = TOLERANCE) -> np.ndarray:
    """A label (u,) per latent, the same for latents that rotations at no cost connect.

    >>> from vaescope.identification.planes import free_planes
    >>> free_groups(free_planes([0, 1]), 2).tolist(), free_groups(None, 2).tolist()
    ([0, 0], [0, 1])
    """
    if planes is None or count < 2:
        return np.arange(count)
    return np.asarray(connected_components(_free(planes, tolerance), directed=False)[1])


def _free(planes: PlaneCosts, tolerance: float) -> np.ndarray:
    """(u, u) whether the axes of a plane are undecided."""
    return np.asarray((planes.barrier <= tolerance) | (planes.held < 0.5))


def _groups(
    planes: PlaneCosts | None, mixing: Sequence[np.ndarray], chosen: list[int], tolerance: float
) -> list[list[int]]:
    """Connected latents: rotations between them are free, or another model mixes them."""
    joined = np.zeros((len(chosen), len(chosen)), dtype=bool)
    if planes is not None and len(planes.latents) > 1:
        joined |= _free(planes, tolerance)[np.ix_(chosen, chosen)]
    for correlations in mixing:
        mixed = correlations[:, chosen] >= MIXED
        joined |= np.einsum("mi,mj->ij", mixed.astype(int), mixed.astype(int)) > 0
    if not chosen:
        return []
    _, label = connected_components(joined, directed=False)
    return [[chosen[i] for i in np.flatnonzero(label == g)] for g in range(label.max() + 1)]
