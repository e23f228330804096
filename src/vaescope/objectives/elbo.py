"""The ELBO, the β-VAE, and a KL held at a capacity."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError
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


def capacity(nats: float) -> Objective:
    """-E log p(x|z) + β |KL - C|: the mean KL is drawn to C nats (Burgess et al. 2018, Eq. 8).

    The paper raises C along training; train in stages, each from the weights of the one before.
    """
    if not nats >= 0:
        raise InputError(f"a capacity must be >= 0 nats, got {nats}.")

    def objective(terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        return beta * (terms.kl.mean(-1) - nats).abs() - terms.log_likelihood.mean(-1)

    return objective
