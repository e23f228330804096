"""Cells that differ in decoder precision and seed, and results grouped by precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from vaescope.papers.results import Result, grouped
from vaescope.papers.statistics import median

M = TypeVar("M")


@dataclass(frozen=True)
class PrecisionCell:
    """One decoder precision γ² and one seed."""

    precision: float
    seed: int


def precision_cells(precisions: Sequence[float], seeds: int) -> list[PrecisionCell]:
    """Every precision with every seed."""
    return [PrecisionCell(precision, seed) for precision in precisions for seed in range(seeds)]


def by_precision(results: Sequence[Result[PrecisionCell, M]]) -> dict[float, list[Result[PrecisionCell, M]]]:
    """Results by γ², in ascending order."""
    return grouped(sorted(results, key=lambda r: r.cell.precision), lambda r: r.cell.precision)


def values_by_precision(
    results: Sequence[Result[PrecisionCell, M]], value: Callable[[M], float]
) -> dict[float, list[float]]:
    """One measured value of every member, by γ²."""
    return {p: [value(r.measured) for r in group] for p, group in by_precision(results).items()}


def median_of(results: Sequence[Result[PrecisionCell, M]], value: Callable[[M], float]) -> float:
    """The median over members of one measured value."""
    return median([value(r.measured) for r in results])
