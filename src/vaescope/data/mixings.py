"""Mixings: invertible maps from sources to observations, the same object for data and for theory.

A mixing is a callable (..., d) → (..., d) with `.inverse(x)` and `.log_abs_det(z)`; the seed makes
it reproducible. Parameters are float64 and follow the dtype and device of what they are given.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from scipy.optimize import brentq
from torch import Tensor

from vaescope.data.pieces import (
    Affine,
    Inversion,
    Piece,
    Sigmoid,
    SmoothLeakyReLU,
    lower_triangular,
    rotation,
    volume_preserving,
)
from vaescope.errors import InputError

ACTIVATIONS: dict[str, Callable[[], Piece]] = {"smooth_leaky_relu": SmoothLeakyReLU, "sigmoid": Sigmoid}


class Mixing:
    """Pieces applied one after another.

    >>> mixing = Moebius(3, seed=0)
    >>> z = torch.zeros(2, 3, dtype=torch.float64)
    >>> torch.allclose(mixing.inverse(mixing(z)), z)
    True
    """

    def __init__(self, dim: int, pieces: list[Piece]) -> None:
        self.dim = dim
        self.pieces = pieces

    def __call__(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        self._check(z, "latents")
        for piece in self.pieces:
            z = piece(z)
        return z

    def inverse(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """The latents that were mixed into x; NaN where x is outside the mixing's image."""
        self._check(x, "observations")
        for piece in reversed(self.pieces):
            x = piece.inverse(x)
        return x

    def log_abs_det(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        """log |det J(z)|, in closed form piece by piece."""
        self._check(z, "latents")
        total = torch.zeros_like(z[..., 0])
        for piece in self.pieces:
            total = total + piece.log_abs_det(z)
            z = piece(z)
        return total

    def _check(self, points: Tensor, what: str) -> None:
        if points.shape[-1] != self.dim:
            raise InputError(
                f"this mixing has {self.dim} dimensions, got {what} of shape {tuple(points.shape)}; "
                f"the last axis must be {self.dim}."
            )


class Compose(Mixing):
    """Mixings applied from left to right: `Compose(first, second)(z) = second(first(z))`."""

    def __init__(self, *mixings: Mixing) -> None:
        if not mixings:
            raise InputError("Compose needs at least one mixing, got none.")
        dims = sorted({m.dim for m in mixings})
        if len(dims) > 1:
            raise InputError(f"composed mixings must share one dimension, got {dims}.")
        super().__init__(dims[0], [piece for m in mixings for piece in m.pieces])


def _generator(dim: int, seed: int) -> torch.Generator:
    if dim < 1:
        raise InputError(f"dim of a mixing must be at least 1, got {dim}.")
    return torch.Generator().manual_seed(seed)


def _layers(weights: list[Tensor], activation: str, *, activate_input: bool = False) -> list[Piece]:
    """Linear maps with the activation between them, and before the first if asked; none after the last."""
    if not weights:
        raise InputError("layers of a mixing must be at least 1, got 0.")
    if activation not in ACTIVATIONS:
        raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}.")
    pieces: list[Piece] = [ACTIVATIONS[activation]()] if activate_input else []
    for index, weight in enumerate(weights):
        pieces += [ACTIVATIONS[activation]()] if index else []
        pieces += [Affine(weight)]
    return pieces


class OrthogonalMLP(Mixing):
    """Orthogonal weights with an activation between them: outside the IMA class from two layers on.

    With one layer and `activate_input`, x = W σ(z): non-linear, and its Jacobian W diag(σ') has
    orthogonal columns, so it is inside the IMA class.
    """

    def __init__(
        self,
        dim: int,
        *,
        layers: int = 3,
        seed: int,
        activation: str = "smooth_leaky_relu",
        activate_input: bool = False,
    ) -> None:
        generator = _generator(dim, seed)
        weights = [rotation(dim, generator) for _ in range(layers)]
        super().__init__(dim, _layers(weights, activation, activate_input=activate_input))


class TriangularMLP(Mixing):
    """Lower triangular weights with an activation between them; a small `diagonal` makes c_IMA large."""

    def __init__(
        self,
        dim: int,
        *,
        layers: int = 2,
        seed: int,
        activation: str = "sigmoid",
        diagonal: float = 1.0,
    ) -> None:
        generator = _generator(dim, seed)
        weights = [lower_triangular(dim, generator, diagonal=diagonal) for _ in range(layers)]
        super().__init__(dim, _layers(weights, activation))


class Moebius(Mixing):
    """x = t + α W (z - b) / ‖z - b‖²: conformal, so c_IMA = 0 everywhere (Reizinger et al. 2022, §4.3).

    The pole b lies outside the sources' box [low, high]^d, and t centres the observations of
    sources that are uniform on that box.
    """

    def __init__(
        self,
        dim: int,
        *,
        seed: int,
        low: float = -0.5,
        high: float = 0.5,
        scale: float = 1.0,
        pole: Float[Tensor, " d"] | None = None,
    ) -> None:
        generator = _generator(dim, seed)
        weight = scale * rotation(dim, generator)
        self.pole = _pole_outside(dim, low, high, generator) if pole is None else pole.double()
        if bool(((self.pole >= low) & (self.pole <= high)).all()):
            raise InputError(
                f"the pole {[round(v, 3) for v in self.pole.tolist()]} of a Möbius mixing lies inside the "
                f"sources' box [{low}, {high}]; move it outside, or leave it to the seed."
            )
        inversion = Inversion(self.pole)
        box = torch.quasirandom.SobolEngine(dim).draw(2**14, dtype=torch.float64)
        centre = (inversion(low + (high - low) * box) @ weight.T).mean(0)
        super().__init__(dim, [inversion, Affine(weight, -centre)])


def _pole_outside(dim: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Every component normal about the box's centre, redrawn while it falls inside the box."""
    centre, half = (low + high) / 2, (high - low) / 2
    if not half > 0:
        raise InputError(f"the sources' box needs low < high, got low={low}, high={high}.")
    offset = torch.zeros(dim, dtype=torch.float64)
    while bool((inside := offset.abs() <= half).any()):
        fresh = 2 * half * torch.randn(dim, dtype=torch.float64, generator=generator)
        offset = torch.where(inside, fresh, offset)
    return centre + offset


class LinearMap(Mixing):
    """A linear map with |det| = 1 and, if `contrast` is given, exactly that c_IMA.

    >>> round(LinearMap(3, contrast=2.0, seed=1).contrast, 9)
    2.0
    """

    def __init__(self, dim: int, *, contrast: float | None = None, seed: int) -> None:
        _generator(dim, seed)
        strength = 2.0 if contrast is None else _strength(dim, contrast, seed)
        weight = volume_preserving(dim, strength, torch.Generator().manual_seed(seed))
        self.contrast = float(weight.norm(dim=0).log().sum())  # log|det| is zero
        super().__init__(dim, [Affine(weight)])


def _strength(dim: int, contrast: float, seed: int) -> float:
    """The strength with the wanted contrast: the contrast is convex in it, with its minimum 0 at 0."""
    if not 0 <= contrast < 50 or (dim == 1 and contrast > 0):
        raise InputError(f"contrast of a linear map must lie in [0, 50) (and be 0 in one dimension), got {contrast}.")

    def excess(strength: float) -> float:
        weight = volume_preserving(dim, strength, torch.Generator().manual_seed(seed))
        return float(weight.norm(dim=0).log().sum()) - contrast

    if contrast < 1e-12:  # below rounding
        return 0.0
    upper = 1.0
    while excess(upper) < 0:
        upper *= 2
    return float(brentq(excess, 0.0, upper, xtol=1e-15, rtol=1e-14))
