"""What an experiment is: settings per profile, cells, measurements, claims and figures.

The cells of an experiment are the settings that differ between its rows, such as a precision and a seed. Solving a cell
gives one row of `results.parquet`. Claims, figures and tables are functions of the rows, so that they can be made again
without computing anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from matplotlib.figure import Figure

from vaescope.core.checks import choice, integer
from vaescope.core.serialization import Plain, from_plain, plain_fields
from vaescope.runs import RunFolder
from vaescope.settings import CHECKPOINT_SECONDS
from vaescope.training import Progress
from vaescope.training.progress import Observer
from vaescope_papers.catalogue import PROFILES, ExperimentInfo
from vaescope_papers.claims import ClaimSpecs
from vaescope_papers.results import Diverged, Result, SeedCell
from vaescope_papers.statistics import Comparison

C = TypeVar("C", bound=SeedCell)
M = TypeVar("M")
TableRow = Mapping[str, object]


@dataclass(frozen=True)
class Settings:
    """Settings that every experiment has; each adds its own."""

    seeds: int

    def __post_init__(self) -> None:
        integer("seeds", self.seeds)


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class RunOptions:
    """How an experiment is run: which profile, what is changed in it, and where it is computed."""

    profile: str = "quick"
    seeds: int | None = None
    """How many seeds, if not the profile's."""
    changes: Mapping[str, Plain] | None = None
    """Settings that differ from the profile's, by name."""
    device: str = "cpu"
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    track: str | None = None
    """Where members are logged while they are trained; see `vs.jobs.tracking.live`."""


@dataclass(frozen=True)
class Context:
    """Where and how a run is computed; never what it computes."""

    run: RunFolder
    progress: Progress
    device: str = "cpu"
    out: Path | None = None
    """The folder of all experiments, where members that they share are found."""
    observer: Observer | None = None
    """Watches members while they are trained."""


@dataclass(frozen=True)
class ReportFigure:
    """A figure of a report with its caption."""

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class ReportAnimation:
    """A GIF of a report with its caption."""

    name: str
    gif: bytes
    caption: str


@dataclass(frozen=True)
class ReportTable:
    """A small table of a report with its caption."""

    caption: str
    rows: Sequence[TableRow]


class Experiment(ABC, Generic[S, C, M]):
    """One figure or table of a paper."""

    info: ExperimentInfo
    about: str
    """A paragraph for the page: what is shown and how to read it."""
    quick: S
    """Minutes on two cores: shows the effect."""
    laptop: S
    """Up to two hours on two cores."""
    paper: S
    """The published settings."""
    cell_type: type[C]
    measured_type: type[M]
    claim_specs: ClaimSpecs[Result[C, M], S] = ()
    """The claims, unless they depend on the settings."""

    @property
    def name(self) -> str:
        return self.info.name

    def profile(self, name: str) -> S:
        """The settings of a profile."""
        profiles = {"quick": self.quick, "laptop": self.laptop, "paper": self.paper}
        return profiles[choice("profile", name, PROFILES)]

    def settings(self, options: RunOptions) -> S:
        """The settings of a profile with the changes of these options."""
        settings = self.profile(options.profile)
        changes = dict(options.changes or {}) | ({} if options.seeds is None else {"seeds": options.seeds})
        changed = from_plain(type(settings), plain_fields(settings) | changes, name=self.name)
        return replace(settings, **{name: getattr(changed, name) for name in changes})

    @abstractmethod
    def cells(self, settings: S) -> list[C]:
        """Everything that has to be solved, each cell once."""

    @abstractmethod
    def solve(
        self, cells: Sequence[C], settings: S, context: Context
    ) -> Iterator[Sequence[Result[C, M] | Diverged[C]]]:
        """Results of these cells, yielded whenever some are finished."""

    def claims(self, settings: S) -> ClaimSpecs[Result[C, M], S]:
        """The statements that the results are judged by."""
        return self.claim_specs

    @abstractmethod
    def figures(self, results: Sequence[Result[C, M]], settings: S) -> list[ReportFigure]:
        """Figures of the report."""

    def animations(self, results: Sequence[Result[C, M]], settings: S) -> list[ReportAnimation]:
        """Animations of the report."""
        return []

    def tables(self, results: Sequence[Result[C, M]], settings: S) -> list[ReportTable]:
        """Tables of the report."""
        return []

    def comparisons(self, results: Sequence[Result[C, M]], settings: S) -> list[Comparison]:
        """Our values next to the published ones."""
        return []
