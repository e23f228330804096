"""How the learning rate, the precision and the weight of the KL change during training."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.objectives.elbo import NO_TARGET
from vaescope.settings import KLSchedule, TrainSettings


def learning_rate_at(step: int, total_steps: int, settings: TrainSettings) -> float:
    """The learning rate at a step, counted from 1.

    >>> cosine = TrainSettings(learning_rate=1.0, decay="cosine")
    >>> [round(learning_rate_at(step, 100, cosine), 3) for step in (1, 50, 100)]
    [1.0, 0.513, 0.01]
    >>> restart = TrainSettings(learning_rate=1.0, decay="restart")
    >>> [round(learning_rate_at(step, 100, restart), 3) for step in (1, 50, 51, 100)]
    [1.0, 0.01, 1.0, 0.01]
    """
    if settings.decay == "constant":
        return settings.learning_rate
    if settings.decay == "restart":
        half = total_steps // 2
        step, total_steps = (step, half) if step <= half else (step - half, total_steps - half)
    done = (step - 1) / max(1, total_steps - 1)
    lowest = 0.01  # of the learning rate, where a cosine decay ends
    return settings.learning_rate * (lowest + (1 - lowest) * (1 + math.cos(math.pi * done)) / 2)


def precision_at(step: int, precision: Float[Tensor, " E"], settings: TrainSettings) -> Float[Tensor, " E"]:
    """γ² of every member at a step, counted from 1: held at its start, then rising geometrically to its own value.

    >>> import torch
    >>> settings = TrainSettings(precision_start=10.0, precision_hold=5, precision_warmup=10)
    >>> [precision_at(step, torch.tensor([1.0, 1e3]), settings).tolist() for step in (5, 10, 15)]
    [[1.0, 10.0], [1.0, 100.0], [1.0, 1000.0]]
    """
    if step >= settings.precision_steps:
        return precision
    rise = max(0, step - settings.precision_hold) / max(1, settings.precision_warmup)
    start = precision * 0.01 if settings.precision_start is None else precision.clamp(max=settings.precision_start)
    return start * (precision / start) ** rise


def kl_weights_at(
    step: int | None, schedules: Sequence[KLSchedule], beta: Float[Tensor, " E"], *, constrained: bool
) -> Float[Tensor, " E"] | Float[Tensor, "E 3"]:
    """The weight of the KL of every member at a step, counted from 1, or (None) at the end.

    Args:
        step: of training.
        schedules: of every member.
        beta: final weights.
        constrained: whether a member of the stack has free bits or a target: then also these, see `constrained_elbo`.

    >>> from vaescope.settings import schedule_from
    >>> schedules = [schedule_from("constant"), schedule_from("linear(steps=10)")]
    >>> kl_weights_at(5, schedules, torch.tensor([1.0, 4.0]), constrained=False)
    tensor([1., 2.])
    """
    if step is not None and any(step < schedule.settled for schedule in schedules):
        beta = beta * beta.new_tensor([schedule.factor(step) for schedule in schedules])
    if not constrained:
        return beta
    targets = [schedule.target(step) for schedule in schedules]
    floor = beta.new_tensor([schedule.floor for schedule in schedules])
    return torch.stack([beta, floor, beta.new_tensor([NO_TARGET if t is None else t for t in targets])], dim=-1)
