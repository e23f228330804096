"""From costs of rotations and agreement between models to a verdict, a score and a sentence per latent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse.csgraph import connected_components

from vaescope.identification.planes import PlaneCosts
from vaescope.identification.seeds import SeedAgreement

TOLERANCE = 0.01  # nats per sample up to which a rotation is free
SAME_AXIS = 0.9  # rank correlation with its match in a typical other model
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


def axis_score(planes: PlaneCosts, tolerance: float = TOLERANCE) -> np.ndarray:
    """How firmly the ELBO holds each latent in its place, (u,): b / (b + tolerance) · cos 2φ of its weakest plane.

    b is what the worst rotation in a plane costs, and φ the angle between the axes and the best ones. The score is 1/2
    if b is the tolerance, 0 if every rotation is free or the axes are at the worst angle, and 1 for the only latent.

    >>> from vaescope.identification.planes import free_planes
    >>> axis_score(free_planes([0, 1]))
    array([0., 0.])
    """
    if len(planes.latents) < 2:
        return np.ones(len(planes.latents))
    held = planes.barrier / (planes.barrier + tolerance)
    placed = np.cos(2 * np.deg2rad(planes.angle)).clip(0.0, 1.0)
    scores = held * placed
    np.fill_diagonal(scores, np.inf)
    return np.asarray(scores.min(1))


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
    held = np.ones(count) if planes is None else axis_score(planes, tolerance)
    stable = np.ones(count) if agreement is None else agreement.axis_median
    shared = np.ones(count) if agreement is None else agreement.subspace_median
    axis = (held >= 0.5) & (stable >= SAME_AXIS)
    kind = ["axis" if a else "subspace" if s >= SAME_SUBSPACE else "none" for a, s in zip(axis, shared, strict=True)]
    groups = _groups(planes, mixing, [k for k, name in enumerate(kind) if name == "subspace"], tolerance)
    return Verdict(latents, kind, held * stable, [[latents[k] for k in group] for group in groups])


def _groups(
    planes: PlaneCosts | None, mixing: Sequence[np.ndarray], chosen: list[int], tolerance: float
) -> list[list[int]]:
    """Connected latents: rotations between them are free, or another model mixes them."""
    joined = np.zeros((len(chosen), len(chosen)), dtype=bool)
    if planes is not None and len(planes.latents) > 1:
        scores = planes.barrier / (planes.barrier + tolerance) * np.cos(2 * np.deg2rad(planes.angle))
        joined |= np.nan_to_num(scores[np.ix_(chosen, chosen)], nan=1.0) < 0.5
    for correlations in mixing:
        mixed = correlations[:, chosen] >= MIXED
        joined |= np.einsum("mi,mj->ij", mixed.astype(int), mixed.astype(int)) > 0
    if not chosen:
        return []
    _, label = connected_components(joined, directed=False)
    return [[chosen[i] for i in np.flatnonzero(label == g)] for g in range(label.max() + 1)]
