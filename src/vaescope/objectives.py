"""Objectives as pure functions of the terms: each returns a loss per member, to be minimised."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from vaescope.models.vae import Terms

Objective = Callable[[Terms, Tensor], Tensor]


def beta_elbo(terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
    """-(E log p(x|z) - β KL), averaged over samples, in nats; β = 1 is the negative ELBO.

    Reizinger et al. 2022, Eqs. 1 and 11. Sums over observed dimensions and latents, so β is the papers' β.
    """
    return (beta.unsqueeze(-1) * terms.kl - terms.log_likelihood).mean(-1)


def elbo(terms: Terms) -> Float[Tensor, " E"]:
    """E log p(x|z) - KL, averaged over samples, in nats with all constants."""
    return (terms.log_likelihood - terms.kl).mean(-1)
