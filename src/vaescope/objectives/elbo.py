"""The ELBO, the β-VAE, and a KL held at a capacity."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError
from vaescope.models.mlp import Params
from vaescope.models.vae import Terms

Objective = Callable[[Terms, Tensor], Tensor]


@runtime_checkable
class WithNetwork(Protocol):
    """An objective with a network of its own, trained beside the model."""

    def init(self, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Fresh weights, under names that no model has."""

    def at(self, params: Params) -> Objective:
        """The objective with these weights."""


def at(objective: Objective, params: Params) -> Objective:
    """The objective with its own weights, if it has any, taken from those of a stack."""
    return objective.at(params) if isinstance(objective, WithNetwork) else objective


def describe(objective: Objective) -> str:
    """An objective in words that are the same in every process; a function of one's own is like no other.

    >>> describe(beta_elbo), describe(Capacity(5.0))
    ('beta_elbo', 'Capacity(nats=5.0, steps=0)')
    """
    name = getattr(objective, "__qualname__", None) or repr(objective)
    # what a closure holds and what stands at an address cannot be told: such a run does not go on from another
    return f"{name} {uuid.uuid4()}" if "<" in name or " at 0x" in name else name


def beta_elbo(terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
    """-(E log p(x|z) - β KL), averaged over samples, in nats; β = 1 is the negative ELBO.

    Reizinger et al. 2022, Eqs. 1 and 11. Sums over observed dimensions and latents, so β is the papers' β.
    """
    return (beta.unsqueeze(-1) * terms.kl - terms.log_likelihood).mean(-1)


def elbo(terms: Terms) -> Float[Tensor, " E"]:
    """E log p(x|z) - KL, averaged over samples, in nats with all constants."""
    return (terms.log_likelihood - terms.kl).mean(-1)


@dataclass(frozen=True)
class Capacity:
    """-E log p(x|z) + β |KL - C|: the mean KL is drawn to C nats (Burgess et al. 2018, Eq. 8).

    C rises linearly from 0 to `nats` over the first `steps` steps. Where no step is known, as in validation, it is
    `nats`.
    """

    nats: float
    steps: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.nats) and self.nats >= 0):
            raise InputError(f"a capacity must be >= 0 nats, got {self.nats}.")
        if self.steps < 0:
            raise InputError(f"steps over which a capacity rises must be >= 0, got {self.steps}.")

    def __call__(self, terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        share = 1.0 if terms.step is None else (terms.step / max(self.steps, 1)).clamp(max=1)
        return beta * (terms.kl.mean(-1) - share * self.nats).abs() - terms.log_likelihood.mean(-1)
