"""Gaussian posteriors q(u|x) and their KL divergence from any prior.

There are three covariance families. The last axis of a mean is the latent; leading axes (members, samples) are
arbitrary. Because priors are factorised, the KL needs only the posterior's entropy and the marginal of every latent,
so it is exact for all three families.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.distributions.base import Prior

LOG_2PI_E = math.log(2 * math.pi * math.e)


class Posterior(ABC):
    """A Gaussian distribution of the unbounded latent coordinate u."""

    mean: Tensor

    @property
    @abstractmethod
    def marginal_variance(self) -> Tensor:
        """Marginal variance of every latent, in the shape of the mean."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Differential entropy in nats, summed over latents."""

    @abstractmethod
    def sample(self, noise: Tensor) -> Tensor:
        """Reparameterised sample from standard normal noise in the shape of the mean.

        Args:
            noise: standard normal draws.
        """

    def member(self, index: int) -> Posterior:
        """The posterior of one member: one index of the first axis.

        Args:
            index: of the member, from 0.
        """
        return type(self)(**{name: value[index] for name, value in vars(self).items()})

    @staticmethod
    @abstractmethod
    def output_dim(latent_dim: int) -> int:
        """Number of encoder outputs that parameterise one posterior.

        Args:
            latent_dim: d, the number of latents.
        """

    @classmethod
    @abstractmethod
    def from_outputs(cls, h: Tensor, latent_dim: int) -> Posterior:
        """The posterior that encoder outputs parameterise: means first, then log-variances.

        Args:
            h: (..., `output_dim`) encoder outputs. After the d means: d log-variances (`diagonal`), one (`isotropic`),
                or the logarithms of the d squared diagonal entries of the Cholesky factor, then its entries below the
                diagonal, row by row (`full`).
            latent_dim: d, the number of latents.
        """


@dataclass(frozen=True, eq=False)
class DiagonalGaussian(Posterior):
    """Independent latents, each with its own variance.

    Args:
        mean: (..., d), in u.
        variance: (..., d), > 0.
    """

    mean: Float[Tensor, "*batch d"]
    variance: Float[Tensor, "*batch d"]

    @property
    def marginal_variance(self) -> Tensor:
        return self.variance

    def entropy(self) -> Tensor:
        return 0.5 * (LOG_2PI_E + self.variance.log()).sum(-1)

    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + self.variance.sqrt() * noise

    @staticmethod
    def output_dim(latent_dim: int) -> int:
        return 2 * latent_dim

    @classmethod
    def from_outputs(cls, h: Tensor, latent_dim: int) -> DiagonalGaussian:
        return cls(h[..., :latent_dim], h[..., latent_dim:].exp())


@dataclass(frozen=True, eq=False)
class IsotropicGaussian(Posterior):
    """Independent latents that share one variance.

    Args:
        mean: (..., d), in u.
        variance: (..., 1), > 0.
    """

    mean: Float[Tensor, "*batch d"]
    variance: Float[Tensor, "*batch 1"]

    @property
    def marginal_variance(self) -> Tensor:
        return self.variance.expand(self.mean.shape)

    def entropy(self) -> Tensor:
        return 0.5 * self.mean.shape[-1] * (LOG_2PI_E + self.variance.log()).squeeze(-1)

    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + self.variance.sqrt() * noise

    @staticmethod
    def output_dim(latent_dim: int) -> int:
        return latent_dim + 1

    @classmethod
    def from_outputs(cls, h: Tensor, latent_dim: int) -> IsotropicGaussian:
        return cls(h[..., :latent_dim], h[..., latent_dim:].exp())


@dataclass(frozen=True, eq=False)
class FullGaussian(Posterior):
    """Correlated latents; `scale` is the lower triangular Cholesky factor of the covariance.

    Args:
        mean: (..., d), in u.
        scale: (..., d, d), lower triangular with a positive diagonal.
    """

    mean: Float[Tensor, "*batch d"]
    scale: Float[Tensor, "*batch d d"]

    @property
    def covariance(self) -> Tensor:
        return self.scale @ self.scale.mT

    @property
    def marginal_variance(self) -> Tensor:
        return self.scale.square().sum(-1)

    def entropy(self) -> Tensor:
        log_diagonal = self.scale.diagonal(dim1=-2, dim2=-1).log()
        return (0.5 * LOG_2PI_E + log_diagonal).sum(-1)

    def sample(self, noise: Tensor) -> Tensor:
        return self.mean + (self.scale * noise.unsqueeze(-2)).sum(-1)

    @staticmethod
    def output_dim(latent_dim: int) -> int:
        return latent_dim + latent_dim * (latent_dim + 1) // 2

    @classmethod
    def from_outputs(cls, h: Tensor, latent_dim: int) -> FullGaussian:
        d = latent_dim
        mean, log_diagonal, below = h.split([d, d, d * (d - 1) // 2], dim=-1)
        rows, columns = torch.tril_indices(d, d, -1, device=h.device)
        flat = h.new_zeros(*h.shape[:-1], d * d).index_add(-1, rows * d + columns, below)
        return cls(mean, flat.unflatten(-1, (d, d)) + torch.diag_embed((0.5 * log_diagonal).exp()))


POSTERIOR_FAMILIES: dict[str, type[Posterior]] = {
    "diagonal": DiagonalGaussian,
    "isotropic": IsotropicGaussian,
    "full": FullGaussian,
}


def posterior_family(name: str) -> type[Posterior]:
    """The posterior class with that name.

    >>> posterior_family("full").output_dim(3)
    9
    """
    return POSTERIOR_FAMILIES[validation.choice("posterior", name, POSTERIOR_FAMILIES)]


def kl(posterior: Posterior, prior: Prior) -> Tensor:
    """KL[q(z|x) || p₀(z)] in nats, summed over latents; u and z give the same value.

    Args:
        posterior: q(u|x), in the unbounded coordinate u.
        prior: p₀(z), factorised over latents.
    """
    expected = prior.expected_log_density(posterior.mean, posterior.marginal_variance)
    return -posterior.entropy() - expected.sum(-1)


def kl_per_latent(mean: Tensor, variance: Tensor, prior: Prior) -> Tensor:
    """KL of the marginal N(mean, variance) of every latent (in u) from its prior, in nats.

    >>> kl_per_latent(torch.zeros(2), torch.ones(2), __import__("vaescope").Normal())
    tensor([0., 0.])
    """
    return -0.5 * (LOG_2PI_E + variance.log()) - prior.expected_log_density(mean, variance)
