"""Invertible maps with exact inverses and log-determinants; mixings are compositions of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError


class InvertibleMap(ABC):
    """An invertible map of the last axis."""

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """Latents to observations."""

    @abstractmethod
    def inverse(self, x: Tensor) -> Tensor:
        """Observations to latents."""

    @abstractmethod
    def log_abs_det(self, z: Tensor) -> Tensor:
        """log |det J(z)| of every point."""


class Affine(InvertibleMap):
    """x = W z + t."""

    def __init__(self, weight: Float[Tensor, "d d"], shift: Float[Tensor, " d"] | None = None) -> None:
        smallest = float(torch.linalg.svdvals(weight)[-1])
        if not smallest > 1e-12 * float(torch.linalg.matrix_norm(weight)):
            raise InputError(
                f"a mixing must be invertible, got a singular weight matrix (smallest singular value "
                f"{smallest:.1e}); choose another seed or matrix."
            )
        self.weight = weight.double()
        self.shift = torch.zeros(len(weight), dtype=torch.float64) if shift is None else shift.double()
        self._inverse = torch.linalg.inv(self.weight)
        self._log_abs_det = float(torch.linalg.slogdet(self.weight).logabsdet)

    def __call__(self, z: Tensor) -> Tensor:
        return z @ self.weight.T.to(z) + self.shift.to(z)

    def inverse(self, x: Tensor) -> Tensor:
        return (x - self.shift.to(x)) @ self._inverse.T.to(x)

    def log_abs_det(self, z: Tensor) -> Tensor:
        return torch.full_like(z[..., 0], self._log_abs_det)


class SmoothLeakyReLU(InvertibleMap):
    """a·x + (1 - a)·log(1 + eˣ), elementwise (Gresele et al. 2021)."""

    def __init__(self, slope: float = 0.2) -> None:
        if not 0 < slope < 1:
            raise InputError(f"slope of a smooth leaky ReLU must be between 0 and 1, got {slope}.")
        self.slope = slope

    def __call__(self, z: Tensor) -> Tensor:
        return self.slope * z + (1 - self.slope) * F.softplus(z)

    def inverse(self, x: Tensor) -> Tensor:
        # the map is convex, increasing and above both x and a·x, so Newton's method converges monotonically from
        # min(x, x / a), which is above the root
        z = torch.minimum(x, x / self.slope)
        for _ in range(16):
            z = z - (self(z) - x) / self._derivative(z)
        return z

    def _derivative(self, z: Tensor) -> Tensor:
        return self.slope + (1 - self.slope) * torch.sigmoid(z)

    def log_abs_det(self, z: Tensor) -> Tensor:
        return self._derivative(z).log().sum(-1)


class Sigmoid(InvertibleMap):
    """1 / (1 + e⁻ˣ), elementwise."""

    def __call__(self, z: Tensor) -> Tensor:
        return torch.sigmoid(z)

    def inverse(self, x: Tensor) -> Tensor:
        return torch.logit(x)

    def log_abs_det(self, z: Tensor) -> Tensor:
        return (z - 2 * F.softplus(z)).sum(-1)


class Inversion(InvertibleMap):
    """z ↦ (z - b) / ‖z - b‖², a conformal map with its pole at b."""

    def __init__(self, pole: Float[Tensor, " d"]) -> None:
        self.pole = pole.double()

    def __call__(self, z: Tensor) -> Tensor:
        centred = z - self.pole.to(z)
        return centred / centred.square().sum(-1, keepdim=True)

    def inverse(self, x: Tensor) -> Tensor:
        return self.pole.to(x) + x / x.square().sum(-1, keepdim=True)

    def log_abs_det(self, z: Tensor) -> Tensor:
        squared_distance = (z - self.pole.to(z)).square().sum(-1)
        return -z.shape[-1] * squared_distance.log()


def random_orthogonal(dim: int, generator: torch.Generator) -> Float[Tensor, "d d"]:
    """An orthogonal matrix, uniformly distributed over the orthogonal group."""
    q, r = torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64, generator=generator))
    return q * r.diagonal().sign()


def random_lower_triangular(dim: int, generator: torch.Generator, *, diagonal: float = 1.0) -> Float[Tensor, "d d"]:
    """Normal entries below the diagonal; diagonal entries are at least 0.5 in absolute value, times `diagonal`."""
    normal = torch.randn(dim, dim, dtype=torch.float64, generator=generator)
    entries = normal.diagonal()
    nonzero = torch.where(entries < 0, -1.0, 1.0) * (0.5 + entries.abs())
    return normal.tril(-1) + torch.diag(diagonal * nonzero)


def random_volume_preserving(dim: int, strength: float, generator: torch.Generator) -> Float[Tensor, "d d"]:
    """R₁ exp(strength · diag λ) R₂ with Σλ = 0: |det| = 1, and orthogonal at strength 0."""
    exponents = torch.randn(dim, dtype=torch.float64, generator=generator)
    exponents = exponents - exponents.mean()
    exponents = exponents / exponents.norm().clamp_min(math.ulp(1.0))
    left, right = random_orthogonal(dim, generator), random_orthogonal(dim, generator)
    return left * (strength * exponents).exp() @ right
