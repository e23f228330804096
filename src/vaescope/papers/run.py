"""Running an experiment: solve the cells that have no results, judge the claims, write the report and the index."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from vaescope import validation
from vaescope.errors import RunError
from vaescope.jobs.tracking.live import live_observer
from vaescope.papers.catalogue import ExperimentInfo, experiments
from vaescope.papers.claims import Claim
from vaescope.papers.experiment import C, Context, Experiment, M, RunOptions, S
from vaescope.papers.report import COMPARISON, TIMING, read_seconds, write_report
from vaescope.papers.results import Results, from_rows, to_row
from vaescope.plain import plain_fields
from vaescope.report.page import IndexEntry, comparison_page, index_page
from vaescope.runs import Cell, RunFolder
from vaescope.runs.files import read_json, write_json, write_text
from vaescope.runs.parts import PARTS, Part, part_folders
from vaescope.training import Progress


def reproduce(experiment: Experiment[S, C, M], options: RunOptions, *, out: Path, progress: Progress) -> list[Claim]:
    """Run one experiment into `out/NAME/`; cells that have results there are not computed again."""
    validation.device(options.device)
    settings = experiment.settings(options)
    with _run_folder(experiment, options, out / experiment.name) as run:
        _merge_parts(run, [_row(cell) for cell in experiment.cells(settings)])
        context = _context(run, experiment.name, options, out, progress)
        _solve_missing(experiment.cells(settings), experiment, settings, context)
        results = _read_results(experiment, settings, run)
        if not results.finished:
            raise RunError(f"every member of {experiment.name} diverged; see {run.path / 'results.parquet'}.")
        claims = [spec.judged(results.finished, settings) for spec in experiment.claims(settings)]
        write_report(experiment, settings, options.profile, run.path, results, claims)
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
        missing = RunFolder(path, run.config).cells_without_results([_row(cell) for cell in own])
        cells = [cell for cell in own if _row(cell) in missing]
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
        run.import_members([cell for cell in cells if part.has_weights(cell)], folder)
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
    by_values = {tuple(_row(cell).values()): cell for cell in cells}
    missing = context.run.cells_without_results([_row(cell) for cell in cells])
    if not missing:
        return
    begin = time.perf_counter()
    for results in experiment.solve([by_values[tuple(row.values())] for row in missing], settings, context):
        context.run.add_rows([to_row(result) for result in results], [_row(result.cell) for result in results])
    _add_seconds(context.run, time.perf_counter() - begin)


def _add_seconds(run: RunFolder, seconds: float) -> None:
    write_json(run.path / TIMING, {"seconds": round((read_seconds(run.path) or 0.0) + seconds, 1)})


def _read_results(experiment: Experiment[S, C, M], settings: S, run: RunFolder) -> Results[C, M]:
    rows = run.rows([_row(cell) for cell in experiment.cells(settings)])
    return from_rows(rows, experiment.cell_type, experiment.measured_type)


def _row(cell: object) -> Cell:
    return plain_fields(cell)  # type: ignore[return-value]


# the index ------------------------------------------------------------------------------------


def write_index(out: Path, profile: str) -> Path:
    """The index of all experiments with what is finished in this folder, and the page of published values."""
    entries = sorted((_index_entry(out, info) for info in experiments()), key=lambda entry: entry.claims is None)
    # without a report yet, an experiment is being written by another process
    finished = [entry for entry in entries if entry.claims is not None]
    compared = [(entry, read_json(file)) for entry in finished if (file := out / entry.name / COMPARISON).exists()]
    if compared:
        write_text(out / "comparison.html", comparison_page(compared, profile))
    write_text(out / "index.html", index_page(entries, profile, comparison=bool(compared)))
    return out / "index.html"


def _index_entry(out: Path, info: ExperimentInfo) -> IndexEntry:
    folder = out / info.name
    if not (folder / "report.html").exists():
        return IndexEntry(info.name, info.title, info.source)
    figures: Sequence[Path] = sorted((folder / "figures").glob("*.svg"))
    figure = figures[0].stem if figures else None
    return IndexEntry(info.name, info.title, info.source, read_json(folder / "claims.json"), figure)
