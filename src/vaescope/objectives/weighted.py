"""An objective with a weight on the log-likelihood, which may rise during training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.models import Terms
from vaescope.objectives.elbo import Objective, WithNetwork, describe


@dataclass(frozen=True)
class WeightRise:
    """A weight that is held at a fraction of its final value, then rises geometrically to it.

    Args:
        start: the fraction at the beginning, above 0 and at most 1.
        hold: steps for which it stays there.
        warmup: steps over which it then rises.
    """

    start: float
    hold: int
    warmup: int

    def __post_init__(self) -> None:
        validation.number("start", self.start, above=0.0)
        if self.start > 1:
            raise InputError(f"start must be at most 1, got {self.start}; it is a fraction of the final weight.")
        validation.integer("hold", self.hold, minimum=0)
        validation.integer("warmup", self.warmup, minimum=0)

    def fraction(self, step: Float[Tensor, ""] | None) -> Tensor | float:
        """Of the final weight, at a step counted from 1; 1 in validation, where there is no step.

        >>> import torch
        >>> rise = WeightRise(0.25, hold=10, warmup=10)
        >>> [float(rise.fraction(torch.tensor(float(step)))) for step in (1, 15, 20)], rise.fraction(None)
        ([0.25, 0.5, 1.0], 1.0)
        """
        if step is None:
            return 1.0
        risen = ((step - self.hold) / max(1, self.warmup)).clamp(0, 1)
        return torch.exp(math.log(self.start) * (1 - risen))


@dataclass(frozen=True, repr=False)
class Weighted:
    """An objective in which the log-likelihood counts `likelihood_weight` times.

    Losses sum over pixels, so an image of s x s pixels has (s/S)² times the log-likelihood of one of S x S, and the KL
    counts for more. The weight (S/s)² restores the balance. With the β-ELBO, a weight w is w times the loss at β/w.

    A weight that starts low and rises is the same as a β that starts high and falls: posteriors are wide at first, and
    wide posteriors separate factors that narrow ones would leave rotated. Validation always uses the final weight.

    Args:
        objective: what is weighted; not a FactorVAE, whose discriminator has a loss of its own.
        likelihood_weight: w > 0.
        rise: how the weight rises to w during training; None for a constant weight.

    >>> from vaescope.objectives import beta_elbo
    >>> Weighted(beta_elbo, 4.0)
    Weighted(beta_elbo, likelihood_weight=4.0)
    """

    objective: Objective
    likelihood_weight: float
    rise: WeightRise | None = None

    def __post_init__(self) -> None:
        validation.number("likelihood_weight", self.likelihood_weight, above=0.0)
        if isinstance(self.objective, WithNetwork):
            raise InputError("an objective with a network of its own cannot be weighted; scale β instead.")

    def __repr__(self) -> str:
        rise = "" if self.rise is None else f", rise={self.rise}"
        return f"Weighted({describe(self.objective)}, likelihood_weight={self.likelihood_weight}{rise})"

    def __call__(self, terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        weight = self.likelihood_weight * (1.0 if self.rise is None else self.rise.fraction(terms.step))
        return self.objective(terms._replace(log_likelihood=weight * terms.log_likelihood), beta)


def balanced(objective: Objective, *, size: int, reference: int, rise: WeightRise | None = None) -> Objective:
    """The objective for images of `size` pixels along a side, with the balance that it has at size `reference`.

    Args:
        objective: what is weighted.
        size: pixels along a side of the images.
        reference: the size at which the log-likelihood has weight 1.
        rise: how the weight rises during training; None for a constant weight.

    >>> from vaescope.objectives import beta_elbo
    >>> balanced(beta_elbo, size=32, reference=64)
    Weighted(beta_elbo, likelihood_weight=4.0)
    """
    return objective if size == reference and rise is None else Weighted(objective, (reference / size) ** 2, rise)
