"""The rotation of the latents that makes a decoder's Jacobian columns as orthogonal as possible."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.theory.ima import contrast_of_matrix

SWEEPS = 30
ANGLES = torch.linspace(-torch.pi / 4, torch.pi / 4, 61, dtype=torch.float64)
RIDGE = 1e-9  # relative to the mean squared column length; keeps logarithms finite during the search
MINIMUM_GAIN = 1e-7  # nats per sweep; the search stops below it


@dataclass(frozen=True, eq=False)
class Rotation:
    """Mean contrast of the given axes, and of the best rotation common to all points."""

    before: float
    after: float
    matrix: np.ndarray
    """(d, d): columns are the rotated axes."""
    largest_angle: float
    """Largest angle in degrees between a rotated axis and the nearest original axis."""

    @property
    def gain(self) -> float:
        """Reduction of the mean contrast, in nats."""
        return self.before - self.after


def best_rotation(J: Float[Tensor, "P n d"]) -> Rotation:
    """Jacobi sweeps: rotate each pair of axes by the angle that lowers the mean contrast most.

    A rotation leaves det JᵀJ unchanged, so the search minimises the mean of Σ_k log ‖J r_k‖ over points.

    Args:
        J: Jacobians of full column rank, one per point.

    >>> turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    >>> round(best_rotation(torch.diag(torch.tensor([1.0, 3.0])).double()[None] @ turn).after, 6)
    0.0
    """
    J = J.double()
    axes = _best_axes(J.mT @ J)
    nearest = axes.abs().max(0).values.clamp(max=1)
    return Rotation(
        before=float(contrast_of_matrix(J).mean()),
        after=float(contrast_of_matrix(J @ axes).mean()),
        matrix=axes.numpy(),
        largest_angle=float(torch.rad2deg(torch.arccos(nearest)).max()),
    )


def _best_axes(gram: Float[Tensor, "P d d"]) -> Float[Tensor, "d d"]:
    d = gram.shape[-1]
    axes = torch.eye(d, dtype=torch.float64)
    gram = gram + RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * axes
    current = _mean_log_length(gram)
    for _ in range(SWEEPS):
        for i in range(d):
            for j in range(i + 1, d):
                angle = _best_angle(gram[:, i, i], gram[:, j, j], gram[:, i, j])
                if abs(angle) < 1e-6:
                    continue
                for matrix in (axes, gram, gram.mT):  # columns of the axes; columns, then rows of the Gram matrices
                    _rotate_columns(matrix, i, j, angle)
        previous, current = current, _mean_log_length(gram)
        if previous - current < MINIMUM_GAIN:
            break
    return axes


def _rotate_columns(matrix: Float[Tensor, "*batch d d"], i: int, j: int, angle: float) -> None:
    """Rotate columns i and j in place."""
    first, second = matrix[..., i].clone(), matrix[..., j].clone()
    cos, sin = float(np.cos(angle)), float(np.sin(angle))
    matrix[..., i] = cos * first + sin * second
    matrix[..., j] = cos * second - sin * first


def _mean_log_length(gram: Float[Tensor, "P d d"]) -> float:
    """Mean over points of Σ_k log ‖J r_k‖."""
    return float(0.5 * gram.diagonal(dim1=1, dim2=2).log().sum(1).mean())


def _best_angle(a: Float[Tensor, " P"], b: Float[Tensor, " P"], c: Float[Tensor, " P"]) -> float:
    """The angle that lowers the mean log length of a pair of columns most; 0 if none does.

    Args:
        a: squared length of the first column at each point.
        b: squared length of the second column.
        c: their inner product.
    """
    best, width = 0.0, float(ANGLES[1] - ANGLES[0])
    grid = ANGLES
    for _ in range(3):  # refine around the best angle
        cos, sin = grid.cos()[:, None], grid.sin()[:, None]
        first = cos**2 * a + 2 * cos * sin * c + sin**2 * b
        second = sin**2 * a - 2 * cos * sin * c + cos**2 * b
        values = (first.clamp(min=1e-300).log() + second.clamp(min=1e-300).log()).mean(1)
        best = float(grid[values.argmin()])
        grid = torch.linspace(best - width, best + width, 41, dtype=torch.float64)
        width /= 20
    unrotated = (a.log() + b.log()).mean()
    return best if float(values.min()) < float(unrotated) - 1e-10 else 0.0
