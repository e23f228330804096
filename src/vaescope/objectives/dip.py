"""DIP-VAE: pulls the covariance of the codes towards the identity (Kumar et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.distributions import FullGaussian, Posterior
from vaescope.models import Terms
from vaescope.objectives.elbo import beta_elbo


@dataclass(frozen=True)
class DIP:
    """β-ELBO + λ_od Σ_{i≠j} C_ij² + λ_d Σ_i (C_ii - 1)². Kumar et al. 2018, Eqs. 5 to 7.

    Args:
        kind: 1: C is the covariance over the batch of the posterior means. 2: C is the covariance of z, which adds the
            mean posterior covariance.
        off_diagonal: λ_od.
        diagonal: λ_d.
    """

    kind: int = 2
    off_diagonal: float = 10.0
    diagonal: float = 10.0

    def __post_init__(self) -> None:
        if self.kind not in (1, 2):
            raise InputError(f"kind of a DIP-VAE must be 1 or 2, got {self.kind}.")
        validation.number("off_diagonal", self.off_diagonal, minimum=0.0)
        validation.number("diagonal", self.diagonal, minimum=0.0)

    def __call__(self, terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        if terms.posterior is None:
            raise InputError("a DIP-VAE needs terms with a posterior; use those of VAE.terms.")
        mean = terms.posterior.mean
        centred = mean - mean.mean(-2, keepdim=True)
        covariance = centred.mT @ centred / mean.shape[-2]
        if self.kind == 2:
            covariance = covariance + _mean_covariance(terms.posterior)
        variances = covariance.diagonal(dim1=-2, dim2=-1)
        off = covariance.square().sum((-2, -1)) - variances.square().sum(-1)
        return beta_elbo(terms, beta) + self.off_diagonal * off + self.diagonal * (variances - 1).square().sum(-1)


def _mean_covariance(posterior: Posterior) -> Float[Tensor, "E d d"]:
    """The covariance of q(z|x), averaged over the batch."""
    if isinstance(posterior, FullGaussian):
        return posterior.covariance.mean(-3)
    return torch.diag_embed(posterior.marginal_variance.mean(-2))
