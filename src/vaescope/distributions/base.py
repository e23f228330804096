r"""The interface of factorised priors p₀(z) = Π_k p₀(z_k).

Posteriors are Gaussian in an unbounded coordinate `u`. For an unbounded prior `u` is `z` itself; a bounded prior maps
`u` to `z` with a scaled logistic sigmoid (`to_support`), so that prior and posterior have the same support.

All methods are elementwise. Theory uses the log-density and the curvature in `z`. Objectives use
`expected_log_density`, the expectation of the log-density *in the coordinate u* under a normal distribution, in closed
form or by one-dimensional quadrature.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vaescope.core.errors import InputError

Number = float | Tensor

LOG_2PI = math.log(2 * math.pi)


class Prior(ABC):
    """A factorised prior. Parameters are numbers, or tensors that broadcast against `z`."""

    @abstractmethod
    def log_density(self, z: Tensor) -> Tensor:
        """log p₀ of every coordinate; -inf outside the support.

        Args:
            z: latents, of any shape.
        """

    @abstractmethod
    def curvature(self, z: Tensor) -> Tensor:
        """-(log p₀)'' of every coordinate, the prior's term in Eq. 12 of Reizinger et al. 2022.

        Args:
            z: latents, of any shape.
        """

    @abstractmethod
    def expected_log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        """E[log p(u)] for u ~ N(mean, variance), where p is the prior's density in the coordinate u.

        Args:
            mean: mean of every u.
            variance: variance of every u, in the shape of the mean.
        """

    @abstractmethod
    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        """Independent samples of the given shape.

        Args:
            shape: of the result; tensor parameters broadcast against it.
            generator: source of randomness.
            dtype: floating-point type of the result.
        """

    def to_support(self, u: Tensor) -> Tensor:
        """Map the unbounded coordinate u to the latent z.

        Args:
            u: unbounded coordinates, of any shape.
        """
        return u

    def from_support(self, z: Tensor) -> Tensor:
        """Map the latent z to the unbounded coordinate u; the inverse of `to_support`.

        Args:
            z: latents, of any shape.
        """
        return z

    def log_derivative(self, u: Tensor) -> Tensor:
        """log dz/du of every coordinate.

        Args:
            u: unbounded coordinates, of any shape.
        """
        return torch.zeros_like(u)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Lower and upper bound of every coordinate; None if unbounded."""
        return None

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of z for u ~ N(mean, variance).

        Args:
            mean: mean of every u.
            variance: variance of every u, in the shape of the mean.
        """
        return mean, variance

    def unbounded_centre(self) -> float:
        """A central value of u, from which optimisers start."""
        return 0.0

    @abstractmethod
    def mean_and_variance(self) -> tuple[Number, Number]:
        """Mean and variance of every coordinate of z."""


def check_positive(name: str, value: Number, prior: str) -> None:
    """Raise an error unless a prior's parameter is > 0 everywhere."""
    if not bool((torch.as_tensor(value) > 0).all()):
        raise InputError(f"{name} of a {prior} prior must be > 0, got {value}.")


@dataclass(frozen=True, eq=False)
class PosteriorDensity:
    """q(z|x) as functions.

    Args:
        sample: x -> (N, d), one independent draw of z ~ q(z|x) per row of x.
        log_prob: (z, x) -> (N,), log q(z|x) of each row.
    """

    sample: Callable[[Tensor], Tensor]
    log_prob: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class PriorDensity:
    """p(z) as functions.

    Args:
        sample: count -> (count, d), independent draws.
        log_prob: z -> (N,), log p(z) of each row.
    """

    sample: Callable[[int], Tensor]
    log_prob: Callable[[Tensor], Tensor]
