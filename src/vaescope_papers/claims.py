"""Claims: a sentence of a paper, the criterion it is judged by, what was measured, and the verdict.

A claim is declared as data, a `ClaimSpec`, beside its experiment. Judged on the results of a run it becomes a `Claim`
with one of three verdicts: *holds*, *refuted*, or *undecided*, where this run could not have decided it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np

from vaescope.core.serialization import Plain, plain_fields
from vaescope_papers.results import Result, SeedCell

R = TypeVar("R", bound=Result, contravariant=True)
S = TypeVar("S", contravariant=True)
C = TypeVar("C", bound=SeedCell)
M = TypeVar("M")
D = TypeVar("D")
D_contra = TypeVar("D_contra", contravariant=True)
FEWEST_LATE = 5  # epochs over which what refutes a claim must last
TOO_SHORT = f"The last third of training has fewer than {FEWEST_LATE} epochs."


class Verdict(StrEnum):
    """What a run says of a claim."""

    HOLDS = "holds"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Judgement:
    """The verdict of a criterion, with the value it is about, its spread, and the reason in one sentence."""

    verdict: Verdict
    value: float
    reason: str
    low: float | None = None
    high: float | None = None


@runtime_checkable
class Criterion(Protocol[D_contra]):
    """A rule that turns measured data into a verdict."""

    @property
    def demand(self) -> str:
        """What is demanded, in words."""
        ...

    def judge(self, data: D_contra) -> Judgement: ...


@dataclass(frozen=True)
class ClaimSpec(Generic[R, S, D]):
    """One statement and how it is judged."""

    sentence: str
    source: str
    """Paper, figure, table or equation."""
    measure: Callable[[Sequence[R], S], D]
    """From the finished results and the settings of a run to what the criterion judges."""
    criterion: Criterion[D]
    published: str | None = None
    """The published value, if there is one."""
    note: str | Callable[[Sequence[R], S], str] = ""
    """How to read the measured value."""
    if_refuted: str = ""
    """Why it fails, where it does: shown with a refuted claim only."""
    requires: tuple[Callable[[Sequence[R], S], str | None], ...] = ()
    """Conditions without which a failed claim is undecided: each returns the reason, or None where it is met."""

    def judged(self, results: Sequence[R], settings: S) -> Claim:
        """The verdict that these results give."""
        judgement, note = Judgement(Verdict.UNDECIDED, math.nan, "No member finished."), ""
        if results:
            judgement = self.criterion.judge(self.measure(results, settings))
            note = self.note if isinstance(self.note, str) else self.note(results, settings)
        reason = judgement.reason
        if results and judgement.verdict is not Verdict.HOLDS:
            unmet = [why for condition in self.requires if (why := condition(results, settings))]
            if unmet:  # a failed claim that this run could not have decided
                judgement, reason = replace(judgement, verdict=Verdict.UNDECIDED), " ".join(unmet)
        if judgement.verdict is Verdict.REFUTED:
            reason = f"{reason} {self.if_refuted}".strip()
        return Claim(
            sentence=self.sentence,
            source=self.source,
            demand=self.criterion.demand,
            verdict=judgement.verdict,
            reason=reason,
            value=judgement.value,
            low=judgement.low,
            high=judgement.high,
            published=self.published,
            note=note,
        )


ClaimSpecs = Sequence[ClaimSpec[R, S, Any]]
"""Claims of one experiment; their criteria judge different data."""


def of_members(
    value: Callable[[M], float], where: Callable[[C], bool] = lambda cell: True
) -> Callable[[Sequence[Result[C, M]], object], list[float]]:
    """A measure of a claim: one measured value of every member, or of those whose cell satisfies a condition."""
    return lambda results, _: [value(r.measured) for r in results if where(r.cell)]


@dataclass(frozen=True)
class Claim:
    """A judged statement. `low` and `high` are the spread over members, or an interval of the value."""

    sentence: str
    source: str
    demand: str
    verdict: Verdict
    reason: str
    value: float
    low: float | None = None
    high: float | None = None
    published: str | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.verdict is Verdict.HOLDS

    @property
    def measured(self) -> str:
        """The value with its spread, for people."""
        if np.isnan(self.value):
            return "–"
        text = show(self.value)
        return text if self.low is None or self.high is None else f"{text} ({show(self.low)} to {show(self.high)})"

    def to_data(self) -> dict[str, Plain]:
        """For `claims.json`: numbers that are not finite become None."""
        data = plain_fields(self) | {"verdict": str(self.verdict), "holds": self.holds, "measured": self.measured}
        return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in data.items()}


def show(value: float) -> str:
    """Three significant digits.

    >>> show(0.000123456), show(-1.0312), show(41234.0)
    ('1.23e-04', '-1.03', '4.12e+04')
    """
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"


def count_verdicts(verdicts: Sequence[str]) -> str:
    """How many of each, in words.

    >>> count_verdicts(["holds", "holds", "undecided"])
    '2 hold, 1 undecided'
    """
    words = {Verdict.HOLDS: "hold", Verdict.REFUTED: "refuted", Verdict.UNDECIDED: "undecided"}
    found = [f"{verdicts.count(v)} {word}" for v, word in words.items() if verdicts.count(v)]
    return ", ".join(found) or "no claims"


def members_converged(minimum: float = 0.8) -> Callable[[Sequence[Result], object], str | None]:
    """A condition for claims about trained optima: this share of the members has converged."""

    def condition(results: Sequence[Result], settings: object) -> str | None:
        known = [r.training.converged for r in results if r.training is not None and r.training.converged is not None]
        if known.count(True) >= minimum * len(known):
            return None
        return f"{known.count(False)} of {len(known)} members were still improving when training ended."

    return condition


def lasting_refutation(
    criterion: Criterion[D],
    measure: Callable[[Sequence[R], float | None], D],
    recorded: Callable[[R], Sequence[float]],
    quantity: str,
) -> Callable[[Sequence[R], object], str | None]:
    """A condition for claims about a quantity that is recorded after every epoch: what refutes them must last.

    The claim is judged with the values of this quantity after the epochs of the last third of every member's training,
    and counts as refuted only if it fails with each. Everything else that is measured is that of the end.

    Args:
        criterion: of the claim.
        measure: from the finished results to what the criterion judges, with the `late_value` of the quantity at this
            part of the last third, or with its final value for None.
        recorded: values after every epoch of a member; empty where they were not recorded.
        quantity: what it is, in words.
    """

    def condition(results: Sequence[R], settings: object) -> str | None:
        def refuted(part: float | None) -> bool:
            return criterion.judge(measure(results, part)).verdict is Verdict.REFUTED

        if not refuted(None):
            return None  # the criterion itself says why the claim is undecided
        lengths = [len(recorded(r)) for r in results]
        if not all(lengths):
            return f"The {quantity} was not recorded after every epoch."
        late = min(lengths) // 3
        if late < FEWEST_LATE:
            return TOO_SHORT
        others = sum(not refuted(step / (late - 1)) for step in range(late))
        return f"The {quantity} after {others} of {late} late epochs does not refute it." if others else None

    return condition


def settled(
    quantity: str, curve: Callable[[R], Sequence[float]], *, tolerance: float, minimum: float = 0.8
) -> Callable[[Sequence[R], object], str | None]:
    """A condition for claims about one quantity: for this share of the members it has stopped changing.

    The ELBO of a near-deterministic model improves for ever; what a claim is about can settle long before.

    Args:
        quantity: what it is, in words.
        curve: its values after every epoch of a member; empty where it was not recorded, which counts as not settled.
        tolerance: the largest range of values over the last third of the epochs.
        minimum: share of the members.
    """

    def condition(results: Sequence[R], settings: object) -> str | None:
        moving = sum(late_change(curve(r)) > tolerance for r in results)
        if moving <= (1 - minimum) * len(results):
            return None
        amount = f" by more than {tolerance:g}" if tolerance else ""
        members = f"{moving} of {len(results)} members"
        return f"The {quantity} of {members} still changed{amount} over the last third of the epochs."

    return condition


def late_part(curve: Sequence[float]) -> Sequence[float]:
    """The values of the last third of the epochs, at least one.

    >>> late_part((1.0, 2.0, 3.0, 4.0, 5.0, 6.0))
    (5.0, 6.0)
    """
    return curve[-max(1, len(curve) // 3) :]


def late_value(curve: Sequence[float], part: float) -> float:
    """The value at a part of the last third of the epochs: 0 is its first epoch, 1 the last one.

    >>> late_value((0.1, 0.2, 0.3, 0.4, 0.5, 0.6), 0.0), late_value((0.1, 0.2, 0.3, 0.4, 0.5, 0.6), 1.0)
    (0.5, 0.6)
    """
    late = late_part(curve)
    return late[round(part * (len(late) - 1))]


def late_change(curve: Sequence[float]) -> float:
    """The range of values over the last third of the epochs; infinite with fewer than two of them.

    >>> late_change((0.1, 0.5, 0.7, 0.9, 0.91, 0.92)) < 0.011
    True
    """
    late = late_part(curve)
    return max(late) - min(late) if len(late) > 1 else math.inf
