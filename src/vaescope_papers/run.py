"""Running an experiment: solve the cells that have no results, judge the claims, write the report and the index."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaescope.core import validation
from vaescope.core.errors import RunError
from vaescope.core.serialization import Plain, plain_fields
from vaescope.jobs import Task
from vaescope.jobs.tasks import one_line_error
from vaescope.jobs.tracking import live_observer
from vaescope.report import figures
from vaescope.report.figures import svg
from vaescope.report.page import (
    Drawing,
    ExperimentPage,
    IndexEntry,
    comparison_page,
    embedded_image,
    experiment_page,
    index_page,
    setting,
)
from vaescope.runs import Cell, RunFolder
from vaescope.runs.files import locked, read_json, write_bytes, write_json, write_text
from vaescope.runs.store import PARTS, Part, part_folders, read_table
from vaescope.training import Progress
from vaescope_papers.catalogue import ExperimentInfo, experiments, find_experiment
from vaescope_papers.claims import Claim, judge_claims
from vaescope_papers.experiment import C, Context, Experiment, M, ReportFigure, ReportTable, RunOptions, S
from vaescope_papers.registration import protocol_of, read_registration, register
from vaescope_papers.results import Diverged, Result, Results, SeedCell, cell_row, from_rows, grouped, to_row
from vaescope_papers.statistics import median
from vaescope_papers.trained import TrainedExperiment
from vaescope_papers.verify import read_run, write_export

SMALLEST = 1e-4  # nats; smaller distances are drawn there
COMPARISON = "comparison.json"
TRAINING_CAPTION = (
    "Training of every member: how far its validation ELBO is below the best that it reached. It is flat at the end if "
    "the validation objective did not improve for as many epochs as the patience allows, or improved by at most 0.05 "
    "nats (or a thousandth of its rise after the first fifth of the epochs) over the last fifth of them. Under a "
    "learning rate that decays every curve becomes flat, which is no evidence that a member has converged."
)
ResultsWithSettings = Sequence[Result[SeedCell, object]]


# the report -----------------------------------------------------------------------------------


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
    folder: Path, results: ResultsWithSettings, epochs: Callable[[SeedCell], int]
) -> tuple[list[ReportFigure], list[ReportTable]]:
    """The figure and the table of all trained members; without a recorded history only what their summaries have.

    Args:
        folder: of the run, with its `history.parquet`.
        results: of the members that finished.
        epochs: of a cell at most, by its settings.
    """
    trained = [r for r in results if r.training is not None and r.training.converged is not None]
    names = list(cell_row(trained[0].cell)) if trained else []
    histories = grouped(read_table(folder, "history"), lambda row: tuple(f"{name} {row.get(name)}" for name in names))
    curves = {
        r.cell: Curve([float(str(row["elbo"])) for row in own], bool(r.training and r.training.converged))
        for r in trained
        if (own := histories.get(_cell_text(r.cell)))
    }
    known = [r for r in trained if r.cell in curves] if curves else trained
    groups = grouped(known, lambda r: _cell_text(r.cell, without="seed")).values()
    rows = [_training_row(group, [curves[r.cell] for r in group if curves], epochs(group[0].cell)) for group in groups]
    drawn = [_training_figure(list(curves.values()))] if curves else []
    return drawn, [ReportTable("Training: which members were flat at the end?", rows)] if rows else []


def _cell_text(cell: SeedCell, *, without: str = "") -> tuple[str, ...]:
    return tuple(f"{name} {value}" for name, value in cell_row(cell).items() if name != without)


def _training_figure(curves: Sequence[Curve], *, points: int = 60) -> ReportFigure:
    drawn, (axis,) = figures.row_of_panels(1, width=7.5, height=3.4)
    seen = set()
    for curve in curves:
        epochs = sorted({round(e) for e in np.linspace(1, len(curve.elbo), points)})
        colour, label = ("#2f6db5", "flat at the end") if curve.converged else ("#c8452f", "still improving")
        values = [curve.distances[epoch - 1] for epoch in epochs]
        axis.plot(
            epochs, values, color=colour, linewidth=0.7, alpha=0.5, label=None if curve.converged in seen else label
        )
        seen.add(curve.converged)
    figures.format_axis(axis, title="Training", x="epoch", y="best ELBO − ELBO, nats", log="y")
    return ReportFigure("training", drawn, TRAINING_CAPTION)


def _training_row(results: ResultsWithSettings, curves: Sequence[Curve], epochs: int) -> dict[str, object]:
    """A setting, over its seeds."""
    summaries = [r.training for r in results if r.training is not None]
    return {
        **{name: setting(value) for name, value in cell_row(results[0].cell).items() if name != "seed"},
        "members": len(results),
        "flat at the end": f"{sum(bool(s.converged) for s in summaries)} of {len(summaries)}",
        "stopped early": sum(s.epochs < epochs for s in summaries),
        "epochs (median)": f"{median([float(s.epochs) for s in summaries]):g}",
        "best epoch (median)": f"{median([float(s.best_epoch) for s in summaries]):g}",
        **({"largest rise over the last tenth, nats": max(c.late_gain for c in curves)} if curves else {}),
    }


def write_report(
    experiment: Experiment[S, C, M],
    settings: S,
    profile: str,
    folder: Path,
    results: Results[C, M],
    claims: Sequence[Claim],
) -> None:
    """Write everything of a run that is made from its results."""
    finished = results.finished
    write_json(folder / "claims.json", [claim.to_data() for claim in claims])
    comparisons = [comparison.to_data() for comparison in experiment.comparisons(finished, settings)]
    if comparisons:
        write_json(folder / COMPARISON, comparisons)
    drawn, tables = [*experiment.figures(finished, settings)], [*experiment.tables(finished, settings)]
    if isinstance(experiment, TrainedExperiment):
        training = training_report(folder, finished, lambda cell: experiment.training_of(cell, settings).epochs)
        drawn += training[0]
        tables += training[1]
    drawings = []
    for figure in drawn:
        text = svg(figure.figure)
        write_text(folder / "figures" / f"{figure.name}.svg", f'<?xml version="1.0" encoding="utf-8"?>\n{text}')
        drawings.append(Drawing(figure.name, text, figure.caption))
    for animation in experiment.animations(finished, settings):
        write_bytes(folder / "figures" / f"{animation.name}.gif", animation.gif)
        drawings.append(
            Drawing(animation.name, embedded_image(animation.gif, "gif", animation.caption), animation.caption)
        )
    if "training" not in {figure.name for figure in drawn}:
        drawings += _kept_training_figure(folder)
    page = ExperimentPage(
        name=experiment.info.name,
        title=experiment.info.title,
        source=experiment.info.source,
        about=experiment.about,
        profile=profile,
        claims=[claim.to_data() for claim in claims],
        drawings=drawings,
        tables={table.caption: table.rows for table in tables if table.rows},
        settings=plain_fields(settings),
        published_settings=plain_fields(experiment.paper),
        problems=[_diverged_line(member) for member in results.diverged],
        seconds=read_seconds(folder),
        comparisons=comparisons,
        registered="" if (registration := read_registration(folder)) is None else registration.words,
    )
    write_text(folder / "report.html", experiment_page(page))


def _kept_training_figure(folder: Path) -> list[Drawing]:
    """The figure of training as it was drawn before, where the histories that it shows are not stored any more."""
    file = folder / "figures" / "training.svg"
    if not file.exists():
        return []
    return [Drawing("training", embedded_image(file.read_bytes(), "svg+xml", TRAINING_CAPTION), TRAINING_CAPTION)]


def _diverged_line(member: Diverged[SeedCell]) -> str:
    """Members that diverged are named, not hidden."""
    cell = ", ".join(f"{name} {setting(value)}" for name, value in cell_row(member.cell).items())
    step = member.training.diverged_at_step
    return f"The member with {cell} diverged at step {step}; claims and figures do not include it."


def read_seconds(folder: Path) -> float | None:
    """How long the results of a folder took, if that is known."""
    return float(read_json(folder / "timing.json")["seconds"]) if (folder / "timing.json").exists() else None


# running --------------------------------------------------------------------------------------


def reproduce(experiment: Experiment[S, C, M], options: RunOptions, *, out: Path, progress: Progress) -> list[Claim]:
    """Run one experiment into `out/NAME/`; cells that have results there are not computed again."""
    validation.device(options.device)
    settings = experiment.settings(options)
    with _run_folder(experiment, options, out / experiment.name) as run:
        cells = [cell_row(cell) for cell in experiment.cells(settings)]
        _merge_parts(run, cells)
        specs = experiment.claims(settings)
        register(run.path, protocol_of(specs, settings), after_results=bool(run.rows(cells)))
        context = _context(run, experiment.name, options, out, progress)
        _solve_missing(experiment.cells(settings), experiment, settings, context)
        results = from_rows(run.rows(cells), experiment.cell_type, experiment.measured_type)
        if not results.finished:
            raise RunError(f"every member of {experiment.name} diverged; see {run.path / 'results.parquet'}.")
        claims = judge_claims(specs, results.finished, settings)
        write_report(experiment, settings, options.profile, run.path, results, claims)
    return claims


def redraw(folder: Path) -> list[Claim]:
    """Judge the stored results of a run folder again and write its report again, without computing any of them."""
    run = read_run(folder)
    protocol = protocol_of(run.experiment.claims(run.settings), run.settings)
    with locked(folder):
        register(folder, protocol, after_results=True)
        claims = run.judge()
        write_report(run.experiment, run.settings, run.profile, folder, run.results, claims)
    return claims


def solve_part(
    experiment: Experiment[S, C, M], options: RunOptions, part: Part, *, out: Path, progress: Progress
) -> int:
    """Solve some of the cells in a folder of their own; `reproduce` merges it. Returns how many cells the part has.

    Cells and members that the experiment's own folder has are not computed again.
    """
    settings, path = experiment.settings(options), out / experiment.name
    with _run_folder(experiment, options, part.folder(path)) as run:
        own = part.share(experiment.cells(settings))
        missing = RunFolder(path, run.config).cells_without_results([cell_row(cell) for cell in own])
        cells = [cell for cell in own if cell_row(cell) in missing]
        run.import_members(missing, path)
        _solve_missing(cells, experiment, settings, _context(run, experiment.name, options, out, progress))
    return len(cells)


def _context(run: RunFolder, name: str, options: RunOptions, out: Path, progress: Progress) -> Context:
    observer = live_observer(options.track, name, out / name, progress.message)
    return Context(run, progress, options.device, out, observer)


def _run_folder(experiment: Experiment[S, C, M], options: RunOptions, path: Path) -> AbstractContextManager[RunFolder]:
    """The locked run folder of an experiment, or of a part of it."""
    settings = plain_fields(experiment.settings(options))
    config = {"experiment": experiment.name, "profile": options.profile, "settings": settings}
    return RunFolder.locked(path, config, checkpoint_seconds=options.checkpoint_seconds)


def _merge_parts(run: RunFolder, cells: Sequence[Cell]) -> None:
    """Take over everything that parts have finished, and delete parts that have nothing else."""
    seconds = []
    for folder in filter(run.has_same_settings, part_folders(run.path)):
        part = RunFolder(folder, run.config)
        run.import_members(cells, folder)
        finished = [cell for cell in run.cells_without_results(cells) if part.rows([cell])]
        if finished:
            run.add_rows(part.rows(finished), finished)
            seconds.append(read_seconds(folder) or 0.0)
        run.remove_imported(cells, folder)
    with suppress(OSError):  # there is none, or it is not empty
        (run.path / PARTS).rmdir()
    if seconds:
        _add_seconds(run, max(seconds))


def _solve_missing(cells: Sequence[C], experiment: Experiment[S, C, M], settings: S, context: Context) -> None:
    """Solve the cells without results; the seconds it takes are added to those of earlier calls."""
    by_values = {tuple(cell_row(cell).values()): cell for cell in cells}
    missing = context.run.cells_without_results([cell_row(cell) for cell in cells])
    if not missing:
        return
    begin = time.perf_counter()
    for results in experiment.solve([by_values[tuple(row.values())] for row in missing], settings, context):
        context.run.add_rows([to_row(result) for result in results], [cell_row(result.cell) for result in results])
    _add_seconds(context.run, time.perf_counter() - begin)


def _add_seconds(run: RunFolder, seconds: float) -> None:
    write_json(run.path / "timing.json", {"seconds": round((read_seconds(run.path) or 0.0) + seconds, 1)})


# the index ------------------------------------------------------------------------------------


def write_index(out: Path, profile: str) -> Path:
    """The index of all experiments with what is finished in this folder, and the page of published values."""
    entries = sorted((_index_entry(out, info) for info in experiments()), key=lambda entry: entry.claims is None)
    # without a report yet, an experiment is being written by another process
    finished = [entry for entry in entries if entry.claims is not None]
    compared = [(entry, read_json(file)) for entry in finished if (file := out / entry.name / COMPARISON).exists()]
    if compared:
        write_text(out / "comparison.html", comparison_page(compared, profile))
    write_export(out)
    write_text(out / "index.html", index_page(entries, profile, comparison=bool(compared)))
    return out / "index.html"


def _index_entry(out: Path, info: ExperimentInfo) -> IndexEntry:
    folder = out / info.name
    if not (folder / "report.html").exists():
        return IndexEntry(info.name, info.title, info.source)
    figure = min((file.stem for file in (folder / "figures").glob("*.svg")), default=None)
    return IndexEntry(info.name, info.title, info.source, read_json(folder / "claims.json"), figure)


# tasks for an executor ------------------------------------------------------------------------


@dataclass(frozen=True)
class ExperimentJob:
    """One experiment and how to run it."""

    name: str
    options: RunOptions


def experiment_tasks(infos: Sequence[ExperimentInfo], out: Path, options: RunOptions) -> list[Task]:
    """A task per experiment, all in one output folder."""
    return [Task(info.name, run_job, ExperimentJob(info.name, options), out, info.name) for info in infos]


@dataclass(frozen=True)
class PartJob:
    """Some of the cells of every experiment."""

    names: tuple[str, ...]
    options: RunOptions
    part: Part


def part_tasks(infos: Sequence[ExperimentInfo], out: Path, options: RunOptions, count: int) -> list[Task]:
    """`count` tasks, each with its share of the cells of every experiment.

    Run the experiments afterwards to merge them. Each task begins with another experiment: what one compiles, the
    others then find in the compiler's cache.
    """
    names = [info.name for info in infos]
    label = names[0] if len(names) == 1 else f"{len(names)} experiments"
    tasks = []
    for index in range(count):
        first = index % len(names)
        job = PartJob((*names[first:], *names[:first]), options, Part(index, count))
        tasks.append(Task(f"{label} ({index + 1} of {count})", run_part, job, out))
    return tasks


def run_part(job: PartJob, out: Path, progress: Progress) -> dict[str, Exception]:
    """Solve a part of every experiment in a worker; the errors of those that failed, by name."""
    failed = {}
    for name in job.names:
        if len(job.names) > 1:
            progress.message(name)
        try:
            solve_part(find_experiment(name).load(), job.options, job.part, out=out, progress=progress)
        except BrokenPipeError:  # the parent process is gone
            raise
        except Exception as error:
            failed[name] = one_line_error(error)
    return failed


def run_job(job: ExperimentJob, out: Path, progress: Progress) -> list[dict[str, Plain]]:
    """Run an experiment in a worker; its claims as plain data."""
    claims = reproduce(find_experiment(job.name).load(), job.options, out=out, progress=progress)
    return [claim.to_data() for claim in claims]
