"""How the weight of the KL changes during training. Nothing heavy is imported.

A schedule has a text form, as settings and sweep files spell it: "linear(steps=1000)", "free-bits(nats=0.5)".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache

from vaescope.checks import number, shown, whole_number
from vaescope.errors import InputError

STEEPNESS = 10.0  # of the sigmoid, over its steps
EXAMPLE = "linear(steps=1000)"


@dataclass(frozen=True)
class KLSchedule:
    """β throughout, the base of all schedules.

    >>> str(schedule_from("cyclical(cycles=2)"))
    'cyclical(steps=4000,cycles=2,ramp=0.5)'
    """

    @property
    def settled(self) -> int:
        """The step after which nothing changes."""
        return 0

    def factor(self, step: int) -> float:
        """What β is multiplied by at a step, counted from 1."""
        return 1.0

    @property
    def floor(self) -> float:
        """Nats per latent that cost nothing more than if they were used; 0 for none."""
        return 0.0

    def target(self, step: int | None) -> float | None:
        """The KL that is aimed at, in nats, at a step or (None) at the end; None for as little as possible."""
        return None

    @property
    def constrains_kl(self) -> bool:
        """Whether the penalty is something else than a multiple of the KL."""
        return self.floor > 0 or self.target(None) is not None

    def __str__(self) -> str:
        name = next(name for name, cls in SCHEDULES.items() if cls is type(self))
        values = ",".join(f"{f.name}={getattr(self, f.name):g}" for f in fields(self))
        return f"{name}({values})" if values else name


@dataclass(frozen=True)
class Linear(KLSchedule):
    """β rises from 0 in equal steps (Bowman et al. 2016)."""

    steps: int = 1000

    def __post_init__(self) -> None:
        whole_number("steps", self.steps)

    @property
    def settled(self) -> int:
        return self.steps

    def factor(self, step: int) -> float:
        return min(1.0, step / self.steps)


@dataclass(frozen=True)
class Sigmoid(Linear):
    """β rises from 0 slowly, then fast, then slowly."""

    def factor(self, step: int) -> float:
        done = min(1.0, step / self.steps)
        start = _logistic(-STEEPNESS / 2)
        return min(1.0, (_logistic(STEEPNESS * (done - 0.5)) - start) / (1 - 2 * start))


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value))


@dataclass(frozen=True)
class Cyclical(KLSchedule):
    """β rises from 0 again and again, with a pause at its value after every rise (Fu et al. 2019)."""

    steps: int = 4000
    """Of all cycles together."""
    cycles: int = 4
    ramp: float = 0.5
    """The part of a cycle in which β rises."""

    def __post_init__(self) -> None:
        whole_number("steps", self.steps)
        whole_number("cycles", self.cycles)
        if not 0 < number("ramp", self.ramp) <= 1:
            raise InputError(f"ramp must be above 0 and at most 1, got {self.ramp}.")

    @property
    def settled(self) -> int:
        return self.steps

    def factor(self, step: int) -> float:
        if step >= self.steps:
            return 1.0
        cycle = self.steps / self.cycles
        return min(1.0, (step % cycle) / (self.ramp * cycle))


@dataclass(frozen=True)
class Capacity(KLSchedule):
    """β |KL - C| with a C that rises from 0 (Burgess et al. 2018)."""

    nats: float = 25.0
    """The final C."""
    steps: int = 1000

    def __post_init__(self) -> None:
        number("nats", self.nats, minimum=0.0)
        whole_number("steps", self.steps)

    @property
    def settled(self) -> int:
        return self.steps

    def target(self, step: int | None) -> float | None:
        return self.nats if step is None else self.nats * min(1.0, step / self.steps)


@dataclass(frozen=True)
class FreeBits(KLSchedule):
    """β Σ_k max(KL_k, λ): the first λ nats of every latent cost nothing (Kingma et al. 2016)."""

    nats: float = 0.5
    """λ, for the mean KL of each latent over a batch."""

    def __post_init__(self) -> None:
        number("nats", self.nats, above=0.0)

    @property
    def floor(self) -> float:
        return self.nats


SCHEDULES: Mapping[str, type[KLSchedule]] = {
    "constant": KLSchedule,
    "linear": Linear,
    "sigmoid": Sigmoid,
    "cyclical": Cyclical,
    "capacity": Capacity,
    "free-bits": FreeBits,
}


@cache
def schedule_from(text: str) -> KLSchedule:
    """The schedule that a text describes.

    >>> schedule_from("free-bits(nats=0.25)")
    FreeBits(nats=0.25)
    """
    found = re.fullmatch(r"\s*([a-z-]+)\s*(?:\((.*)\))?\s*", text)
    if found is None or found[1] not in SCHEDULES:
        raise _invalid(text)
    cls = SCHEDULES[found[1]]
    return cls(**{name: _parameter(cls, name, value, text) for name, value in _pairs(found[2] or "", text)})


def _pairs(arguments: str, text: str) -> list[tuple[str, str]]:
    pairs = [part.split("=") for part in arguments.split(",") if part.strip()]
    if any(len(pair) != 2 for pair in pairs):
        raise _invalid(text)
    return [(name.strip(), value.strip()) for name, value in pairs]


def _parameter(cls: type[KLSchedule], name: str, value: str, text: str) -> float | int:
    known = {field.name: field.type for field in fields(cls)}
    if name not in known:
        raise InputError(f"kl_schedule {text!r} has no parameter {name!r}; it has {', '.join(known) or 'none'}.")
    try:
        found = float(value)
    except ValueError:
        raise _invalid(text) from None
    return int(found) if known[name] == "int" and found.is_integer() else found


def _invalid(text: str) -> InputError:
    return InputError(f"kl_schedule must be one of {', '.join(SCHEDULES)}, e.g. {EXAMPLE!r}, got {shown(text)}.")
