"""Timing of benchmarks: the best of several rounds, because other processes can only slow a round down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

ROUNDS = 5


def timed(work: Callable[[], int]) -> tuple[float, int]:
    """Seconds, and the units of work that were done."""
    start = time.perf_counter()
    units = work()
    return time.perf_counter() - start, units


def best_rate(one_round: Callable[[], tuple[float, int]], rounds: int = ROUNDS) -> float:
    """Units per second of the best round; a round returns its seconds and units."""
    return max(units / seconds for seconds, units in (one_round() for _ in range(rounds)))


def best_rates(contestants: Mapping[str, Callable[[], tuple[float, int]]], rounds: int = ROUNDS) -> dict[str, float]:
    """Units per second of everyone's best round; rounds are run in turn, so that other load slows all of them."""
    found = dict.fromkeys(contestants, 0.0)
    for _ in range(rounds):
        for name, one_round in contestants.items():
            found[name] = max(found[name], best_rate(one_round, rounds=1))
    return found


def best_seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """Seconds of the best round."""
    return min(timed(lambda: work() is None or 1)[0] for _ in range(rounds))
