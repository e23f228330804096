"""How training went: the validation ELBO of every member along training, and who had converged when it ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaescope.papers.experiment import ReportFigure, ReportTable
from vaescope.papers.results import Result, SeedCell, grouped
from vaescope.papers.statistics import median
from vaescope.plain import plain_fields
from vaescope.report import figures
from vaescope.report.page import setting
from vaescope.runs.files import read_rows

SHOWN_EPOCHS = 60
SMALLEST = 1e-4  # nats; smaller distances are drawn there
COLOURS = {True: "#2f6db5", False: "#c8452f"}
LABELS = {True: "converged", False: "still improving"}
TABLE = "Training: did every member converge?"
CAPTION = (
    "Training of every member: how far its validation ELBO is below the best that it reached. A member has converged "
    "if its validation objective did not improve for as many epochs as the patience allows, or if it improved by at "
    "most 0.05 nats (or a thousandth of its rise after the first fifth of the epochs) over the last fifth of them."
)
Results = Sequence[Result[SeedCell, object]]
Row = Mapping[str, object]


@dataclass(frozen=True)
class Curve:
    """Validation ELBO of one member after every epoch."""

    elbo: Sequence[float]
    converged: bool

    @property
    def distances(self) -> list[float]:
        """How far every epoch is below the best one, in nats."""
        best = max(self.elbo)
        return [max(best - value, SMALLEST) for value in self.elbo]

    @property
    def late_gain(self) -> float:
        """The rise of the best ELBO over the last tenth of the epochs; infinite for a single epoch."""
        before = self.elbo[: len(self.elbo) - math.ceil(len(self.elbo) / 10)]
        return max(self.elbo) - max(before) if before else math.inf


def training_report(
    folder: Path, results: Results, epochs: Callable[[SeedCell], int]
) -> tuple[list[ReportFigure], list[ReportTable]]:
    """The figure and the table of all trained members; nothing for members without a recorded history.

    Args:
        folder: of the run, with its `history.parquet`.
        results: of the members that finished.
        epochs: of a cell at most, by its settings.
    """
    trained = [r for r in results if r.training is not None and r.training.converged is not None]
    curves = _curves(read_rows(folder / "history.parquet"), trained)
    if not curves:
        return [], []
    return [_figure(list(curves.values()))], [_table(trained, curves, epochs)]


def _curves(rows: Sequence[Row], results: Results) -> dict[SeedCell, Curve]:
    names = list(plain_fields(results[0].cell)) if results else []
    by_cell = grouped(rows, lambda row: _key({name: row.get(name) for name in names}))
    return {
        r.cell: Curve([float(str(row["elbo"])) for row in own], bool(r.training and r.training.converged))
        for r in results
        if (own := by_cell.get(_key(plain_fields(r.cell))))
    }


def _key(cell: Row) -> tuple[str, ...]:
    return tuple(f"{name} {value}" for name, value in cell.items())


def _figure(curves: Sequence[Curve]) -> ReportFigure:
    drawn, (axis,) = figures.row_of_panels(1, width=7.5, height=3.4)
    seen = set()
    for curve in curves:
        epochs = sorted({round(e) for e in np.linspace(1, len(curve.elbo), SHOWN_EPOCHS)})
        label = None if curve.converged in seen else LABELS[curve.converged]
        values = [curve.distances[epoch - 1] for epoch in epochs]
        axis.plot(epochs, values, color=COLOURS[curve.converged], linewidth=0.7, alpha=0.5, label=label)
        seen.add(curve.converged)
    figures.format_axis(axis, title="Training", x="epoch", y="best ELBO − ELBO, nats", log="y")
    return ReportFigure("training", drawn, CAPTION)


def _table(results: Results, curves: Mapping[SeedCell, Curve], epochs: Callable[[SeedCell], int]) -> ReportTable:
    """A row per setting, over its seeds."""
    groups = grouped([r for r in results if r.cell in curves], lambda r: _key(_without_seed(r.cell)))
    rows = [_group_row(group, [curves[r.cell] for r in group], epochs(group[0].cell)) for group in groups.values()]
    return ReportTable(TABLE, rows)


def _without_seed(cell: SeedCell) -> dict[str, object]:
    return {name: value for name, value in plain_fields(cell).items() if name != "seed"}


def _group_row(results: Results, curves: Sequence[Curve], epochs: int) -> dict[str, object]:
    summaries = [r.training for r in results if r.training is not None]
    return {
        **{name: setting(value) for name, value in _without_seed(results[0].cell).items()},
        "members": len(results),
        "converged": f"{sum(bool(s.converged) for s in summaries)} of {len(summaries)}",
        "stopped early, converged": sum(s.epochs < epochs for s in summaries),
        "epochs (median)": f"{median([float(s.epochs) for s in summaries]):g}",
        "best epoch (median)": f"{median([float(s.best_epoch) for s in summaries]):g}",
        "largest rise over the last tenth, nats": max(curve.late_gain for curve in curves),
    }
