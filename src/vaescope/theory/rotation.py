"""Would other axes be better? The rotation of latents that makes a decoder's columns most orthogonal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

SWEEPS = 30
ANGLES = torch.linspace(-torch.pi / 4, torch.pi / 4, 61, dtype=torch.float64)
RIDGE = 1e-9
ENOUGH = 1e-7  # nats per sweep below which nothing is gained any more


@dataclass(frozen=True, eq=False)
class Rotation:
    """Mean contrast with the axes as they are, and with the best common rotation of them."""

    before: float
    after: float
    matrix: np.ndarray
    """(u, u): columns are the better axes."""
    turned: float
    """The largest angle between an axis and the better one that is nearest to it, in degrees."""

    @property
    def gained(self) -> float:
        """Nats of contrast, on average, that other axes would save."""
        return self.before - self.after


def best_rotation(J: Float[Tensor, "P n d"]) -> Rotation:
    """Jacobi sweeps over pairs of axes: each pair is turned by the angle that lowers the mean contrast most.

    Rotations leave det JᵀJ as it is, so that the contrast falls exactly as the columns' lengths do: what is minimised
    is the mean of Σ_k log ‖J r_k‖.

    >>> turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    >>> round(best_rotation(torch.diag(torch.tensor([1.0, 3.0])).double()[None] @ turn).after, 6)
    0.0
    """
    gram = J.double().mT @ J.double()
    d = gram.shape[-1]
    gram = gram + RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(d, dtype=torch.float64)
    whole = torch.linalg.slogdet(gram).logabsdet
    axes = torch.eye(d, dtype=torch.float64)
    start = _contrast(gram, whole)
    gram = gram.clone()
    now = start
    for _ in range(SWEEPS):
        for i in range(d):
            for j in range(i + 1, d):
                angle = _best_angle(gram[:, i, i], gram[:, j, j], gram[:, i, j])
                if abs(angle) < 1e-6:
                    continue
                for matrix in (axes, gram, gram.mT):  # columns of the axes; columns, then rows of the Gram matrices
                    _turn(matrix, i, j, angle)
        before, now = now, _contrast(gram, whole)
        if before - now < ENOUGH:
            break
    reach = axes.abs().max(0).values.clamp(max=1)
    turned = float(torch.rad2deg(torch.arccos(reach)).max())
    return Rotation(start, _contrast(gram, whole), axes.numpy(), turned)


def _turn(matrix: Float[Tensor, "*batch d d"], i: int, j: int, angle: float) -> None:
    """Columns i and j in place, by an angle."""
    first, second = matrix[..., i].clone(), matrix[..., j].clone()
    cos, sin = float(np.cos(angle)), float(np.sin(angle))
    matrix[..., i] = cos * first + sin * second
    matrix[..., j] = cos * second - sin * first


def _contrast(gram: Float[Tensor, "P d d"], whole: Float[Tensor, " P"]) -> float:
    """Mean c_IMA of Gram matrices with these log determinants."""
    lengths = gram.diagonal(dim1=1, dim2=2).log().sum(1)
    return float((0.5 * (lengths - whole)).clamp(min=0).mean())


def _best_angle(a: Float[Tensor, " P"], b: Float[Tensor, " P"], c: Float[Tensor, " P"]) -> float:
    """The angle of a pair with Gram entries a, b and c that lowers the mean of log lengths most; 0 where none does."""
    best, width = 0.0, float(ANGLES[1] - ANGLES[0])
    grid = ANGLES
    for _ in range(3):  # each time finer, around the best
        cos, sin = grid.cos()[:, None], grid.sin()[:, None]
        first = cos**2 * a + 2 * cos * sin * c + sin**2 * b
        second = sin**2 * a - 2 * cos * sin * c + cos**2 * b
        values = (first.clamp(min=1e-300).log() + second.clamp(min=1e-300).log()).mean(1)
        best = float(grid[values.argmin()])
        grid = torch.linspace(best - width, best + width, 41, dtype=torch.float64)
        width /= 20
    now = (a.log() + b.log()).mean()
    return best if float(values.min()) < float(now) - 1e-10 else 0.0
