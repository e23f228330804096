"""DIP-VAE: the covariance of the codes drawn to the identity (Kumar et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.distributions import FullGaussian, Posterior
from vaescope.errors import InputError
from vaescope.models.vae import Terms
from vaescope.objectives.elbo import beta_elbo


@dataclass(frozen=True)
class DIP:
    """β-ELBO + λ_od Σ_{i≠j} C_ij² + λ_d Σ_i (C_ii - 1)².

    C is the covariance over the batch of the posterior means (kind 1), or of z, which adds the mean posterior
    covariance (kind 2). Kumar et al. 2018, Eqs. 5 to 7.
    """

    kind: int = 2
    off_diagonal: float = 10.0
    diagonal: float = 10.0

    def __post_init__(self) -> None:
        if self.kind not in (1, 2):
            raise InputError(f"kind of a DIP-VAE must be 1 or 2, got {self.kind}.")
        if not all(math.isfinite(weight) and weight >= 0 for weight in (self.off_diagonal, self.diagonal)):
            raise InputError(f"weights of a DIP-VAE must be >= 0, got {self.off_diagonal} and {self.diagonal}.")

    def __call__(self, terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        if terms.posterior is None:
            raise InputError("a DIP-VAE needs the posterior among its terms.")
        mean = terms.posterior.mean
        centred = mean - mean.mean(-2, keepdim=True)
        covariance = centred.mT @ centred / mean.shape[-2]
        if self.kind == 2:
            covariance = covariance + _own_covariance(terms.posterior)
        own = covariance.diagonal(dim1=-2, dim2=-1)
        off = covariance.square().sum((-2, -1)) - own.square().sum(-1)
        return beta_elbo(terms, beta) + self.off_diagonal * off + self.diagonal * (own - 1).square().sum(-1)


def _own_covariance(posterior: Posterior) -> Float[Tensor, "E d d"]:
    """The mean covariance of the posteriors of a batch."""
    if isinstance(posterior, FullGaussian):
        return posterior.covariance.mean(-3)
    return torch.diag_embed(posterior.marginal_variance.mean(-2))
