"""What distinguishes the members of a stack."""

from __future__ import annotations

from dataclasses import dataclass

from vaescope import validation
from vaescope.schedules import KLSchedule, schedule_from


@dataclass(frozen=True)
class MemberSpec:
    """One member to train.

    Args:
        seed: of initial weights, batches and noise.
        precision: γ² = 1 / decoder variance.
        beta: factor of the KL.
        data: index of its data set.
        kl_schedule: how the weight of the KL changes; see `vaescope.schedules`.
    """

    seed: int
    precision: float = 1.0
    beta: float = 1.0
    data: int = 0
    kl_schedule: str = "constant"

    def __post_init__(self) -> None:
        validation.precision(self.precision)
        validation.number("beta", self.beta, minimum=0.0)
        schedule_from(self.kl_schedule)

    @property
    def schedule(self) -> KLSchedule:
        return schedule_from(self.kl_schedule)
