"""What rotating each pair of latents costs, with standard errors over samples."""

from __future__ import annotations

import math
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

TOLERANCE = 0.01  # nats per sample up to which a rotation is free
RIGHT = math.acos(0.95) + 1e-6  # angle between axes whose correlation is 0.95
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
    held: np.ndarray
    """Probability that the axes are within 18° of the right ones, a correlation of 0.95: see `held_probability`."""


def measure_planes(sample: EncodedSample, used: list[int], tolerance: float = TOLERANCE) -> PlaneCosts:
    """Costs of all pairs of latents in use."""
    found, prior, count = measure_curvature(sample, used), own_prior(sample), len(used)
    matrices = np.full((7, count, count), np.nan)
    for i, j in combinations(range(count), 2):
        fixed = prior_costs(prior, sample.mean[:, [used[i], used[j]]], ANGLES)
        matrices[:, i, j] = matrices[:, j, i] = _plane(found, (i, j), fixed, tolerance)
    return PlaneCosts(found.latents, *matrices)


def free_planes(latents: list[int]) -> PlaneCosts:
    """Costs of a posterior family that every rotation leaves unchanged: zero."""
    zero = np.zeros((len(latents), len(latents)))
    held = np.full_like(zero, held_probability(torch.zeros_like(ANGLES)))
    return PlaneCosts(latents, zero, zero, zero, zero, zero, np.full_like(zero, np.nan), held)


def held_probability(costs: Float[Tensor, " A"], tolerance: float = TOLERANCE) -> float:
    """Probability that an axis is within 18° of the right one, if rotations are as likely as their costs allow.

    An angle θ has the weight exp(-cost(θ) / tolerance). It is near 1 if every other angle costs much more than the
    tolerance, 0.4 if all angles of a plane cost the same, and near 0 if the ELBO prefers another angle.

    Args:
        costs: nats per sample at each of `ANGLES`.
        tolerance: nats per sample that training does not resolve.

    >>> round(held_probability(torch.zeros(61)), 2), round(held_probability(10 * ANGLES**2), 2)
    (0.41, 1.0)
    """
    weights = torch.softmax(-costs.double() / tolerance, 0)
    return float(weights[ANGLES.abs() <= RIGHT].sum())


def _plane(found: Curvature, plane: tuple[int, int], fixed: Float[Tensor, " A"], tolerance: float) -> tuple[float, ...]:
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
        held_probability(means, tolerance),
    )
