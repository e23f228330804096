"""Timing of benchmarks: the best of several rounds, because other processes can only slow a round down."""

from __future__ import annotations

import time
from collections.abc import Callable

ROUNDS = 5


def timed(work: Callable[[], int]) -> tuple[float, int]:
    """Seconds, and the units of work that were done."""
    start = time.perf_counter()
    units = work()
    return time.perf_counter() - start, units


def best_rate(one_round: Callable[[], tuple[float, int]], rounds: int = ROUNDS) -> float:
    """Units per second of the best round; a round returns its seconds and units."""
    return max(units / seconds for seconds, units in (one_round() for _ in range(rounds)))


def best_seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Seconds of the best round."""
    return min(timed(lambda: work() is None or 1)[0] for _ in range(rounds))
