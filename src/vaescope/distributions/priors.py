r"""Factorised priors p₀(z) = Π_k p₀(z_k).

A bounded prior is reached from an unbounded coordinate `u` by an affine logistic sigmoid
(`to_support`); Gaussian posteriors live in `u`, so prior and posterior share one support and
nothing has to be shifted afterwards. For an unbounded prior `u` is `z` itself.

Every prior answers the same questions, all elementwise: its log-density and curvature in `z`
(theory), and `expected_log_density`, the expectation of its log-density *in the coordinate u*
under a normal distribution (objectives; exact or by one-dimensional quadrature).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vaescope.distributions.quadrature import expectation
from vaescope.errors import InputError

Number = float | Tensor

LOG_2PI = math.log(2 * math.pi)


class Prior(ABC):
    """What every prior can do. Parameters are numbers, or tensors that broadcast against `z`."""

    @abstractmethod
    def log_density(self, z: Tensor) -> Tensor:
        """log p₀ of every coordinate; -inf outside the support."""

    @abstractmethod
    def curvature(self, z: Tensor) -> Tensor:
        """-(log p₀)'' of every coordinate, the prior's term in Eq. 12 of Reizinger et al. 2022."""

    @abstractmethod
    def expected_log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E[log p(u)] under u ~ N(mean, variance), p the prior's density in the coordinate u."""

    @abstractmethod
    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        """Independent draws of the given shape."""

    def to_support(self, u: Tensor) -> Tensor:
        """The latent z that belongs to the unbounded coordinate u."""
        return u

    def from_support(self, z: Tensor) -> Tensor:
        """The unbounded coordinate of z; the inverse of `to_support`."""
        return z

    def log_slope(self, u: Tensor) -> Tensor:
        """log dz/du of every coordinate."""
        return torch.zeros_like(u)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The support of every coordinate, or None when it is the whole line."""
        return None

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of z when u ~ N(mean, variance)."""
        return mean, variance

    def start(self) -> float:
        """The u of the prior's centre, where a search for a latent may begin."""
        return 0.0

    @abstractmethod
    def mean_and_variance(self) -> tuple[Number, Number]:
        """Of every coordinate."""


def _positive(name: str, value: Number, prior: str) -> None:
    if not bool((torch.as_tensor(value) > 0).all()):
        raise InputError(f"{name} of a {prior} prior must be > 0, got {value}.")


@dataclass(frozen=True, eq=False)
class Normal(Prior):
    """N(mean, variance). Tensors give every latent, or every sample, its own (a conditional prior).

    >>> Normal().log_density(torch.zeros(1, dtype=torch.float64))
    tensor([-0.9189], dtype=torch.float64)
    """

    mean: Number = 0.0
    variance: Number = 1.0

    def __post_init__(self) -> None:
        _positive("variance", self.variance, "normal")

    def _log_variance(self) -> Number:
        return torch.log(self.variance) if isinstance(self.variance, Tensor) else math.log(self.variance)

    def log_density(self, z: Tensor) -> Tensor:
        return -0.5 * ((z - self.mean) ** 2 / self.variance + self._log_variance() + LOG_2PI)

    def curvature(self, z: Tensor) -> Tensor:
        return torch.ones_like(z) / self.variance

    def expected_log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        second_moment = (mean - self.mean) ** 2 + variance
        return -0.5 * (second_moment / self.variance + self._log_variance() + LOG_2PI)

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        noise = torch.randn(shape, generator=generator, dtype=dtype)
        return self.mean + torch.as_tensor(self.variance, dtype=dtype).sqrt() * noise

    def start(self) -> float:
        return self.mean if isinstance(self.mean, float | int) else 0.0

    def mean_and_variance(self) -> tuple[Number, Number]:
        return self.mean, self.variance


@dataclass(frozen=True, eq=False)
class Laplace(Prior):
    """Density exp(-|z - mean| / scale) / (2 scale); its curvature is zero away from the mean."""

    mean: Number = 0.0
    scale: Number = 1.0

    def __post_init__(self) -> None:
        _positive("scale", self.scale, "laplace")

    def _log_normaliser(self) -> Tensor:
        return torch.log(2 * torch.as_tensor(self.scale))

    def log_density(self, z: Tensor) -> Tensor:
        return -(z - self.mean).abs() / self.scale - self._log_normaliser()

    def curvature(self, z: Tensor) -> Tensor:
        return torch.zeros_like(z)

    def expected_log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        # the mean of a folded normal distribution, in closed form
        centre, sd = mean - self.mean, variance.sqrt()
        folded = sd * math.sqrt(2 / math.pi) * torch.exp(-0.5 * centre**2 / variance)
        folded = folded + centre * torch.erf(centre / (sd * math.sqrt(2)))
        return -folded / self.scale - self._log_normaliser()

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        uniform = torch.rand(shape, generator=generator, dtype=dtype) - 0.5
        magnitude = -torch.log1p(-2 * uniform.abs())
        return self.mean + self.scale * uniform.sign() * magnitude

    def mean_and_variance(self) -> tuple[Number, Number]:
        return self.mean, 2 * self.scale**2


class _Interval(Prior):
    """A Beta(a, b) distribution on [low, high]; the uniform distribution is a = b = 1."""

    low: float
    high: float
    order: int = 32  # nodes of the one-dimensional quadrature

    @property
    def shape(self) -> tuple[float, float]:
        raise NotImplementedError

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def width(self) -> float:
        return self.high - self.low

    def _check(self) -> None:
        if not self.low < self.high:
            raise InputError(f"a bounded prior needs low < high, got low={self.low}, high={self.high}.")

    @property
    def _log_beta(self) -> float:
        a, b = self.shape
        return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

    def log_density(self, z: Tensor) -> Tensor:
        a, b = self.shape
        t = (z - self.low) / self.width
        inside = (t >= 0) & (t <= 1)
        t = t.clamp(0, 1)
        value = torch.xlogy(z.new_tensor(a - 1), t) + torch.special.xlog1py(z.new_tensor(b - 1), -t)
        return torch.where(inside, value - self._log_beta - math.log(self.width), -math.inf)

    def curvature(self, z: Tensor) -> Tensor:
        a, b = self.shape
        return (a - 1) / (z - self.low) ** 2 + (b - 1) / (self.high - z) ** 2

    def expected_log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        # in u the density is σ(u)^a σ(-u)^b / B(a, b), and log σ(u) = u - softplus(u)
        a, b = self.shape
        return a * mean - (a + b) * expectation(F.softplus, mean, variance, order=self.order) - self._log_beta

    def to_support(self, u: Tensor) -> Tensor:
        return self.low + self.width * torch.sigmoid(u)

    def from_support(self, z: Tensor) -> Tensor:
        return torch.logit((z - self.low) / self.width)

    def log_slope(self, u: Tensor) -> Tensor:
        return u - 2 * F.softplus(u) + math.log(self.width)

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        first = expectation(torch.sigmoid, mean, variance, order=self.order)
        centred = expectation(lambda u: (torch.sigmoid(u) - first.unsqueeze(-1)) ** 2, mean, variance, order=self.order)
        return self.low + self.width * first, self.width**2 * centred

    def start(self) -> float:
        a, b = self.shape
        return math.log(a / b)

    def mean_and_variance(self) -> tuple[Number, Number]:
        a, b = self.shape
        return self.low + self.width * a / (a + b), self.width**2 * a * b / ((a + b) ** 2 * (a + b + 1))


@dataclass(frozen=True, eq=False)
class Uniform(_Interval):
    """Constant on [low, high].

    >>> Uniform(-0.5, 0.5).log_density(torch.tensor([0.0, 0.7]))
    tensor([0., -inf])
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        self._check()

    @property
    def shape(self) -> tuple[float, float]:
        return 1.0, 1.0

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        return self.low + self.width * torch.rand(shape, generator=generator, dtype=dtype)


@dataclass(frozen=True, eq=False)
class Beta(_Interval):
    """A Beta(a, b) distribution stretched onto [low, high]."""

    a: float = 2.0
    b: float = 2.0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        self._check()
        _positive("a", self.a, "beta")
        _positive("b", self.b, "beta")

    @property
    def shape(self) -> tuple[float, float]:
        return self.a, self.b

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        a = torch._standard_gamma(torch.full(shape, self.a, dtype=dtype), generator=generator)
        b = torch._standard_gamma(torch.full(shape, self.b, dtype=dtype), generator=generator)
        return self.low + self.width * a / (a + b)


PRIORS: dict[str, type[Prior]] = {"normal": Normal, "uniform": Uniform, "beta": Beta, "laplace": Laplace}
