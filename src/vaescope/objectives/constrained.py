"""The β-ELBO with free bits or a target for the KL, each member with its own."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.distributions.posteriors import kl_per_latent
from vaescope.models import Terms

NO_TARGET = -1.0


def constrained_elbo(terms: Terms, weights: Float[Tensor, "E 3"]) -> Float[Tensor, " E"]:
    """-E log p(x|z) + β penalty, averaged over samples, in nats.

    The penalty is |KL - C| with a target C >= 0 (Burgess et al. 2018), otherwise Σ_k max(KL_k, λ) with free bits λ > 0,
    where KL_k is the mean over the batch (Kingma et al. 2016), otherwise the KL.

    Args:
        terms: of a batch.
        weights: β, λ and C of every member; C is `NO_TARGET` for none.
    """
    beta, floor, target = weights.unbind(-1)
    assert terms.posterior is not None
    assert terms.prior is not None
    per_latent = kl_per_latent(terms.posterior.mean, terms.posterior.marginal_variance, terms.prior).mean(-2)
    kl = terms.kl.mean(-1)
    free = torch.where(floor > 0, torch.maximum(per_latent, floor.unsqueeze(-1)).sum(-1), kl)
    penalty = torch.where(target >= 0, (kl - target).abs(), free)
    return beta * penalty - terms.log_likelihood.mean(-1)
