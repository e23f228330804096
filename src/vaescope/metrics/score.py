"""The result of a metric: scores, details, confidence intervals, chance levels and warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from scipy.stats import t as student

Inputs = TypeVar("Inputs", bound="Resamplable")


@runtime_checkable
class Resamplable(Protocol):
    """Arrays in random order that can be resampled."""

    @property
    def samples(self) -> int: ...

    def subset(self: Inputs, rows: slice | np.ndarray) -> Inputs:
        """The arrays at these rows."""

    def shuffled(self: Inputs, rng: np.random.Generator) -> Inputs:
        """The arrays without the dependence that the metric measures."""


Compute = Callable[..., "MetricValues"]
"""A metric as a function of its inputs."""


@dataclass(frozen=True, eq=False)
class MetricValues:
    """What a metric computes: one or more named scores, a value per factor, and details."""

    scores: Mapping[str, float]
    per_factor: np.ndarray
    details: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Score:
    """A metric's result. `score` is its first score; intervals, floors and warnings are computed on first use.

    Interval: score ± t · s, where s is the standard deviation over random half-samples without replacement. Its
    variance equals that of the bootstrap, and no sample occurs in both halves of a held-out fit. If the mean over
    half-samples differs from the score, the estimate is biased by about that difference (a bias proportional to 1/N
    doubles with half the samples), and the interval is extended by it.

    A slow metric may have a cheaper form for the half-samples (`interval_compute`), which is then compared with its own
    value on all samples.

    Floor: the mean score of codes with shuffled rows, which are independent of the factors.
    """

    name: str
    compute: Compute = field(repr=False)
    inputs: Resamplable = field(repr=False)
    find_warnings: Callable[..., tuple[str, ...]] = field(repr=False)
    """Violated assumptions of inputs."""
    bounds: tuple[float, float] = (0.0, 1.0)
    resamples: int = 100
    shuffles: int = 10
    interval_compute: Compute | None = field(default=None, repr=False)
    values: MetricValues = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", self.compute(self.inputs))

    @property
    def score(self) -> float:
        return next(iter(self.values.scores.values()))

    @property
    def scores(self) -> Mapping[str, float]:
        return self.values.scores

    @property
    def per_factor(self) -> np.ndarray:
        return self.values.per_factor

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Reasons why the score may be unreliable."""
        return self.find_warnings(self.inputs)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the score."""
        return next(iter(self.intervals.values()))

    @property
    def floor(self) -> float:
        """Score of codes that are independent of the factors."""
        return next(iter(self.floors.values()))

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95 % interval of every score."""
        return self.intervals_from([self.resampled(half) for half in half_samples(self.inputs, self.resamples)])

    @cached_property
    def floors(self) -> dict[str, float]:
        """Floor of every score."""
        return self.floors_from([self.compute(one).scores for one in shuffles(self.inputs, self.shuffles)])

    def resampled(self, inputs: Resamplable) -> Mapping[str, float]:
        """Scores for the interval, of a half-sample or of all samples."""
        return (self.interval_compute or self.compute)(inputs).scores

    def intervals_from(self, resampled: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
        """Intervals from the scores of half-samples."""
        whole = self.scores if self.interval_compute is None else self.resampled(self.inputs)
        found = {name: np.array([scores[name] for scores in resampled]) for name in self.scores}
        return {name: _interval(score, found[name] - whole[name], self.bounds) for name, score in self.scores.items()}

    def floors_from(self, shuffled: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Floors from the scores of shuffled codes."""
        return {name: float(np.mean([scores[name] for scores in shuffled])) for name in self.scores}

    def __str__(self) -> str:
        return f"{self.name}: " + ", ".join(f"{name} {value:.3f}" for name, value in self.scores.items())


class OneScore:
    """An attribute of a result: the score of the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, result: Score, owner: type) -> float:
        return result.scores[self.name]


class Detail:
    """An attribute of a result: the detail of the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, result: Score, owner: type) -> np.ndarray:
        return result.values.details[self.name]


def half_samples(inputs: Inputs, count: int) -> Iterator[Inputs]:
    """Halves of the rows: half of those for fitting and half of those for scoring."""
    rng = np.random.default_rng(0)
    middle, samples = (inputs.samples + 1) // 2, inputs.samples
    for _ in range(count):
        fit = rng.permutation(middle)[: (middle + 1) // 2]
        test = middle + rng.permutation(samples - middle)[: (samples - middle + 1) // 2]
        yield inputs.subset(np.concatenate([fit, test]))


def shuffles(inputs: Inputs, count: int) -> Iterator[Inputs]:
    """The inputs without dependence."""
    rng = np.random.default_rng(1)
    return (inputs.shuffled(rng) for _ in range(count))


def _interval(score: float, deviations: np.ndarray, bounds: tuple[float, float]) -> tuple[float, float]:
    """From the deviations of half-samples from the score of all samples."""
    deviations = deviations[np.isfinite(deviations)]
    if len(deviations) < 3:
        return float("nan"), float("nan")
    half_width = float(student.ppf(0.975, len(deviations) - 1)) * float(deviations.std(ddof=1))
    unbiased = min(max(score - float(deviations.mean()), bounds[0]), bounds[1])
    return max(bounds[0], min(score, unbiased) - half_width), min(bounds[1], max(score, unbiased) + half_width)
