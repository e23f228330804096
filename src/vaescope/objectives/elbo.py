"""The ELBO, the β-VAE, and a KL with a target capacity."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.distributions.posteriors import kl_per_latent
from vaescope.models import Terms
from vaescope.models.networks import Params

Objective = Callable[[Terms, Tensor], Tensor]
"""(terms, β of every member) -> loss of every member."""


@runtime_checkable
class WithNetwork(Protocol):
    """An objective with a network that is trained together with the model."""

    def init(self, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Initial weights, one member per seed, under names that no model uses."""
        ...

    def with_weights(self, params: Params) -> Objective:
        """The objective with these weights."""
        ...


def with_weights(objective: Objective, params: Params) -> Objective:
    """The objective with its own weights taken from those of a stack, if it has any."""
    return objective.with_weights(params) if isinstance(objective, WithNetwork) else objective


def describe(objective: Objective) -> str:
    """A description that is the same in every process, for fingerprints.

    Lambdas, closures and objects with the default `repr` may hide values, so each gets a unique description: a
    run with one is never continued from another run's checkpoint.

    >>> describe(beta_elbo), describe(Capacity(5.0))
    ('beta_elbo', 'Capacity(nats=5.0, steps=0)')
    """
    name = getattr(objective, "__qualname__", None) or repr(objective)
    return f"{name} {uuid.uuid4()}" if "<" in name or " at 0x" in name else name


def beta_elbo(terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
    """-(E log p(x|z) - β KL), averaged over samples, in nats; β = 1 is the negative ELBO.

    Reizinger et al. 2022, Eqs. 1 and 11. Both terms sum over dimensions, so β is that of the papers.

    Args:
        terms: reconstruction and KL of a batch per member.
        beta: β of every member.
    """
    return (beta.unsqueeze(-1) * terms.kl - terms.log_likelihood).mean(-1)


def elbo(terms: Terms) -> Float[Tensor, " E"]:
    """E log p(x|z) - KL, averaged over samples, in nats, with all constants."""
    return (terms.log_likelihood - terms.kl).mean(-1)


@dataclass(frozen=True)
class Capacity:
    """-E log p(x|z) + β |KL - C|: pulls the mean KL towards C nats (Burgess et al. 2018, Eq. 8).

    Args:
        nats: the final C.
        steps: training steps over which C rises linearly from 0; validation always uses the final C.
    """

    nats: float
    steps: int = 0

    def __post_init__(self) -> None:
        validation.number("nats", self.nats, minimum=0.0, hint="it is the target of the KL")
        validation.integer("steps", self.steps, minimum=0)

    def __call__(self, terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        fraction = 1.0 if terms.step is None else (terms.step / max(self.steps, 1)).clamp(max=1)
        return beta * (terms.kl.mean(-1) - fraction * self.nats).abs() - terms.log_likelihood.mean(-1)


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
