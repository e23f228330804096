"""Results of an experiment as typed rows, and their form in `results.parquet`.

A result is a cell (the setting), how training went, and what was measured: three dataclasses, so that claims and
figures read attributes that the type checker knows and no column is spelled twice. They are rows of dataclasses and
not a data frame, because an experiment has tens to hundreds of rows: types are worth more here than column-wise speed.
In the file a result is one flat row with the fields of all three. Members that diverged have no measurement; they are
separated from the others here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Generic, Protocol, TypeVar, runtime_checkable

from vaescope.core.serialization import Plain, from_plain, plain_fields
from vaescope.models import TrainingSummary
from vaescope.runs import Cell

DIVERGED = "diverged"


@runtime_checkable
class SeedCell(Protocol):
    """A cell: a frozen dataclass of plain values, with a seed among them."""

    @property
    def seed(self) -> int: ...


C = TypeVar("C", covariant=True)
M = TypeVar("M", covariant=True)
K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True)
class Result(Generic[C, M]):
    """A finished cell. `training` is None for cells that are solved without training."""

    cell: C
    measured: M
    training: TrainingSummary | None = None

    @property
    def elbo(self) -> float:
        """The best validation ELBO; NaN without training."""
        return float("nan") if self.training is None or self.training.elbo is None else self.training.elbo


@dataclass(frozen=True)
class Diverged(Generic[C]):
    """A member whose loss stopped being finite."""

    cell: C
    training: TrainingSummary


@dataclass(frozen=True)
class Results(Generic[C, M]):
    """All rows of a run, those that can be evaluated apart from those that cannot."""

    finished: Sequence[Result[C, M]]
    diverged: Sequence[Diverged[C]] = ()


def cell_row(cell: SeedCell) -> Cell:
    """A cell as the run folder stores it."""
    return plain_fields(cell)  # type: ignore[return-value]


def to_row(result: Result[SeedCell, object] | Diverged[SeedCell]) -> dict[str, Plain]:
    """One flat row."""
    row = plain_fields(result.cell)
    row |= {"status": "exact"} if result.training is None else result.training.to_dict()
    return row if isinstance(result, Diverged) else row | plain_fields(result.measured)


def from_rows(rows: Iterable[Mapping[str, Plain]], cell_type: type[C], measured_type: type[M]) -> Results[C, M]:
    """Typed results from the rows of a file; columns that a type does not have are ignored."""
    finished, diverged = [], []
    for row in rows:
        cell = from_plain(cell_type, _own(row, cell_type), name="results.parquet")
        exact = row.get("status") == "exact"
        training = None if exact else TrainingSummary.from_dict(_own(row, TrainingSummary))
        if training is not None and training.status == DIVERGED:
            diverged.append(Diverged(cell, training))
        else:
            finished.append(Result(cell, from_plain(measured_type, _own(row, measured_type)), training))
    return Results(finished, diverged)


def _own(row: Mapping[str, Plain], cls: type) -> dict[str, Plain]:
    """The columns of a row that are fields of a dataclass."""
    return {f.name: row[f.name] for f in fields(cls) if f.name in row}


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Items by key, in the order in which keys first appear.

    >>> grouped([3, 1, 4, 1, 5], lambda v: v % 2)
    {1: [3, 1, 1, 5], 0: [4]}
    """
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def paired_differences(
    first: Iterable[Result[C, M]],
    second: Iterable[Result[C, M]],
    value: Callable[[M], float],
    key: Callable[[C], Hashable],
) -> list[float]:
    """The value of every member of `first` minus that of its partner in `second`, which has the same key."""
    partners = {key(r.cell): value(r.measured) for r in second}
    return [value(r.measured) - partners[key(r.cell)] for r in first if key(r.cell) in partners]
