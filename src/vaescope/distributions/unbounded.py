"""Priors on the real line: normal and Laplace."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from vaescope.distributions.base import LOG_2PI, Number, Prior, check_positive


@dataclass(frozen=True, eq=False)
class Normal(Prior):
    """N(mean, variance). Tensor parameters give every latent, or every sample, its own distribution.

    Args:
        mean: a number, or a tensor that broadcasts against z.
        variance: the same, > 0.

    >>> Normal().log_density(torch.zeros(1, dtype=torch.float64))
    tensor([-0.9189], dtype=torch.float64)
    """

    mean: Number = 0.0
    variance: Number = 1.0

    def __post_init__(self) -> None:
        check_positive("variance", self.variance, "normal")

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

    def unbounded_centre(self) -> float:
        return _centre(self.mean)

    def mean_and_variance(self) -> tuple[Number, Number]:
        return self.mean, self.variance


@dataclass(frozen=True, eq=False)
class Laplace(Prior):
    """Density exp(-|z - mean| / scale) / (2 scale); its curvature is zero except at the mean.

    Args:
        mean: a number, or a tensor that broadcasts against z.
        scale: the same, > 0; the variance is 2 scale².
    """

    mean: Number = 0.0
    scale: Number = 1.0

    def __post_init__(self) -> None:
        check_positive("scale", self.scale, "laplace")

    def _log_normaliser(self) -> Number:
        return torch.log(2 * self.scale) if isinstance(self.scale, Tensor) else math.log(2 * self.scale)

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

    def unbounded_centre(self) -> float:
        return _centre(self.mean)

    def mean_and_variance(self) -> tuple[Number, Number]:
        return self.mean, 2 * self.scale**2


def _centre(mean: Number) -> float:
    """A start for optimisers: the mean, if all latents share one."""
    return float(mean) if isinstance(mean, float | int) else 0.0
