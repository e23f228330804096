"""Intervals and floors of many metrics at once: each resample is made once, and metrics share what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import sklearn
import torch
from threadpoolctl import threadpool_limits

from vaescope.metrics.inputs import CodesAndFactors
from vaescope.metrics.quiet import without_fit_warnings
from vaescope.metrics.score import Score, half_samples, shuffles

ScoresByMetric = dict[str, Mapping[str, float]]
Task = Callable[[], ScoresByMetric]


@dataclass(frozen=True, eq=False)
class Resampling:
    """Half-samples and shuffles of the inputs for several metrics.

    Args:
        results: metrics of the same inputs.
        inputs: the inputs.
        intervals: whether to compute intervals; floors are always computed.
    """

    results: Mapping[str, Score]
    inputs: CodesAndFactors
    intervals: bool

    @property
    def tasks(self) -> int:
        return self._half_samples + self._shuffles

    @property
    def _half_samples(self) -> int:
        return max((one.resamples for one in self.results.values()), default=0) if self.intervals else 0

    @property
    def _shuffles(self) -> int:
        return max((one.shuffles for one in self.results.values()), default=0)

    def run(self, advance: Callable[[], None]) -> None:
        """Set intervals and floors of all results, with as many threads as PyTorch uses.

        Args:
            advance: called after every task.
        """
        with worker_threads() as pool:
            shuffled = [pool.submit(task) for task in self._floor_tasks()]
            resampled = [pool.submit(task) for task in self._interval_tasks()]
            for done in as_completed([*shuffled, *resampled]):
                done.result()
                advance()
        for name, one in self.results.items():
            vars(one)["floors"] = one.floors_from(_of(name, shuffled))
            if self.intervals:
                vars(one)["intervals"] = one.intervals_from(_of(name, resampled))

    def _interval_tasks(self) -> Iterator[Task]:
        for index, half in enumerate(half_samples(self.inputs, self._half_samples)):
            chosen = {name: one.resampled for name, one in self.results.items() if index < one.resamples}
            yield partial(_compute, chosen, half)

    def _floor_tasks(self) -> Iterator[Task]:
        for index, shuffled in enumerate(shuffles(self.inputs, self._shuffles)):
            chosen = {name: one.shuffled for name, one in self.results.items() if index < one.shuffles}
            yield partial(_compute, chosen, shuffled)


@contextmanager
def worker_threads() -> Iterator[ThreadPoolExecutor]:
    """As many threads as PyTorch uses, each of which computes on one core."""
    # inputs have been checked, so scikit-learn need not check them again; the setting applies to worker threads only
    skip_checks = partial(sklearn.set_config, skip_parameter_validation=True, assume_finite=True)
    workers = ThreadPoolExecutor(torch.get_num_threads(), initializer=skip_checks)
    with threadpool_limits(1, user_api="blas"), without_fit_warnings(), workers as pool:
        yield pool


def _compute(
    computations: Mapping[str, Callable[[CodesAndFactors], Mapping[str, float]]], inputs: CodesAndFactors
) -> ScoresByMetric:
    return {name: compute(inputs) for name, compute in computations.items()}


def _of(name: str, tasks: list[Future[ScoresByMetric]]) -> list[Mapping[str, float]]:
    return [task.result()[name] for task in tasks if name in task.result()]
