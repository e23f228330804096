"""What every metric returns: the score, its detail, its uncertainty, its floor, and when not to believe it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy.stats import t as student


@runtime_checkable
class Arrays(Protocol):
    """What can be resampled: rows that come shuffled, and the same with nothing left to find."""

    @property
    def samples(self) -> int: ...

    def rows(self, pick: slice | np.ndarray) -> Any: ...

    def null(self, rng: np.random.Generator) -> Any: ...


@dataclass(frozen=True, eq=False)
class Parts:
    """What a metric computes from arrays: one or more named scores, a value per factor, anything else."""

    scores: Mapping[str, float]
    per_factor: np.ndarray
    detail: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Score:
    """A metric's result. `score` is its first number; `interval`, `floor` and `warnings` are found when asked for.

    The interval is score ± t · s, s the standard deviation over random half-samples: drawn without
    replacement their variance is that of the bootstrap, and no sample can stand in for itself in a
    held-out half. Where half-samples score differently on average, the estimate is biased, by about as
    much (a bias that falls like 1/N doubles with half the samples): the interval reaches out by it. The
    floor is the mean score of null encoders: the same codes with their rows shuffled, so that they say
    nothing about the factors.
    """

    name: str
    parts: Parts
    cautions: Callable[[], tuple[str, ...]] = field(repr=False)
    compute: Callable[[Any], Parts] = field(repr=False)
    arrays: Arrays = field(repr=False)
    bounds: tuple[float, float] = (0.0, 1.0)
    resamples: int = 100
    nulls: int = 10

    @property
    def score(self) -> float:
        return next(iter(self.parts.scores.values()))

    @property
    def scores(self) -> Mapping[str, float]:
        return self.parts.scores

    @property
    def per_factor(self) -> np.ndarray:
        return self.parts.per_factor

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Why the score should be read with care."""
        return self.cautions()

    @property
    def interval(self) -> tuple[float, float]:
        """A 95 % interval of the score."""
        return next(iter(self.intervals.values()))

    @property
    def floor(self) -> float:
        """What codes that know nothing of the factors score."""
        return next(iter(self.floors.values()))

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """A 95 % interval of every score."""
        rng = np.random.default_rng(0)
        draws = [self.compute(_half_sample(self.arrays, rng)).scores for _ in range(self.resamples)]
        return {
            name: _interval(score, np.array([draw[name] for draw in draws]), self.bounds)
            for name, score in self.scores.items()
        }

    @cached_property
    def floors(self) -> dict[str, float]:
        """The mean of every score over null encoders."""
        rng = np.random.default_rng(1)
        draws = [self.compute(self.arrays.null(rng)).scores for _ in range(self.nulls)]
        return {name: float(np.mean([draw[name] for draw in draws])) for name in self.scores}

    def __str__(self) -> str:
        return f"{self.name}: " + ", ".join(f"{name} {value:.3f}" for name, value in self.scores.items())


def _interval(score: float, draws: np.ndarray, bounds: tuple[float, float]) -> tuple[float, float]:
    draws = draws[np.isfinite(draws)]
    if len(draws) < 3:
        return float("nan"), float("nan")
    reach = float(student.ppf(0.975, len(draws) - 1)) * float(draws.std(ddof=1))
    unbiased = min(max(2 * score - float(draws.mean()), bounds[0]), bounds[1])
    return max(bounds[0], min(score, unbiased) - reach), min(bounds[1], max(score, unbiased) + reach)


def _half_sample(arrays: Arrays, rng: np.random.Generator) -> Any:
    """Half of the rows, as many from the half to fit on as from the half to score on."""
    middle, count = (arrays.samples + 1) // 2, arrays.samples
    fit = rng.permutation(middle)[: (middle + 1) // 2]
    test = middle + rng.permutation(count - middle)[: (count - middle + 1) // 2]
    return arrays.rows(np.concatenate([fit, test]))
