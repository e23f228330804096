"""DIP-VAE: the covariance of the codes drawn to the identity (Kumar et al. 2018)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError
from vaescope.models.vae import Terms
from vaescope.objectives.elbo import Objective


def dip(*, kind: int = 2, off_diagonal: float = 10.0, diagonal: float = 10.0) -> Objective:
    """β-ELBO + λ_od Σ_{i≠j} C_ij² + λ_d Σ_i (C_ii - 1)².

    C is the covariance over the batch of the posterior means (kind 1), or of z, which adds the mean posterior
    variance to its diagonal (kind 2). Kumar et al. 2018, Eqs. 5 to 7.
    """
    if kind not in (1, 2):
        raise InputError(f"kind of a DIP-VAE must be 1 or 2, got {kind}.")
    if min(off_diagonal, diagonal) < 0:
        raise InputError(f"weights of a DIP-VAE must be >= 0, got {off_diagonal} and {diagonal}.")

    def objective(terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        if terms.posterior is None:
            raise InputError("a DIP-VAE needs the posterior among its terms.")
        mean = terms.posterior.mean
        centred = mean - mean.mean(-2, keepdim=True)
        covariance = centred.mT @ centred / mean.shape[-2]
        if kind == 2:
            covariance = covariance + torch.diag_embed(terms.posterior.marginal_variance.mean(-2))
        own = covariance.diagonal(dim1=-2, dim2=-1)
        off = covariance.square().sum((-2, -1)) - own.square().sum(-1)
        penalty = off_diagonal * off + diagonal * (own - 1).square().sum(-1)
        return (beta.unsqueeze(-1) * terms.kl - terms.log_likelihood).mean(-1) + penalty

    return objective
