"""Claims: a sentence of a paper, the criterion it is judged by, what was measured, and the verdict.

A claim is declared as data, a `ClaimSpec`, beside its experiment. Judged on the results of a run it becomes a `Claim`
with one of four verdicts: *holds*, *refuted*, *not reproduced* (the authors' own runs show it and these do not), or
*undecided* (this run could not have decided it). `judge_claims` judges the claims of an experiment together.
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
from vaescope_papers.statistics import ALPHA, median

R = TypeVar("R", bound=Result, contravariant=True)
S = TypeVar("S", contravariant=True)
C = TypeVar("C", bound=SeedCell)
M = TypeVar("M")
D = TypeVar("D")
D_contra = TypeVar("D_contra", contravariant=True)
FEWEST_LATE = 5  # epochs over which a verdict must last
TOO_SHORT = f"The last third of training has fewer than {FEWEST_LATE} epochs."


class Verdict(StrEnum):
    """What a run says of a claim."""

    HOLDS = "holds"
    REFUTED = "refuted"
    NOT_REPRODUCED = "not reproduced"
    UNDECIDED = "undecided"


class Statement(StrEnum):
    """What kind of statement a claim is."""

    MATHEMATICAL = "mathematical"
    """About all objects of a kind: a counter-example refutes it."""
    EMPIRICAL = "empirical"
    """About trained models: where published runs show it, other runs can only fail to reproduce it."""


@dataclass(frozen=True)
class Judgement:
    """The verdict of a criterion: the value it is about, its interval or spread, and the reason in sentences."""

    verdict: Verdict
    value: float
    reason: str
    low: float | None = None
    high: float | None = None
    units: int | None = None
    """How many independent units there were."""
    alpha: float | None = None
    """Of each side of the interval; None for a value without uncertainty."""


@runtime_checkable
class Region(Protocol):
    """The values of an effect that a claim is about."""

    def accepts(self, value: float) -> bool: ...


@runtime_checkable
class Criterion(Protocol[D_contra]):
    """A rule that turns measured data into a verdict."""

    @property
    def demand(self) -> str:
        """What is demanded, in words."""
        ...

    @property
    def region(self) -> Region:
        """The claimed values of the effect."""
        ...

    def with_tolerance(self, tolerance: float) -> Criterion[D_contra]:
        """The same criterion with another tolerance, bound or smallest effect."""
        ...

    def judge(self, data: D_contra, alpha: float = ALPHA) -> Judgement:
        """The verdict; each side of an interval is wrong with a probability of at most alpha."""
        ...


@dataclass(frozen=True)
class PublishedRuns:
    """The effect in the authors' own runs, on the scale of the criterion."""

    values: tuple[float, ...]
    source: str
    """The figure, table or file that they are from."""

    @property
    def words(self) -> str:
        """Count, median and spread."""
        if len(self.values) == 1:
            return f"{show(self.values[0])} ({self.source})"
        spread = f"{show(min(self.values))} to {show(max(self.values))}"
        return f"{show(median(self.values))} (median of {len(self.values)}, {spread}; {self.source})"


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
    """The published value, if there is one; of `published_runs`, if they are given."""
    note: str | Callable[[Sequence[R], S], str] = ""
    """How to read the measured value."""
    if_refuted: str = ""
    """Why it fails, where it does: shown with a refuted claim, or one that is not reproduced."""
    requires: tuple[Callable[[Sequence[R], S], str | None], ...] = ()
    """Conditions of any verdict but undecided: each returns why it is not met, or None where it is."""
    kind: Statement = Statement.EMPIRICAL
    published_runs: PublishedRuns | None = None
    scale: str = ""
    """What is smaller here than in the published runs, after "at": "32 x 32 images, 15 epochs"."""
    family: str = ""
    """Claims of one family, such as the entries of a table, share one α by Holm's method."""
    looks: tuple[int, ...] = ()
    """The numbers of units at which the results were or will be looked at: each look costs its part of α."""
    robust_over: tuple[float, ...] = ()
    """Tolerances, where the criterion's is a choice: the verdict is shown for each."""

    def __post_init__(self) -> None:
        if self.published_runs is not None and not self.scale:
            raise ValueError(f"{self.sentence!r} has published runs: say in `scale` what is smaller here.")

    def judged(self, results: Sequence[R], settings: S, alpha: float = ALPHA) -> Claim:
        """The verdict that these results give."""
        judgement, note, tolerances = Judgement(Verdict.UNDECIDED, math.nan, "No member finished."), "", ""
        if results:
            data = self.measure(results, settings)
            alpha = alpha / max(1, len(self.looks))
            judgement = self._verdict(self.criterion, data, results, settings, alpha)
            others = [
                (t, self._verdict(self.criterion.with_tolerance(t), data, results, settings, alpha).verdict)
                for t in self.robust_over
            ]
            tolerances = _over_tolerances(judgement.verdict, others)
            note = self.note if isinstance(self.note, str) else self.note(results, settings)
        return Claim(
            sentence=self.sentence,
            source=self.source,
            demand=self.criterion.demand,
            verdict=judgement.verdict,
            reason=judgement.reason,
            value=judgement.value,
            low=judgement.low,
            high=judgement.high,
            published=self.published_runs.words if self.published_runs and not self.published else self.published,
            note=note,
            kind=self.kind,
            scale=self.scale,
            units=judgement.units,
            alpha=judgement.alpha,
            family=self.family,
            looks=self.looks,
            tolerances=tolerances,
        )

    def smallest_alpha(self, results: Sequence[R], settings: S) -> float:
        """The smallest α at which the criterion decides the claim, times the number of looks: its p-value.

        Infinite for a claim that is undecided at `ALPHA`; 0 for a value without uncertainty.
        """
        data = self.measure(results, settings)
        verdict = self._verdict(self.criterion, data, results, settings, ALPHA).verdict
        if verdict is Verdict.UNDECIDED:
            return math.inf
        low, high = -30.0, math.log10(ALPHA)
        for _ in range(20):
            middle = (low + high) / 2
            same = self._verdict(self.criterion, data, results, settings, 10.0**middle).verdict is verdict
            low, high = (low, middle) if same else (middle, high)
        return 0.0 if high < -29 else float(10.0**high) * max(1, len(self.looks))

    def _verdict(self, criterion: Criterion[D], data: D, results: Sequence[R], settings: S, alpha: float) -> Judgement:
        """The judgement of a criterion where the conditions are met, with the words of the claim's kind."""
        found = criterion.judge(data, alpha)
        if found.verdict is Verdict.UNDECIDED:
            return found
        unmet = [why for condition in self.requires if (why := condition(results, settings))]
        if self.looks and (found.units or 0) > max(self.looks):
            unmet.append(f"{found.units} units were looked at; the declared looks end at {max(self.looks)}.")
        if unmet:
            return replace(found, verdict=Verdict.UNDECIDED, reason=" ".join([*unmet, found.reason]))
        if found.verdict is Verdict.HOLDS:
            return found
        runs, verdict, why = self.published_runs, found.verdict, found.reason
        if runs and self.kind is Statement.EMPIRICAL and criterion.region.accepts(median(runs.values)):
            verdict = Verdict.NOT_REPRODUCED
            why = f"The authors' runs show it: {runs.words}. Ours, at {self.scale}, do not: {found.reason}"
        return replace(found, verdict=verdict, reason=f"{why} {self.if_refuted}".strip())


def _over_tolerances(verdict: Verdict, others: Sequence[tuple[float, Verdict]]) -> str:
    """In words: the verdict over a range of tolerances."""
    if not others:
        return ""
    if all(other is verdict for _, other in others):
        span = f"{min(t for t, _ in others):g} to {max(t for t, _ in others):g}"
        if verdict is Verdict.UNDECIDED:
            return f"Undecided for tolerances from {span}."
        return f"Robust: the verdict is the same for tolerances from {span}."
    return f"Depends on the tolerance: {'; '.join(f'{other} with {t:g}' for t, other in others)}."


ClaimSpecs = Sequence[ClaimSpec[R, S, Any]]
"""Claims of one experiment; their criteria judge different data."""


def judge_claims(specs: ClaimSpecs[R, S], results: Sequence[R], settings: S) -> list[Claim]:
    """All claims of an experiment; those of one family at the α that Holm's method gives them."""
    alphas = _holm_alphas(specs, results, settings) if results else [ALPHA] * len(specs)
    return [spec.judged(results, settings, alpha) for spec, alpha in zip(specs, alphas, strict=True)]


def _holm_alphas(specs: ClaimSpecs[R, S], results: Sequence[R], settings: S) -> list[float]:
    alphas = [ALPHA] * len(specs)
    for family in {spec.family for spec in specs if spec.family}:
        members = [index for index, spec in enumerate(specs) if spec.family == family]
        p = {index: specs[index].smallest_alpha(results, settings) for index in members}
        left, decided = len(members), True
        for index in sorted(members, key=lambda i: p[i]):
            alphas[index] = ALPHA / left
            decided = decided and p[index] <= ALPHA / left
            left -= decided
    return alphas


def of_members(
    value: Callable[[M], float], where: Callable[[C], bool] = lambda cell: True
) -> Callable[[Sequence[Result[C, M]], object], list[float]]:
    """A measure of a claim: one measured value of every member, or of those whose cell satisfies a condition."""
    return lambda results, _: [value(r.measured) for r in results if where(r.cell)]


@dataclass(frozen=True)
class Claim:
    """A judged statement. `low` and `high` are the interval of the value, or its spread where it has no uncertainty."""

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
    kind: Statement = Statement.EMPIRICAL
    scale: str = ""
    units: int | None = None
    alpha: float | None = None
    family: str = ""
    looks: tuple[int, ...] = ()
    tolerances: str = ""
    """The verdict over a range of tolerances, in words."""

    @property
    def holds(self) -> bool:
        return self.verdict is Verdict.HOLDS

    @property
    def measured(self) -> str:
        """The value with its interval, for people."""
        if np.isnan(self.value):
            return "–"
        text = show(self.value)
        return text if self.low is None or self.high is None else f"{text} ({show(self.low)} to {show(self.high)})"

    def to_data(self) -> dict[str, Plain]:
        """For `claims.json`: numbers that are not finite become None."""
        words = {"verdict": str(self.verdict), "kind": str(self.kind), "holds": self.holds, "measured": self.measured}
        data = plain_fields(self) | words
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
    words = {verdict: "hold" if verdict is Verdict.HOLDS else str(verdict) for verdict in Verdict}
    found = [f"{verdicts.count(v)} {word}" for v, word in words.items() if verdicts.count(v)]
    return ", ".join(found) or "no claims"


# conditions -----------------------------------------------------------------------------------


@runtime_checkable
class HasDecay(Protocol):
    """Settings of training that say how the learning rate changes."""

    @property
    def decay(self) -> str: ...


def members_converged(
    minimum: float = 0.8, *, shortfall: Callable[[R], float] | None = None, tolerance: float = 0.05
) -> Callable[[Sequence[R], object], str | None]:
    """A condition for claims about trained optima: this share of the members has converged.

    Under a learning rate that decays, every curve flattens at the end, so that a flat curve is no evidence. Evidence is
    a flat curve at a constant rate, or a measured `shortfall`.

    Args:
        minimum: share of the members.
        shortfall: how many nats a member is below what it could reach: what it gained when training was restarted at a
            higher rate, or its distance from an exact optimum. NaN where it was not measured.
        tolerance: the largest shortfall, in nats.
    """

    def condition(results: Sequence[R], settings: object) -> str | None:
        if shortfall is not None:
            short = [shortfall(r) for r in results]
            failing = sum(not value <= tolerance for value in short)
            if failing <= (1 - minimum) * len(short):
                return None
            return f"{failing} of {len(short)} members are not known to be within {tolerance:g} nats of their optimum."
        known = [r.training.converged for r in results if r.training is not None and r.training.converged is not None]
        if known.count(True) < minimum * len(known):
            return f"{known.count(False)} of {len(known)} members were still improving when training ended."
        if known and isinstance(settings, HasDecay) and settings.decay != "constant":
            return (
                "Whether the members have converged is not known: the learning rate decayed, which flattens every "
                "curve, and neither a restart at a higher rate nor the distance from an exact optimum was recorded."
            )
        return None

    return condition


def lasting_verdict(
    criterion: Criterion[D],
    measure: Callable[[Sequence[R], float | None], D],
    recorded: Callable[[R], Sequence[float]],
    quantity: str,
) -> Callable[[Sequence[R], object], str | None]:
    """A condition for claims about a quantity that is recorded after every epoch: the verdict must last.

    The claim is judged with the values of this quantity after the epochs of the last third of every member's training,
    and is decided only if the verdict is the same with each. Everything else that is measured is that of the end.

    Args:
        criterion: of the claim.
        measure: from the finished results to what the criterion judges, with the `late_value` of the quantity at this
            part of the last third, or with its final value for None.
        recorded: values after every epoch of a member; empty where they were not recorded.
        quantity: what it is, in words.
    """

    def condition(results: Sequence[R], settings: object) -> str | None:
        final = criterion.judge(measure(results, None)).verdict
        lengths = [len(recorded(r)) for r in results]
        if not all(lengths):
            return f"The {quantity} was not recorded after every epoch."
        late = min(lengths) // 3
        if late < FEWEST_LATE:
            return TOO_SHORT
        steps = [step / (late - 1) for step in range(late)]
        others = sum(criterion.judge(measure(results, step)).verdict is not final for step in steps)
        return f"The {quantity} after {others} of {late} late epochs gives another verdict." if others else None

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
