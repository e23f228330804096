"""An objective with a weight on the log-likelihood."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from vaescope import validation
from vaescope.errors import InputError
from vaescope.models import Terms
from vaescope.objectives.elbo import Objective, WithNetwork, describe


@dataclass(frozen=True, repr=False)
class Weighted:
    """An objective in which the log-likelihood counts `likelihood_weight` times.

    Losses sum over pixels, so an image of s x s pixels has (s/S)² times the log-likelihood of one of S x S, and the KL
    counts for more. The weight (S/s)² restores the balance. With the β-ELBO, a weight w is w times the loss at β/w.

    Args:
        objective: what is weighted; not a FactorVAE, whose discriminator has a loss of its own.
        likelihood_weight: w > 0.

    >>> from vaescope.objectives import beta_elbo
    >>> Weighted(beta_elbo, 4.0)
    Weighted(beta_elbo, likelihood_weight=4.0)
    """

    objective: Objective
    likelihood_weight: float

    def __post_init__(self) -> None:
        validation.number("likelihood_weight", self.likelihood_weight, above=0.0)
        if isinstance(self.objective, WithNetwork):
            raise InputError("an objective with a network of its own cannot be weighted; scale β instead.")

    def __repr__(self) -> str:
        return f"Weighted({describe(self.objective)}, likelihood_weight={self.likelihood_weight})"

    def __call__(self, terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        return self.objective(terms._replace(log_likelihood=self.likelihood_weight * terms.log_likelihood), beta)


def balanced(objective: Objective, *, size: int, reference: int) -> Objective:
    """The objective for images of `size` pixels along a side, with the balance that it has at size `reference`.

    >>> from vaescope.objectives import beta_elbo
    >>> balanced(beta_elbo, size=32, reference=64)
    Weighted(beta_elbo, likelihood_weight=4.0)
    """
    return objective if size == reference else Weighted(objective, (reference / size) ** 2)
