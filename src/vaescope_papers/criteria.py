"""Criteria that claims are judged by: each states its demand in words and judges an effect with its interval.

*Holds*: the interval lies inside the claimed region. *Refuted*: it lies inside the complement. *Undecided*: everything
else. Each end of an interval is wrong with a probability of at most α, so a wrong verdict of either kind is that rare.
Intervals are over independent units (members, or the mixings they were trained on). Values that have no uncertainty,
such as the error of a formula, are judged as they are: `exact=True`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from vaescope.core.checks import choice
from vaescope_papers.claims import Judgement, Verdict, show
from vaescope_papers.statistics import (
    ALPHA,
    Estimate,
    by_unit,
    estimate_mean,
    estimate_median,
    estimate_rank_correlation,
    estimate_share,
    estimate_shift,
    median,
)

STATISTICS = ("median", "mean", "largest", "smallest", "first")


def _unusable(values: Iterable[float]) -> Judgement | None:
    """The verdict if there is no value, or if some are NaN; None if all can be judged."""
    found = [math.isnan(value) for value in values]
    if not found:
        return Judgement(Verdict.UNDECIDED, math.nan, "No finished member gives a value.")
    if any(found):
        reason = f"{sum(found)} of {len(found)} measured values are not defined."
        return Judgement(Verdict.UNDECIDED, math.nan, reason)
    return None


# claimed regions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limit:
    """The claimed region of an effect: all values from `low` to `high`."""

    form: str
    low: float
    high: float
    includes_ends: bool = True
    centre: float = 0.0

    @property
    def tolerance(self) -> float:
        """The number that a choice of the region is about: the bound, or the half-width."""
        if self.form == "within":
            return self.high - self.centre
        return self.high if math.isinf(self.low) else self.low

    @property
    def words(self) -> str:
        number = f"{self.centre:g} ± {self.tolerance:g}" if self.form == "within" else f"{self.tolerance:g}"
        return f"{self.form} {number}"

    def at(self, tolerance: float) -> Limit:
        """The same kind of region with another bound or half-width."""
        if self.form == "within":
            return within(self.centre, tolerance)
        return {"at most": at_most, "at least": at_least, "below": below, "above": above}[self.form](tolerance)

    def contains(self, low: float, high: float) -> bool:
        """Whether all values between two are in the region."""
        if self.includes_ends:
            return self.low <= low and high <= self.high
        return self.low < low and high < self.high

    def excludes(self, low: float, high: float) -> bool:
        """Whether no value between two is in the region."""
        if self.includes_ends:
            return high < self.low or low > self.high
        return high <= self.low or low >= self.high

    def accepts(self, value: float) -> bool:
        return self.contains(value, value)

    def margin(self, value: float) -> float:
        """The distance of a value from the nearest border of the region."""
        return min(abs(value - self.low), abs(value - self.high))


def at_most(bound: float | int) -> Limit:
    return Limit("at most", -math.inf, float(bound))


def at_least(bound: float | int) -> Limit:
    return Limit("at least", float(bound), math.inf)


def below(bound: float | int) -> Limit:
    return Limit("below", -math.inf, float(bound), includes_ends=False)


def above(bound: float | int) -> Limit:
    return Limit("above", float(bound), math.inf, includes_ends=False)


def within(centre: float | int, tolerance: float | int) -> Limit:
    return Limit("within", float(centre - tolerance), float(centre + tolerance), centre=float(centre))


def verdict_of(low: float, high: float, region: Limit) -> Verdict:
    """The verdict on an effect that lies between two values.

    >>> [str(verdict_of(*interval, at_least(0.5))) for interval in ((0.6, 0.9), (0.1, 0.4), (0.4, 0.6))]
    ['holds', 'refuted', 'undecided']
    """
    if region.contains(low, high):
        return Verdict.HOLDS
    return Verdict.REFUTED if region.excludes(low, high) else Verdict.UNDECIDED


def level(alpha: float) -> str:
    """The level of an interval with a probability of α on each side.

    >>> level(0.01), level(0.0025)
    ('98 %', '99.5 %')
    """
    return f"{100 * (1 - 2 * alpha):.4g} %"


def judge_estimate(found: Estimate, region: Limit, alpha: float, text: str, units: str) -> Judgement:
    """The verdict on an effect, with what would decide it if this does not.

    Args:
        found: the effect with its interval.
        region: the claimed values.
        alpha: of each side of the interval.
        text: what was found, without a full stop.
        units: what the interval is over, in the plural.
    """
    verdict = verdict_of(found.low, found.high, region)
    finite = math.isfinite(found.low) and math.isfinite(found.high)
    interval = f"{level(alpha)} interval {show(found.low)} to {show(found.high)} over {found.units} {units}"
    reason = f"{text}, {interval}."
    if not finite:
        reason = f"{text}; {found.units} {units} are too few for a {level(alpha)} interval."
    elif verdict is Verdict.UNDECIDED:
        reason = f"{reason} {_what_would_decide(found, region, units)}"
    return Judgement(
        verdict,
        found.value,
        reason,
        low=found.low if finite else None,
        high=found.high if finite else None,
        units=found.units,
        alpha=alpha,
    )


def _what_would_decide(found: Estimate, region: Limit, units: str) -> str:
    """From an interval whose width falls with the square root of the number of units."""
    distance = region.margin(found.value)
    side = max(found.high - found.value, found.value - found.low)
    needed = math.ceil(found.units * (side / distance) ** 2) if distance > 0 else math.inf
    if needed > 1000 * found.units:
        return "It contains the border of the claimed region, and the effect is too close to it to be decided."
    return (
        f"It contains the border of the claimed region; about {max(needed, found.units + 1)} {units} would decide it."
    )


@dataclass(frozen=True)
class Sample:
    """Several values per independent unit, such as images of a member: judged by the medians of units."""

    values: Sequence[float]
    units: Sequence[Hashable]


@dataclass(frozen=True)
class Bound:
    """A statistic of the units lies within a limit.

    Args:
        quantity: what the values are, as in "median QUANTITY over members".
        limit: the claimed values.
        statistic: of the units. "median": with an interval of order statistics, from 7 units. "mean": with Student's t,
            for values that are roughly normal. "largest" and "smallest": a statement about every unit; unless `exact`,
            it is about at least `share` of all units that could be trained. "first": of a chosen member; the measure
            returns its value first, the quantity says which member it is, and it must be `exact`.
        over: the units, in the plural; "" if there is a single value, which must be `exact`.
        exact: the values have no uncertainty, or the statement is about these members and no others. The verdict is
            about the measured values.
        share: of the units, for "largest" and "smallest".
    """

    quantity: str
    limit: Limit
    statistic: str = "median"
    over: str = "members"
    exact: bool = False
    share: float = 0.75

    def __post_init__(self) -> None:
        choice("statistic", self.statistic, STATISTICS)

    @property
    def region(self) -> Limit:
        return self.limit

    @property
    def summarises(self) -> bool:
        """Whether several values are judged, not a single one."""
        return bool(self.over) and self.statistic != "first"

    @property
    def about_share(self) -> bool:
        return not self.exact and self.statistic in ("largest", "smallest")

    @property
    def demand(self) -> str:
        what = f"{self.statistic} {self.quantity} over {self.over}" if self.summarises else self.quantity
        if self.about_share:
            return f"{self.quantity} {self.limit.words} for at least {self.share:.0%} of {self.over}, by its interval"
        if self.exact:
            return f"{what} {self.limit.words}, as measured" if self.summarises else f"{what} {self.limit.words}"
        return f"{what} {self.limit.words}, by its interval"

    def with_tolerance(self, tolerance: float) -> Bound:
        return replace(self, limit=self.limit.at(tolerance))

    def judge(self, data: Sequence[float | int] | Sample, alpha: float = ALPHA) -> Judgement:
        nested = by_unit(data.values, data.units) if isinstance(data, Sample) else data
        values = [float(value) for value in nested]
        if unusable := _unusable(values):
            return unusable
        chosen = {"largest": max(values), "smallest": min(values), "first": values[0]}
        if self.exact or self.statistic == "first" or not self.over:
            value = {**chosen, "median": median(values), "mean": float(np.mean(values))}[self.statistic]
            return self._as_measured(value, values)
        if not np.isfinite(values).all():
            return Judgement(Verdict.UNDECIDED, chosen["largest"], "A measured value is not finite.")
        if self.about_share:
            return self._of_share(values, chosen[self.statistic], alpha)
        found = (estimate_median if self.statistic == "median" else estimate_mean)(values, alpha)
        return judge_estimate(found, self.limit, alpha, f"The {self.statistic} is {show(found.value)}", self.over)

    def _as_measured(self, value: float, values: Sequence[float]) -> Judgement:
        if not np.isfinite(value):
            return Judgement(Verdict.UNDECIDED, value, "The measured value is not finite.")
        subject = f"The {self.statistic}" if self.summarises else "The measured value"
        spread = float(min(values)), float(max(values))
        if not self.exact:
            reason = f"{subject} is {show(value)}; a single value has no interval."
            return Judgement(Verdict.UNDECIDED, value, reason, *spread, units=1)
        verdict = Verdict.HOLDS if self.limit.accepts(value) else Verdict.REFUTED
        over = f" over {len(values)} {self.over}" if self.summarises else ""
        return Judgement(verdict, value, f"{subject}{over} is {show(value)}.", *spread, units=len(values))

    def _of_share(self, values: Sequence[float], value: float, alpha: float) -> Judgement:
        hits = sum(self.limit.accepts(v) for v in values)
        found = estimate_share(hits, len(values), alpha)
        share = f"{hits} of {len(values)} are {self.limit.words}, a share of {found.value:.2f}"
        text = f"The {self.statistic} is {show(value)}; {share}"
        judged = judge_estimate(found, at_least(self.share), alpha, text, self.over)
        return replace(judged, value=value, low=float(min(values)), high=float(max(values)))


@dataclass(frozen=True)
class PairedDifference:
    """One setting exceeds another by more than a minimum, in the median (or mean) of pairs.

    Args:
        quantity: what is compared.
        larger: the setting that should have the larger values.
        smaller: the other one.
        minimum: of the difference.
        statistic: "median" with order statistics, from 7 pairs, or "mean" with Student's t.
        over: the independent pairs, in the plural.
    """

    quantity: str
    larger: str
    smaller: str
    minimum: float = 0.0
    statistic: str = "median"
    over: str = "pairs"

    def __post_init__(self) -> None:
        choice("statistic", self.statistic, STATISTICS[:2])

    @property
    def region(self) -> Limit:
        return above(self.minimum)

    @property
    def demand(self) -> str:
        by = f" by more than {self.minimum:g}" if self.minimum else ""
        which = f"{self.quantity} larger with {self.larger} than with {self.smaller}{by}"
        return f"{which}, in the {self.statistic} over {self.over}, by its interval"

    def with_tolerance(self, tolerance: float) -> PairedDifference:
        return replace(self, minimum=tolerance)

    def judge(self, data: Sequence[float] | Sample, alpha: float = ALPHA) -> Judgement:
        """`data` are the differences, `larger` minus `smaller`."""
        values = by_unit(data.values, data.units) if isinstance(data, Sample) else [float(value) for value in data]
        if unusable := _unusable(values):
            return unusable
        found = (estimate_median if self.statistic == "median" else estimate_mean)(values, alpha)
        share = float(np.mean([value > 0 for value in values]))
        text = f"{share:.0%} of {len(values)} {self.over} agree; the {self.statistic} difference is {show(found.value)}"
        return judge_estimate(found, self.region, alpha, text, self.over)


# correlations ---------------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Two values per unit, and a third one if it is to be held fixed; with units, several pairs per unit."""

    x: Sequence[float]
    y: Sequence[float]
    given: Sequence[float] | None = None
    units: Sequence[Hashable] | None = None


@dataclass(frozen=True)
class RankCorrelation:
    """y rises (sign 1) or falls (sign -1) with x: Spearman's rank correlation, or the partial one given a third value.

    A correlation that is not significant refutes nothing: the claim is refuted if the interval excludes every
    correlation of the claimed sign that is larger than `beyond`.

    Args:
        sign: of the claimed correlation.
        over: the independent units, in the plural.
        beyond: size that the correlation must exceed: 0, a published one, or the smallest that matters.
        given: what is held fixed, for a partial correlation.
        within: the correlation is that of the pairs within each unit (such as the epochs of a run), and its median over
            units is judged; otherwise several pairs of one unit count as one, with their medians.
    """

    sign: int
    over: str = "members"
    beyond: float = 0.0
    given: str = ""
    within: bool = False

    @property
    def region(self) -> Limit:
        return above(self.beyond) if self.sign > 0 else below(0.0 - self.beyond)

    @property
    def demand(self) -> str:
        what = f"partial rank correlation given {self.given}" if self.given else "rank correlation"
        where = f"within {self.over}" if self.within else f"over {self.over}"
        return f"{what} {where} {self.region.words}, by its interval"

    def with_tolerance(self, tolerance: float) -> RankCorrelation:
        return replace(self, beyond=tolerance)

    def judge(self, data: Pairs, alpha: float = ALPHA) -> Judgement:
        if self.within:
            return self._within_units(data, alpha)
        if data.units is not None:
            columns = [None if own is None else by_unit(own, data.units) for own in data[:3]]
            data = Pairs(columns[0] or [], columns[1] or [], columns[2])
        x, y = list(data.x), list(data.y)
        if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
            reason = f"A rank correlation needs at least 3 {self.over} with different values."
            return Judgement(Verdict.UNDECIDED, math.nan, reason)
        if unusable := _unusable([*x, *y]):
            return unusable
        found = estimate_rank_correlation(x, y, data.given, alpha)
        if unusable := _unusable([found.value]):
            return unusable
        given = f" given {self.given}" if self.given else ""
        return judge_estimate(found, self.region, alpha, f"Spearman's ρ{given} is {found.value:.2f}", self.over)

    def _within_units(self, data: Pairs, alpha: float) -> Judgement:
        units = data.units if data.units is not None else [0] * len(data.x)
        groups: dict[Hashable, list[int]] = {}
        for row, unit in enumerate(units):
            groups.setdefault(unit, []).append(row)
        own = [
            estimate_rank_correlation(
                [data.x[i] for i in rows],
                [data.y[i] for i in rows],
                None if data.given is None else [data.given[i] for i in rows],
            ).value
            for rows in groups.values()
        ]
        if unusable := _unusable(own):
            return unusable
        found = estimate_median(own, alpha)
        listed = ", ".join(f"{value:.2f}" for value in own) if len(own) <= 8 else f"{min(own):.2f} to {max(own):.2f}"
        text = f"Spearman's ρ within {self.over} ({listed}) has the median {found.value:.2f}"
        return judge_estimate(found, self.region, alpha, text, self.over)


# paired tests ---------------------------------------------------------------------------------


class PairedSamples(NamedTuple):
    """Two measurements of the same items, in the same order, and the independent unit that each item belongs to."""

    ours: np.ndarray
    theirs: np.ndarray
    units: np.ndarray | None = None

    def ratios(self) -> list[float]:
        """Ours / theirs: of every item, or the medians of units."""
        values: list[float] = (self.ours / np.maximum(self.theirs, np.finfo(float).tiny)).tolist()
        return values if self.units is None else by_unit(values, self.units.tolist())


@dataclass(frozen=True)
class PairedTest:
    """Ours are smaller than theirs in every group: the median over units of the ratio of the two is below a limit.

    It holds if the interval of every group is below the limit, and it is refuted if that of any group is above it. If
    it is false, it is false of some group, and a wrong *holds* is at most as likely as a wrong interval of this group:
    α needs no correction. If it is true, the interval of any group can refute it by chance: there α is divided by the
    number of groups.

    Args:
        quantity: what is compared, as in "median ratio of QUANTITY".
        groups: what a group is, in the singular.
        ratio: the limit.
        over: the independent units of a group, in the plural.
    """

    quantity: str
    groups: str
    ratio: float = 1.0
    over: str = "members"

    @property
    def region(self) -> Limit:
        return below(self.ratio)

    @property
    def demand(self) -> str:
        what = f"median over {self.over} of the ratio of {self.quantity}"
        return f"{what} below {self.ratio:g} for every {self.groups}, by its interval"

    def with_tolerance(self, tolerance: float) -> PairedTest:
        return replace(self, ratio=tolerance)

    def judge(self, data: Mapping[str, PairedSamples], alpha: float = ALPHA) -> Judgement:
        if unusable := _unusable(v for pair in data.values() for v in (*pair.ours, *pair.theirs)):
            return unusable
        strict = {name: self._judge_group(pair, alpha / len(data)) for name, pair in data.items()}
        refuted = any(found.verdict is Verdict.REFUTED for found in strict.values())
        own = strict if refuted else {name: self._judge_group(pair, alpha) for name, pair in data.items()}
        worst = max(own.values(), key=lambda j: j.value)
        reason = " ".join(f"{name}: {found.reason}" for name, found in own.items())
        verdict = Verdict.UNDECIDED
        if refuted:
            verdict = Verdict.REFUTED
        elif all(found.verdict is Verdict.HOLDS for found in own.values()):
            verdict = Verdict.HOLDS
        return replace(worst, verdict=verdict, reason=reason, units=min(found.units or 0 for found in own.values()))

    def _judge_group(self, pair: PairedSamples, alpha: float) -> Judgement:
        found = estimate_median(pair.ratios(), alpha)
        return judge_estimate(found, self.region, alpha, f"ratio {show(found.value)}", self.over)


# intervals ------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A distance of one member with its 95 % interval."""

    member: str
    distance: float
    low: float
    high: float


@dataclass(frozen=True)
class IntervalsBelow:
    """The distance of every member, with its interval, is at most the tolerance: a statement about these members.

    The 95 % intervals are widened on both sides, as those of a normal estimate, to the α of the claim divided by the
    number of members.
    """

    quantity: str
    tolerance: float

    @property
    def region(self) -> Limit:
        return at_most(self.tolerance)

    @property
    def demand(self) -> str:
        return f"{self.quantity} at most {self.tolerance:g} for every member, with its interval"

    def with_tolerance(self, tolerance: float) -> IntervalsBelow:
        return replace(self, tolerance=tolerance)

    def judge(self, data: Sequence[Interval], alpha: float = ALPHA) -> Judgement:
        if unusable := _unusable(i.distance for i in data):
            return unusable
        factor = float(norm.isf(alpha / len(data)) / norm.isf(0.025))
        wide = [
            i._replace(low=i.distance - factor * (i.distance - i.low), high=i.distance + factor * (i.high - i.distance))
            for i in data
        ]
        worst = max(wide, key=lambda i: i.distance)
        spread = min(i.distance for i in wide), max(i.high for i in wide)
        found = [verdict_of(i.low, i.high, self.region) for i in wide]

        def listed(verdict: Verdict) -> str:
            chosen = [i for i, v in zip(wide, found, strict=True) if v is verdict]
            return "; ".join(f"{i.member} {show(i.distance)} ({show(i.low)} to {show(i.high)})" for i in chosen)

        verdict, reason = (
            Verdict.HOLDS,
            f"The largest is {show(worst.distance)}, its interval ends at {show(worst.high)}.",
        )
        if Verdict.REFUTED in found:
            verdict, reason = Verdict.REFUTED, f"Above the tolerance: {listed(Verdict.REFUTED)}."
        elif Verdict.UNDECIDED in found:
            verdict = Verdict.UNDECIDED
            reason = f"The interval contains the tolerance; more samples would decide it: {listed(verdict)}."
        return Judgement(verdict, worst.distance, reason, *spread, units=len(data), alpha=alpha)


# two groups -----------------------------------------------------------------------------------


class Groups(NamedTuple):
    """Values of the members of two settings, not paired."""

    larger: Sequence[float]
    smaller: Sequence[float]


@dataclass(frozen=True)
class LargerGroup:
    """Members of one setting have larger values than those of another, by more than a minimum.

    The interval of the shift inverts the exact Mann-Whitney test; it needs 5 members of each.

    Args:
        quantity: what is compared.
        larger: the setting that should have the larger values.
        smaller: the other one.
        minimum: of the shift.
        over: the independent units, in the plural.
    """

    quantity: str
    larger: str
    smaller: str
    minimum: float = 0.0
    over: str = "members of each"

    @property
    def region(self) -> Limit:
        return above(self.minimum)

    @property
    def demand(self) -> str:
        by = f" by more than {self.minimum:g}" if self.minimum else ""
        return f"{self.quantity} larger with {self.larger} than with {self.smaller}{by}, by the interval of the shift"

    def with_tolerance(self, tolerance: float) -> LargerGroup:
        return replace(self, minimum=tolerance)

    def judge(self, data: Groups, alpha: float = ALPHA) -> Judgement:
        complete = len(data.larger) and len(data.smaller)
        if unusable := _unusable([*data.larger, *data.smaller] if complete else []):
            return unusable
        found = estimate_shift(data.larger, data.smaller, alpha)
        medians = f"The medians are {show(median(data.larger))} and {show(median(data.smaller))}"
        return judge_estimate(found, self.region, alpha, f"{medians}; the shift is {show(found.value)}", self.over)
