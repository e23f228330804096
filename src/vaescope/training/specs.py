"""What distinguishes the members of a stack."""

from __future__ import annotations

from dataclasses import dataclass

from vaescope import validation


@dataclass(frozen=True)
class MemberSpec:
    """One member to train.

    Args:
        seed: of initial weights, batches and noise.
        precision: γ² = 1 / decoder variance.
        beta: factor of the KL.
        data: index of its data set.
    """

    seed: int
    precision: float = 1.0
    beta: float = 1.0
    data: int = 0

    def __post_init__(self) -> None:
        validation.precision(self.precision)
        validation.number("beta", self.beta, minimum=0.0)
