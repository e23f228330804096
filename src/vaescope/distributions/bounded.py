"""Priors on an interval: uniform and beta."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vaescope.distributions.base import Number, Prior, check_positive
from vaescope.distributions.quadrature import normal_expectation
from vaescope.errors import InputError


class IntervalPrior(Prior):
    """A Beta(a, b) distribution on [low, high]; a = b = 1 is uniform."""

    low: float
    high: float
    order: int = 32  # nodes of the one-dimensional quadrature

    @property
    def shape(self) -> tuple[float, float]:
        """The parameters (a, b)."""
        raise NotImplementedError

    @property
    def bounds(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def width(self) -> float:
        return self.high - self.low

    def _check_bounds(self) -> None:
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
        return a * mean - (a + b) * normal_expectation(F.softplus, mean, variance, order=self.order) - self._log_beta

    def to_support(self, u: Tensor) -> Tensor:
        return self.low + self.width * torch.sigmoid(u)

    def from_support(self, z: Tensor) -> Tensor:
        return torch.logit((z - self.low) / self.width)

    def log_derivative(self, u: Tensor) -> Tensor:
        return u - 2 * F.softplus(u) + math.log(self.width)

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        first = normal_expectation(torch.sigmoid, mean, variance, order=self.order)
        centred = normal_expectation(
            lambda u: (torch.sigmoid(u) - first.unsqueeze(-1)) ** 2, mean, variance, order=self.order
        )
        return self.low + self.width * first, self.width**2 * centred

    def unbounded_centre(self) -> float:
        a, b = self.shape
        return math.log(a / b)

    def mean_and_variance(self) -> tuple[Number, Number]:
        a, b = self.shape
        return self.low + self.width * a / (a + b), self.width**2 * a * b / ((a + b) ** 2 * (a + b + 1))


@dataclass(frozen=True, eq=False)
class Uniform(IntervalPrior):
    """Constant density on [low, high].

    Args:
        low: lower bound of every latent.
        high: upper bound of every latent.

    >>> Uniform(-0.5, 0.5).log_density(torch.tensor([0.0, 0.7]))
    tensor([0., -inf])
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        self._check_bounds()

    @property
    def shape(self) -> tuple[float, float]:
        return 1.0, 1.0

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        return self.low + self.width * torch.rand(shape, generator=generator, dtype=dtype)


@dataclass(frozen=True, eq=False)
class Beta(IntervalPrior):
    """A Beta(a, b) distribution, rescaled from [0, 1] to [low, high].

    Args:
        a: first shape parameter, > 0; a larger one moves mass towards `high`.
        b: second shape parameter, > 0; a larger one moves mass towards `low`.
        low: lower bound of every latent.
        high: upper bound of every latent.
    """

    a: float = 2.0
    b: float = 2.0
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        self._check_bounds()
        check_positive("a", self.a, "beta")
        check_positive("b", self.b, "beta")

    @property
    def shape(self) -> tuple[float, float]:
        return self.a, self.b

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        a = torch._standard_gamma(torch.full(shape, self.a, dtype=dtype), generator=generator)
        b = torch._standard_gamma(torch.full(shape, self.b, dtype=dtype), generator=generator)
        return self.low + self.width * a / (a + b)
