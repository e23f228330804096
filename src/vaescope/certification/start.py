"""A Gaussian approximation of each posterior at its mode, from which annealing starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.certification.joint import Joint
from vaescope.distributions import DiagonalGaussian

STEPS = 25  # of Newton's method
FLOOR = 0.25  # smallest precision, in units of the prior's


@dataclass(frozen=True, eq=False)
class Laplace:
    """N(centre, factor factorᵀ) in u, one per observation."""

    centre: Float[Tensor, "N d"]
    factor: Float[Tensor, "N d d"]

    def codes(self, t: Float[Tensor, "C N d"]) -> Float[Tensor, "C N d"]:
        """u = centre + factor t."""
        return self.centre + torch.einsum("nij,cnj->cni", self.factor, t)

    def standardise(self, u: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
        """t of codes u."""
        return torch.linalg.solve(self.factor, (u - self.centre).unsqueeze(2)).squeeze(2)

    @property
    def log_volume(self) -> Float[Tensor, " N"]:
        """log |det factor|."""
        return torch.linalg.slogdet(self.factor).logabsdet


def laplace_at_mode(joint: Joint, q: DiagonalGaussian) -> Laplace:
    """Newton's method from the encoder's mean to a mode of p(u|x); only x is used, never the true z."""
    floor = FLOOR / joint.sample.prior_variance.double().amax(1)
    u, size = q.mean.clone(), torch.ones(len(joint), 1, dtype=torch.float64)
    value, slope, values, vectors = _quadratic(joint, u, floor)
    for _ in range(STEPS):
        direction = torch.einsum("nij,nj->ni", vectors, torch.einsum("nij,ni->nj", vectors, slope) / values)
        trial = u + size * direction
        found = _quadratic(joint, trial, floor)
        better = found[0] >= value
        size = torch.where(better[:, None], (2 * size).clamp(max=1), size / 4)
        u, value, slope, values, vectors = (
            torch.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)
            for new, old in zip((trial, *found), (u, value, slope, values, vectors), strict=True)
        )
        if float(direction.abs().amax()) < 1e-6 or not bool(better.any()):
            break
    return Laplace(u, vectors / values.sqrt().unsqueeze(1))


def _quadratic(joint: Joint, u: Tensor, floor: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Value and gradient of log p(x, u), and the eigenvalues (made positive) and eigenvectors of minus its Hessian."""
    with torch.enable_grad():
        here = u.detach().requires_grad_()
        value = joint(here.unsqueeze(0))[0]
        (slope,) = torch.autograd.grad(value.sum(), here, create_graph=True)
        rows = [torch.autograd.grad(slope[:, k].sum(), here, retain_graph=True)[0] for k in range(u.shape[1])]
    precision = -torch.stack(rows, dim=1)
    symmetric = (0.5 * (precision + precision.mT)).nan_to_num(0.0, 0.0, 0.0)
    values, vectors = torch.linalg.eigh(symmetric)
    return value.detach(), slope.detach(), torch.maximum(values.abs(), floor[:, None]), vectors
