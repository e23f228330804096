"""Mixings: invertible maps from sources to observations, used as data generators and as decoders.

A mixing is a callable (..., d) → (..., d) with `.inverse(x)` and `.log_abs_det(z)`, reproducible from its seed.
Parameters are float64 and are converted to the dtype and device of the input.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from scipy.optimize import brentq
from torch import Tensor

from vaescope.core import randomness, validation
from vaescope.core.errors import InputError

__all__ = ["Compose", "LinearMap", "Mixing", "Moebius", "OrthogonalMLP", "TriangularMLP"]


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


class Mixing:
    """A composition of invertible maps.

    Args:
        dim: number of sources, and of observed dimensions.
        maps: applied from first to last.

    >>> mixing = Moebius(3, seed=0)
    >>> z = torch.zeros(2, 3, dtype=torch.float64)
    >>> torch.allclose(mixing.inverse(mixing(z)), z)
    True
    """

    def __init__(self, dim: int, maps: list[InvertibleMap]) -> None:
        self.dim = dim
        self.maps = maps

    def __call__(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        self._check_dim(z, "latents")
        for layer in self.maps:
            z = layer(z)
        return z

    def inverse(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """The latents of x; NaN where x is outside the range of the mixing.

        Args:
            x: observations (..., d).
        """
        self._check_dim(x, "observations")
        for layer in reversed(self.maps):
            x = layer.inverse(x)
        return x

    def log_abs_det(self, z: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch"]:
        """log |det J(z)|, in closed form.

        Args:
            z: latents (..., d).
        """
        self._check_dim(z, "latents")
        total = torch.zeros_like(z[..., 0])
        for layer in self.maps:
            total = total + layer.log_abs_det(z)
            z = layer(z)
        return total

    def _check_dim(self, points: Tensor, name: str) -> None:
        if points.shape[-1] != self.dim:
            raise InputError(
                f"this mixing has {self.dim} dimensions, got {name} of shape {tuple(points.shape)}; "
                f"the last axis must be {self.dim}."
            )


class Compose(Mixing):
    """Mixings applied from left to right: `Compose(first, second)(z) = second(first(z))`.

    Args:
        mixings: at least one, all of the same dimension.
    """

    def __init__(self, *mixings: Mixing) -> None:
        if not mixings:
            raise InputError("Compose needs at least one mixing, got none.")
        dims = sorted({m.dim for m in mixings})
        if len(dims) > 1:
            raise InputError(f"composed mixings must have the same dimension, got {dims}.")
        super().__init__(dims[0], [layer for mixing in mixings for layer in mixing.maps])


def _generator(dim: int, seed: int) -> torch.Generator:
    validation.integer("dim of a mixing", dim)
    return torch.Generator().manual_seed(seed)


def _mlp(weights: list[Tensor], activation: str, *, activate_input: bool = False) -> list[InvertibleMap]:
    """Linear maps with activations between them and, optionally, before the first; none after the last."""
    validation.integer("layers of a mixing", len(weights))
    activations: dict[str, type[InvertibleMap]] = {"smooth_leaky_relu": SmoothLeakyReLU, "sigmoid": Sigmoid}
    activate = activations[validation.choice("activation", activation, activations)]
    maps: list[InvertibleMap] = [activate()] if activate_input else []
    for index, weight in enumerate(weights):
        maps += [activate()] if index else []
        maps += [Affine(weight)]
    return maps


class OrthogonalMLP(Mixing):
    """An MLP with orthogonal weights; with two or more layers it is outside the IMA class.

    One layer with `activate_input` is x = W σ(z): non-linear, but inside the IMA class, because its Jacobian W diag(σ')
    has orthogonal columns.

    Args:
        dim: number of sources, and of observed dimensions.
        layers: number of weight matrices.
        seed: of the weights.
        activation: `smooth_leaky_relu` or `sigmoid`, between layers.
        activate_input: also apply the activation before the first layer.
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
        weights = [random_orthogonal(dim, generator) for _ in range(layers)]
        super().__init__(dim, _mlp(weights, activation, activate_input=activate_input))


class TriangularMLP(Mixing):
    """An MLP with lower triangular weights; the smaller the `diagonal`, the larger c_IMA.

    Args:
        dim: number of sources, and of observed dimensions.
        layers: number of weight matrices.
        seed: of the weights.
        activation: `smooth_leaky_relu` or `sigmoid`, between layers.
        diagonal: factor of the diagonal entries, whose absolute values are at least 0.5 without it; not 0.
    """

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
        weights = [random_lower_triangular(dim, generator, diagonal=diagonal) for _ in range(layers)]
        super().__init__(dim, _mlp(weights, activation))


class Moebius(Mixing):
    """x = t + α W (z - b) / ‖z - b‖²: conformal, so c_IMA = 0 everywhere (Reizinger et al. 2022, §4.3).

    The pole b is outside the box [low, high]^d of the sources, and t centres the observations of sources that are
    uniform on that box.

    Args:
        dim: number of sources, and of observed dimensions.
        seed: of W, a random orthogonal matrix, and of the pole.
        low: lower bound of every source.
        high: upper bound of every source.
        scale: α.
        pole: b, (d,), outside the box; by default random, with every component outside [low, high].
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
        if not low < high:
            raise InputError(f"the sources' box needs low < high, got low={low}, high={high}.")
        generator = _generator(dim, seed)
        weight = scale * random_orthogonal(dim, generator)
        self.pole = _pole_outside(dim, low, high, generator) if pole is None else pole.double()
        if bool(((self.pole >= low) & (self.pole <= high)).all()):
            raise InputError(
                f"the pole {[round(v, 3) for v in self.pole.tolist()]} of a Möbius mixing is inside the "
                f"sources' box [{low}, {high}]; choose one outside, or omit it."
            )
        inversion = Inversion(self.pole)
        box = torch.quasirandom.SobolEngine(dim).draw(2**14, dtype=torch.float64)
        centre = (inversion(low + (high - low) * box) @ weight.T).mean(0)
        super().__init__(dim, [inversion, Affine(weight, -centre)])


def _pole_outside(dim: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """A pole with normal components about the centre of the box, redrawn until each is outside."""
    centre, half = (low + high) / 2, (high - low) / 2
    offset = torch.zeros(dim, dtype=torch.float64)
    while bool((inside := offset.abs() <= half).any()):
        fresh = 2 * half * torch.randn(dim, dtype=torch.float64, generator=generator)
        offset = torch.where(inside, fresh, offset)
    return centre + offset


class LinearMap(Mixing):
    """A linear map with |det| = 1 and, if given, a c_IMA of `contrast`.

    Args:
        dim: number of sources, and of observed dimensions.
        contrast: c_IMA in nats, from 0 (orthogonal) to below 50; by default whatever the seed gives.
        seed: of the weights.

    >>> round(LinearMap(3, contrast=2.0, seed=1).contrast, 9)
    2.0
    """

    def __init__(self, dim: int, *, contrast: float | None = None, seed: int) -> None:
        _generator(dim, seed)
        strength = 2.0 if contrast is None else _strength(dim, contrast, seed)
        weight = random_volume_preserving(dim, strength, torch.Generator().manual_seed(seed))
        self.contrast = float(weight.norm(dim=0).log().sum())  # log|det| is zero
        super().__init__(dim, [Affine(weight)])


def _strength(dim: int, contrast: float, seed: int) -> float:
    """The strength that gives this contrast, which is a convex function of strength with its minimum 0 at 0."""
    if not 0 <= contrast < 50 or (dim == 1 and contrast > 0):
        raise InputError(f"contrast of a linear map must be in [0, 50), and 0 in one dimension, got {contrast}.")

    def excess(strength: float) -> float:
        weight = random_volume_preserving(dim, strength, torch.Generator().manual_seed(seed))
        return float(weight.norm(dim=0).log().sum()) - contrast

    if contrast < 1e-12:  # below rounding
        return 0.0
    upper = 1.0
    while excess(upper) < 0:
        upper *= 2
    return float(brentq(excess, 0.0, upper, xtol=1e-15, rtol=1e-14))


@dataclass(frozen=True, eq=False)
class NonstationarySources:
    """Sources that are independent and normal given the auxiliary variable, in random order."""

    sources: Float[Tensor, "N d"]
    auxiliary: Int[Tensor, " N"] | Float[Tensor, "N 1"]
    """Segment labels, or numbers in [-1, 1]."""
    variance: Float[Tensor, "N d"]


def segments(
    dim: int, *, samples: int, segments: int = 40, low: float = 0.5, high: float = 3.0, seed: int
) -> NonstationarySources:
    """Sources whose variances, uniform in [low, high], differ between segments; the auxiliary variable is the segment.

    Khemakhem et al. 2020, §5; the time-contrastive data of Hyvärinen & Morioka 2016.

    >>> segments(2, samples=100, segments=5, seed=0).auxiliary.max()
    tensor(4)
    """
    _check_size(dim, samples)
    if not 2 <= segments <= samples or not 0 < low < high:
        raise InputError(
            f"sources need 2 to {samples} segments and 0 < low < high, got {segments} segments, low={low}, high={high}."
        )
    generator = randomness.generator(seed, "segments")
    variances = low + (high - low) * torch.rand(segments, dim, generator=generator, dtype=torch.float64)
    label = torch.arange(samples)[torch.randperm(samples, generator=generator)] % segments
    return _normal_sources(label, variances[label], generator)


def drift(dim: int, *, samples: int, strength: float = 1.0, seed: int) -> NonstationarySources:
    """Sources whose log-variances are sines of an auxiliary variable, which is uniform in [-1, 1].

    Every source has its own frequency and phase; `strength` is the amplitude.

    >>> drift(2, samples=100, seed=0).auxiliary.shape
    torch.Size([100, 1])
    """
    _check_size(dim, samples)
    generator = randomness.generator(seed, "drift")
    auxiliary = 2 * torch.rand(samples, 1, generator=generator, dtype=torch.float64) - 1
    frequency = 1 + torch.rand(dim, generator=generator, dtype=torch.float64)
    phase = 2 * math.pi * torch.rand(dim, generator=generator, dtype=torch.float64)
    variance = torch.exp(strength * torch.sin(math.pi * frequency * auxiliary + phase))
    return _normal_sources(auxiliary, variance, generator)


def _normal_sources(auxiliary: Tensor, variance: Tensor, generator: torch.Generator) -> NonstationarySources:
    noise = torch.randn(variance.shape, generator=generator, dtype=torch.float64)
    return NonstationarySources(variance.sqrt() * noise, auxiliary, variance)


def _check_size(dim: int, samples: int) -> None:
    if dim < 1 or samples < 2:
        raise InputError(f"sources need at least 1 dimension and 2 samples, got {dim} and {samples}.")
