"""Criteria that claims are judged by. Each states its demand in words and returns one of three verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import mannwhitneyu, wilcoxon

from vaescope_papers.claims import Judgement, Verdict, show
from vaescope_papers.statistics import (
    median,
    median_difference_interval,
    members_needed,
    partial_rank_test,
    rank_interval,
    rank_test,
)


def _unusable(values: Iterable[float]) -> Judgement | None:
    """The verdict if there is no value, or if some are NaN; None if all can be judged."""
    found = [math.isnan(value) for value in values]
    if not found:
        return Judgement(Verdict.UNDECIDED, math.nan, "No finished member gives a value.")
    if any(found):
        reason = f"{sum(found)} of {len(found)} measured values are not defined."
        return Judgement(Verdict.UNDECIDED, math.nan, reason)
    return None


# limits on a statistic ------------------------------------------------------------------------


@dataclass(frozen=True)
class Limit:
    """A set of accepted values, in words and as a test."""

    words: str
    accepts: Callable[[float], bool]


def at_most(bound: float | int) -> Limit:
    return Limit(f"at most {bound:g}", lambda v: v <= bound)


def at_least(bound: float | int) -> Limit:
    return Limit(f"at least {bound:g}", lambda v: v >= bound)


def below(bound: float | int) -> Limit:
    return Limit(f"below {bound:g}", lambda v: v < bound)


def above(bound: float | int) -> Limit:
    return Limit(f"above {bound:g}", lambda v: v > bound)


def within(centre: float | int, tolerance: float | int) -> Limit:
    return Limit(f"within {centre:g} ± {tolerance:g}", lambda v: abs(v - centre) <= tolerance)


@dataclass(frozen=True)
class Bound:
    """A statistic of values lies within a limit.

    Args:
        quantity: what the values are, as in "median QUANTITY over members".
        limit: the accepted values.
        statistic: median, largest, smallest or first. "first" is for a chosen member: the measure returns its value
            first, and the quantity says which member it is.
        over: what the values range over; "" if there is a single value.
    """

    quantity: str
    limit: Limit
    statistic: str = "median"
    over: str = "members"

    @property
    def summarises(self) -> bool:
        """Whether several values are judged, not a single one."""
        return bool(self.over) and self.statistic != "first"

    @property
    def demand(self) -> str:
        what = f"{self.statistic} {self.quantity} over {self.over}" if self.summarises else self.quantity
        return f"{what} {self.limit.words}"

    def judge(self, data: Sequence[float | int]) -> Judgement:
        data = [float(value) for value in data]
        if unusable := _unusable(data):
            return unusable
        statistics = {"median": median(data), "largest": max(data), "smallest": min(data), "first": data[0]}
        value = statistics[self.statistic]
        if not np.isfinite(value):
            return Judgement(Verdict.UNDECIDED, value, "The measured value is not finite.")
        verdict = Verdict.HOLDS if self.limit.accepts(value) else Verdict.REFUTED
        subject = f"The {self.statistic}" if self.summarises else "The measured value"
        return Judgement(verdict, value, f"{subject} is {show(value)}.", float(min(data)), float(max(data)))


@dataclass(frozen=True)
class PairedDifference:
    """One setting exceeds another in most pairs, and by a minimum in the median.

    Args:
        quantity: what is compared.
        larger: the setting that should have the larger values.
        smaller: the other one.
        minimum: of the median difference.
        share: of pairs that must agree.
        pairs: with fewer the claim is undecided.
    """

    quantity: str
    larger: str
    smaller: str
    minimum: float = 0.0
    share: float = 0.75
    pairs: int = 1

    @property
    def demand(self) -> str:
        which = f"{self.quantity} larger with {self.larger} than with {self.smaller}"
        median_too = f", and by at least {self.minimum:g} in the median" if self.minimum else ""
        return f"{which} in at least {self.share:.0%} of pairs{median_too}"

    def judge(self, data: Sequence[float]) -> Judgement:
        """`data` are the differences, `larger` minus `smaller`."""
        if unusable := _unusable(data):
            return unusable
        share, middle = float(np.mean([d > 0 for d in data])), median(data)
        if len(data) < self.pairs:
            few = f"There are {len(data)} pairs, {self.pairs} are needed; their median difference is {show(middle)}."
            return Judgement(Verdict.UNDECIDED, middle, few, min(data), max(data))
        verdict = Verdict.HOLDS if share >= self.share and middle >= self.minimum else Verdict.REFUTED
        reason = f"{share:.0%} of {len(data)} pairs agree; the median difference is {show(middle)}."
        return Judgement(verdict, middle, reason, min(data), max(data))


# correlations ---------------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Two values per member, and a third one if it is to be held fixed."""

    x: Sequence[float]
    y: Sequence[float]
    given: Sequence[float] | None = None


@dataclass(frozen=True)
class RankCorrelation:
    """y rises (sign 1) or falls (sign -1) with x: Spearman's rank correlation, or the partial one given a third value.

    If the correlation is not significant, the claim is refuted only if there were enough members to detect a
    correlation of size `effect` with a probability of 80 %. With fewer members it is undecided.

    Args:
        sign: of the claimed correlation.
        over: what the pairs range over, in the plural.
        effect: size of the correlation that the claim is about.
        p: significance level, two-sided.
        given: what is held fixed, for a partial correlation.
    """

    sign: int
    over: str = "members"
    effect: float = 0.7
    p: float = 0.01
    given: str = ""

    @property
    def demand(self) -> str:
        direction = "positive" if self.sign > 0 else "negative"
        what = f"partial rank correlation given {self.given}" if self.given else "rank correlation"
        power = f"{self.needed} {self.over} are needed to see |ρ| = {self.effect:g}"
        return f"{direction} {what} over {self.over}, two-sided p < {self.p:g}; {power}"

    @property
    def needed(self) -> int:
        """A partial correlation costs one more member."""
        return members_needed(self.effect, self.p) + bool(self.given)

    def judge(self, data: Pairs) -> Judgement:
        x, y = list(data.x), list(data.y)
        if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
            reason = f"A rank correlation needs at least 3 {self.over} with different values."
            return Judgement(Verdict.UNDECIDED, float("nan"), reason)
        if unusable := _unusable([*x, *y]):
            return unusable
        value, p = rank_test(x, y) if data.given is None else partial_rank_test(x, y, data.given)
        if unusable := _unusable([value]):
            return unusable
        given = f" given {self.given}" if self.given else ""
        text = f"Spearman's ρ{given} = {value:.2f} over {len(x)} {self.over}, p = {p:.2g}"
        enough = f"{len(x)} {self.over} are enough (needed: {self.needed})"
        few = f"{self.needed} {self.over} are needed to see |ρ| = {self.effect:g} with p < {self.p:g}"
        if p < self.p:
            verdict = Verdict.HOLDS if self.sign * value > 0 else Verdict.REFUTED
            reason = f"{text}; {enough if len(x) >= self.needed else few}."
        elif len(x) < self.needed:
            verdict, reason = Verdict.UNDECIDED, f"{text}: {few}."
        else:
            verdict, reason = Verdict.REFUTED, f"{text}: {enough} to see |ρ| = {self.effect:g}."
        return Judgement(verdict, value, reason, *rank_interval(x, y, data.given))


# paired tests ---------------------------------------------------------------------------------


class PairedSamples(NamedTuple):
    """Two measurements of the same items, in the same order."""

    ours: np.ndarray
    theirs: np.ndarray


@dataclass(frozen=True)
class PairedTest:
    """Ours are smaller than theirs in every group: median ratio below 1, and a one-sided paired Wilcoxon test.

    Args:
        quantity: what is compared, as in "median ratio of QUANTITY".
        groups: what a group is, in the singular.
        p: significance level.
    """

    quantity: str
    groups: str
    p: float = 0.01

    @property
    def demand(self) -> str:
        return f"median ratio of {self.quantity} below 1 for every {self.groups}, paired one-sided p < {self.p:g}"

    def judge(self, data: Mapping[str, PairedSamples]) -> Judgement:
        if unusable := _unusable(v for pair in data.values() for v in (*pair.ours, *pair.theirs)):
            return unusable
        tiny = np.finfo(float).tiny
        ratios = {name: float(np.median(pair.ours / np.maximum(pair.theirs, tiny))) for name, pair in data.items()}
        tests = {name: wilcoxon_p(pair) for name, pair in data.items()}
        worst = max(ratios.values())
        reason = "; ".join(f"{name}: ratio {show(ratios[name])}, p = {tests[name]:.2g}" for name in data) + "."
        spread = min(ratios.values()), worst
        if worst < 1 and max(tests.values()) < self.p:
            return Judgement(Verdict.HOLDS, worst, reason, *spread)
        weak = [name for name in data if ratios[name] < 1 and tests[name] >= self.p]
        if all(ratios[name] < 1 for name in data) and weak:
            return Judgement(Verdict.UNDECIDED, worst, f"{reason} Too few pairs for the demanded p.", *spread)
        return Judgement(Verdict.REFUTED, worst, reason, *spread)


def wilcoxon_p(pair: PairedSamples) -> float:
    """One-sided paired Wilcoxon test that ours are smaller.

    >>> wilcoxon_p(PairedSamples(np.arange(20.0), np.arange(20.0) + 1)) < 1e-3
    True
    """
    if len(pair.ours) < 2 or (pair.ours == pair.theirs).all():
        return 1.0
    return float(wilcoxon(pair.ours, pair.theirs, alternative="less").pvalue)


# intervals ------------------------------------------------------------------------------------


class Interval(NamedTuple):
    """A distance of one member with its 95 % interval."""

    member: str
    distance: float
    low: float
    high: float


@dataclass(frozen=True)
class IntervalsBelow:
    """The distance of every member, with its interval, is at most the tolerance.

    Refuted if an interval is entirely above the tolerance, undecided if one contains it.
    """

    quantity: str
    tolerance: float

    @property
    def demand(self) -> str:
        return f"{self.quantity} at most {self.tolerance:g} for every member, with its 95 % interval"

    def judge(self, data: Sequence[Interval]) -> Judgement:
        if unusable := _unusable(i.distance for i in data):
            return unusable

        def listed(intervals: Sequence[Interval]) -> str:
            return "; ".join(f"{i.member} {show(i.distance)} ({show(i.low)} to {show(i.high)})" for i in intervals)

        worst = max(data, key=lambda i: i.distance)
        spread = min(i.distance for i in data), max(i.high for i in data)
        if failing := [i for i in data if i.low > self.tolerance]:
            return Judgement(Verdict.REFUTED, worst.distance, f"Above the tolerance: {listed(failing)}.", *spread)
        if unclear := [i for i in data if i.high > self.tolerance]:
            reason = f"The interval contains the tolerance: {listed(unclear)}."
            return Judgement(Verdict.UNDECIDED, worst.distance, reason, *spread)
        return Judgement(Verdict.HOLDS, worst.distance, f"The largest is {show(worst.distance)}.", *spread)


# two groups -----------------------------------------------------------------------------------


class Groups(NamedTuple):
    """Values of the members of two settings, not paired."""

    larger: Sequence[float]
    smaller: Sequence[float]


@dataclass(frozen=True)
class LargerGroup:
    """Members of one setting have larger values than those of another: a one-sided Mann-Whitney test, exact.

    Undecided with so few members that no order of their values has a small p, or if groups overlap too much for it;
    refuted if the median is not larger, nor anything in the interval of its difference.

    Args:
        quantity: what is compared.
        larger: the setting that should have the larger values.
        smaller: the other one.
        p: significance level.
    """

    quantity: str
    larger: str
    smaller: str
    p: float = 0.01

    @property
    def demand(self) -> str:
        test = f"exact one-sided Mann-Whitney p < {self.p:g}"
        return f"median {self.quantity} larger with {self.larger} than with {self.smaller}, {test}"

    def judge(self, data: Groups) -> Judgement:
        complete = len(data.larger) and len(data.smaller)
        if unusable := _unusable([*data.larger, *data.smaller] if complete else []):
            return unusable
        gain = median(data.larger) - median(data.smaller)
        p = float(mannwhitneyu(data.larger, data.smaller, alternative="greater", method="exact").pvalue)
        sizes = f"{len(data.larger)} and {len(data.smaller)} members"
        reason = f"The medians are {show(median(data.larger))} and {show(median(data.smaller))}; {sizes}, p = {p:.2g}."
        interval = median_difference_interval(data.larger, data.smaller)
        smallest = 1 / math.comb(len(data.larger) + len(data.smaller), len(data.larger))
        if smallest >= self.p:
            needed = next(n for n in range(1, 100) if 1 / math.comb(2 * n, n) < self.p)
            few = f"Even without overlap p is at least {smallest:.2g}: {needed} members of each are needed."
            return Judgement(Verdict.UNDECIDED, gain, f"{reason} {few}", *interval)
        if gain <= 0 and interval[1] <= 0:
            return Judgement(Verdict.REFUTED, gain, reason, *interval)
        if p < self.p:
            return Judgement(Verdict.HOLDS, gain, reason, *interval)
        overlap = "The groups overlap too much for the demanded p."
        return Judgement(Verdict.UNDECIDED, gain, f"{reason} {overlap}", *interval)
