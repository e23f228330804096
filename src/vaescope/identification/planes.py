"""What rotating each pair of latents costs, with standard errors over samples."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.encoded import EncodedSample
from vaescope.identification.curvature import Curvature, measure_curvature
from vaescope.identification.prior_term import own_prior, prior_costs
from vaescope.theory.rotation_cost import cost_curvature, plane_costs

ANGLES = torch.linspace(-torch.pi / 4, torch.pi / 4, 61, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class PlaneCosts:
    """Matrices (u, u) over pairs of latents in use; NaN on the diagonal."""

    latents: list[int]
    barrier: np.ndarray
    """ELBO lost between the best and the worst rotation of the two latents, in nats per sample."""
    stderr: np.ndarray
    curvature: np.ndarray
    """Second derivative of the cost in the angle, in nats per squared radian."""
    angle: np.ndarray
    """Rotation that would be best, in degrees; 0 if the axes are where the ELBO wants them."""
    gain: np.ndarray
    """ELBO gained by that rotation."""
    norm_ratio: np.ndarray
    """Typical ratio of the shorter to the longer Jacobian column, 1 if equal at every code."""


def measure_planes(sample: EncodedSample, used: list[int]) -> PlaneCosts:
    """Costs of all pairs of latents in use."""
    found, prior, count = measure_curvature(sample, used), own_prior(sample), len(used)
    matrices = np.full((6, count, count), np.nan)
    for i, j in combinations(range(count), 2):
        fixed = prior_costs(prior, sample.mean[:, [used[i], used[j]]], ANGLES)
        matrices[:, i, j] = matrices[:, j, i] = _plane(found, (i, j), fixed)
    return PlaneCosts(found.latents, *matrices)


def free_planes(latents: list[int]) -> PlaneCosts:
    """Costs of a posterior family that every rotation leaves unchanged: zero."""
    zero = np.zeros((len(latents), len(latents)))
    return PlaneCosts(latents, zero, zero, zero, zero, zero, np.full_like(zero, np.nan))


def _plane(found: Curvature, plane: tuple[int, int], fixed: Float[Tensor, " A"]) -> tuple[float, ...]:
    costs = plane_costs(found.matrices, found.prior_variance, plane, ANGLES) + fixed[:, None]
    means = costs.mean(1)
    low, high = int(means.argmin()), int(means.argmax())
    gain = -float(means[low])
    if gain < 1e-9:  # rounding
        low, gain = len(ANGLES) // 2, 0.0
    spread = costs[high] - costs[low]
    norms = found.column_norms[:, list(plane)].clamp(min=1e-12).log()
    return (
        float(spread.mean()),
        float(spread.std() / len(spread) ** 0.5) if len(spread) > 1 else np.nan,
        float(cost_curvature(found.matrices, plane).mean()),
        float(torch.rad2deg(ANGLES[low])),
        gain,
        float((-(norms[:, 0] - norms[:, 1]).abs()).mean().exp()),
    )
