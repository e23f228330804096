"""What an experiment is: settings per profile, cells, rows, claims and figures.

An experiment's cells are settings that differ (a precision, a seed). Solving a cell gives a row of
`results.parquet`. Claims and figures are functions of the rows, so they can be made again at will.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from matplotlib.figure import Figure

from vaescope.errors import InputError
from vaescope.papers.claims import Claim
from vaescope.papers.comparison import Comparison
from vaescope.runs import Cell, RunFolder
from vaescope.runs.files import Row
from vaescope.training import Progress


@dataclass(frozen=True)
class Settings:
    """What every experiment can be told; each adds its own."""

    seeds: int

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise InputError(f"seeds must be at least 1, got {self.seeds}.")


@dataclass(frozen=True)
class Context:
    """Where and how a run is computed; never what it computes."""

    run: RunFolder
    monitor: Progress
    device: str = "cpu"


class Experiment(ABC):
    """One figure or table of a paper."""

    name: str
    title: str
    source: str
    about: str
    """A paragraph for the page: what is shown and how to read it."""
    profiles: ClassVar[Mapping[str, Any]]

    @abstractmethod
    def cells(self, settings: Any) -> list[Cell]:
        """Everything that has to be solved, each cell once."""

    @abstractmethod
    def solve(self, cells: Sequence[Cell], settings: Any, context: Context) -> Iterator[list[Row]]:
        """Rows for these cells, handed over whenever some are finished."""

    @abstractmethod
    def claims(self, rows: Sequence[Row], settings: Any) -> list[Claim]:
        """What the rows say about the paper."""

    @abstractmethod
    def figures(self, rows: Sequence[Row], settings: Any) -> dict[str, tuple[Figure, str]]:
        """Figures by name, each with its caption."""

    def animations(self, rows: Sequence[Row], settings: Any) -> dict[str, tuple[bytes, str]]:
        """GIFs by name, each with its caption."""
        return {}

    def tables(self, rows: Sequence[Row], settings: Any) -> dict[str, list[Row]]:
        """Small tables for the page, by caption."""
        return {}

    def comparisons(self, rows: Sequence[Row], settings: Any) -> list[Comparison]:
        """Ours beside the published values, where there are any."""
        return []
