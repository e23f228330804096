"""When to measure: every so many steps, or as often as a share of the training time allows."""

from __future__ import annotations

import time

EARLY = 64  # the first rows come after 1, 2, 4, … and 64 calls
SHARES = {"validation": 0.25, "contrast": 0.25, "page": 0.25}  # of the time for measurements; rows may take all of it


class Clock:
    """Decides which calls of `Watch.update` measure.

    Args:
        every: steps between two measurements; None for as many as `overhead` allows.
        overhead: the share of the time since the first call that measurements may take. The first few, after 1, 2, 4,
            … and 64 calls, come whatever they cost; they are counted, and later ones wait for longer.
    """

    def __init__(self, every: int | None, overhead: float) -> None:
        self.every, self.overhead = every, overhead
        self.spent = 0.0
        self._calls = 0
        self._last: int | None = None
        self._started: float | None = None
        self._costs: dict[str, float] = {}
        self._totals: dict[str, float] = {}

    def due(self, step: int) -> bool:
        """Whether this call measures."""
        self._started = time.perf_counter() if self._started is None else self._started
        self._calls += 1
        if self.every is not None:
            return self._last is None or step - self._last >= self.every
        early = self._calls <= EARLY and self._calls & (self._calls - 1) == 0
        return early or self.affords("row")

    def affords(self, what: str) -> bool:
        """Whether another measurement of this kind, at the cost of the last one, is within the share."""
        if self._started is None:
            return True
        allowed, cost = self.overhead * self.elapsed, self._costs.get(what, 0.0)
        own = self._totals.get(what, 0.0) + cost
        return self.spent + cost <= allowed and own <= SHARES.get(what, 1.0) * allowed

    def measured(self, step: int) -> None:
        self._last = step

    def charge(self, what: str, seconds: float) -> None:
        """Count the time that a measurement took."""
        self._costs[what] = seconds
        self._totals[what] = self._totals.get(what, 0.0) + seconds
        self.spent += seconds

    @property
    def elapsed(self) -> float:
        return 0.0 if self._started is None else time.perf_counter() - self._started
