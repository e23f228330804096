"""The report of an experiment: figures, claims, comparisons with published values, and one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vaescope.papers.claims import Claim
from vaescope.papers.convergence import training_report
from vaescope.papers.experiment import C, Experiment, M, ReportFigure, ReportTable, S
from vaescope.papers.results import Diverged, Results, SeedCell
from vaescope.papers.trained import TrainedExperiment
from vaescope.plain import plain_fields
from vaescope.report.figures import svg
from vaescope.report.page import Drawing, ExperimentPage, experiment_page, gif_image, setting
from vaescope.runs.files import read_json, write_bytes, write_json, write_text

COMPARISON = "comparison.json"
TIMING = "timing.json"
SVG_HEADER = '<?xml version="1.0" encoding="utf-8"?>\n'


def write_report(
    experiment: Experiment[S, C, M],
    settings: S,
    profile: str,
    folder: Path,
    results: Results[C, M],
    claims: Sequence[Claim],
) -> None:
    """Write everything of a run that is made from its results."""
    write_json(folder / "claims.json", [claim.to_data() for claim in claims])
    comparisons = experiment.comparisons(results.finished, settings)
    if comparisons:
        write_json(folder / COMPARISON, [comparison.to_data() for comparison in comparisons])
    training, convergence = _training(experiment, settings, folder, results)
    tables = [*experiment.tables(results.finished, settings), *convergence]
    page = ExperimentPage(
        name=experiment.name,
        title=experiment.info.title,
        source=experiment.info.source,
        about=experiment.about,
        profile=profile,
        claims=[claim.to_data() for claim in claims],
        drawings=_drawings(experiment, settings, folder, results, training),
        tables={table.caption: table.rows for table in tables if table.rows},
        settings=plain_fields(settings),
        published_settings=plain_fields(experiment.paper),
        problems=[_diverged_line(member) for member in results.diverged],
        seconds=read_seconds(folder),
    )
    write_text(folder / "report.html", experiment_page(page))


def _training(
    experiment: Experiment[S, C, M], settings: S, folder: Path, results: Results[C, M]
) -> tuple[list[ReportFigure], list[ReportTable]]:
    """The training of every member, for experiments that train."""
    if not isinstance(experiment, TrainedExperiment):
        return [], []
    return training_report(folder, results.finished, lambda cell: experiment.training_of(cell, settings).epochs)


def _drawings(
    experiment: Experiment[S, C, M],
    settings: S,
    folder: Path,
    results: Results[C, M],
    training: Sequence[ReportFigure],
) -> list[Drawing]:
    """Figures and animations, each also as a file of its own."""
    drawings = []
    for drawn in [*experiment.figures(results.finished, settings), *training]:
        text = svg(drawn.figure)
        write_text(folder / "figures" / f"{drawn.name}.svg", SVG_HEADER + text)
        drawings.append(Drawing(drawn.name, text, drawn.caption))
    for animation in experiment.animations(results.finished, settings):
        write_bytes(folder / "figures" / f"{animation.name}.gif", animation.gif)
        drawings.append(Drawing(animation.name, gif_image(animation.gif, animation.caption), animation.caption))
    return drawings


def _diverged_line(member: Diverged[SeedCell]) -> str:
    """Members that diverged are named, not hidden."""
    cell = ", ".join(f"{name} {setting(value)}" for name, value in plain_fields(member.cell).items())
    step = member.training.diverged_at_step
    return f"The member with {cell} diverged at step {step}; claims and figures do not include it."


def read_seconds(folder: Path) -> float | None:
    """How long the results of a folder took, if that is known."""
    return float(read_json(folder / TIMING)["seconds"]) if (folder / TIMING).exists() else None
