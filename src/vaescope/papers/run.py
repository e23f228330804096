"""Running experiments: solve what is not solved, then claims, figures, page and index."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from vaescope.errors import InputError, RunError
from vaescope.papers.base import Context, Experiment
from vaescope.papers.catalogue import CATALOGUE, Entry
from vaescope.papers.claims import Claim
from vaescope.report.figures import svg
from vaescope.report.page import (
    Drawing,
    ExperimentPage,
    IndexEntry,
    comparison_page,
    experiment_page,
    index_page,
    moving,
)
from vaescope.runs import RunFolder
from vaescope.runs.files import Row, read_json, write_bytes, write_json, write_text
from vaescope.runs.store import CHECKPOINT_SECONDS
from vaescope.training import Progress

COMPARISON = "comparison.json"
TIMING = "timing.json"


def reproduce(
    experiment: Experiment,
    *,
    profile: str,
    out: Path,
    monitor: Progress,
    seeds: int | None = None,
    device: str = "cpu",
    changed: Mapping[str, Any] | None = None,
    checkpoint_seconds: float | None = None,
) -> list[Claim]:
    """Run one experiment into `out/NAME/`; cells that are finished there are not computed again.

    `changed` are settings other than the profile's; see `changed_settings`.
    """
    check_device(device)
    settings = changed_settings(experiment, profile, changed or {})
    settings = settings if seeds is None else replace(settings, seeds=seeds)
    config = {"experiment": experiment.name, "profile": profile, "settings": _plain(asdict(settings))}
    every = CHECKPOINT_SECONDS if checkpoint_seconds is None else checkpoint_seconds
    with RunFolder.locked(out / experiment.name, config, checkpoint_seconds=every) as run:
        _solve_the_rest(experiment, settings, Context(run, monitor, device))
        rows = run.rows(experiment.cells(settings))
        if all(row.get("status") == "diverged" for row in rows):
            raise RunError(f"every member of {experiment.name} diverged; see {run.path / 'results.parquet'}.")
        claims = experiment.claims(rows, settings)
        _write_report(experiment, settings, profile, run.path, rows, claims)
    return claims


def changed_settings(experiment: Experiment, profile: str, changed: Mapping[str, Any]) -> Any:
    """The settings of a profile with some of them changed, each to a value of its own kind."""
    settings = experiment.profiles[profile]
    known = {f.name: getattr(settings, f.name) for f in fields(settings)}
    values = {}
    for name, value in changed.items():
        if name not in known:
            raise InputError(f"{experiment.name} has no setting {name!r}; it has {', '.join(known)}.")
        values[name] = _of_kind(f"{name} of {experiment.name}", value, known[name])
    return replace(settings, **values)


def _of_kind(name: str, value: Any, like: Any) -> Any:
    """A value that is of the kind of another: a number, a text, a list of such."""
    if isinstance(like, tuple) and isinstance(value, list | tuple):
        return tuple(_of_kind(name, v, like[0]) for v in value) if like else tuple(value)
    if isinstance(like, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if like is not None and type(value) is not type(like):
        raise InputError(f"{name} must be like {like!r}, got {value!r}.")
    return value


def check_device(device: str) -> None:
    """The device exists here."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise InputError(f"device {device!r} is not available here; use cpu.") from None


def _solve_the_rest(experiment: Experiment, settings: Any, context: Context) -> None:
    """What is not there yet; the seconds it took are added to those of earlier calls."""
    todo = context.run.cells_without_results(experiment.cells(settings))
    if not todo:
        return
    begin = time.perf_counter()
    columns = list(todo[0])
    for rows in experiment.solve(todo, settings, context):
        context.run.add_rows(rows, [{name: row[name] for name in columns} for row in rows])
    spent = _seconds(context.run.path) or 0.0
    write_json(context.run.path / TIMING, {"seconds": round(spent + time.perf_counter() - begin, 1)})


def _seconds(folder: Path) -> float | None:
    """How long the rows of a folder took, if that is known."""
    return float(read_json(folder / TIMING)["seconds"]) if (folder / TIMING).exists() else None


def _write_report(
    experiment: Experiment,
    settings: Any,
    profile: str,
    folder: Path,
    rows: Sequence[Row],
    claims: Sequence[Claim],
) -> None:
    drawings = [
        Drawing(name, svg(figure), caption) for name, (figure, caption) in experiment.figures(rows, settings).items()
    ]
    for drawing in drawings:
        write_text(folder / "figures" / f"{drawing.name}.svg", _with_header(drawing.svg))
    for name, (gif, caption) in experiment.animations(rows, settings).items():
        write_bytes(folder / "figures" / f"{name}.gif", gif)
        drawings.append(Drawing(name, moving(gif, caption), caption))
    write_json(folder / "claims.json", [_finite(claim.as_data()) for claim in claims])
    comparisons = experiment.comparisons(rows, settings)
    if comparisons:
        write_json(folder / COMPARISON, [comparison.as_data() for comparison in comparisons])
    page = ExperimentPage(
        name=experiment.name,
        title=experiment.title,
        source=experiment.source,
        about=experiment.about,
        profile=profile,
        claims=[claim.as_data() for claim in claims],
        drawings=drawings,
        tables=experiment.tables(rows, settings),
        settings=_plain(asdict(settings)),
        published_settings=_plain(asdict(experiment.profiles["paper"])),
        trouble=_trouble(rows),
        seconds=_seconds(folder),
    )
    write_text(folder / "report.html", experiment_page(page))


def _trouble(rows: Sequence[Row]) -> list[str]:
    """Members that did not finish are named, not hidden."""
    return [
        f"The member with precision {row.get('precision'):g} and seed {row.get('seed')} diverged at step "
        f"{row.get('diverged_at_step')} and is left out of claims and figures."
        for row in rows
        if row.get("status") == "diverged"
    ]


def write_index(out: Path, profile: str) -> Path:
    """The index of all experiments, with what is finished in this folder, and the page beside the authors' values."""
    entries = [_entry(out, entry) for entry in CATALOGUE]
    compared = [(entry, read_json(file)) for entry in entries if (file := out / entry.name / COMPARISON).exists()]
    if compared:
        write_text(out / "comparison.html", comparison_page(compared, profile))
    write_text(out / "index.html", index_page(entries, profile, comparison=bool(compared)))
    return out / "index.html"


def _entry(out: Path, entry: Entry) -> IndexEntry:
    folder = out / entry.name
    if not (folder / "report.html").exists():
        return IndexEntry(entry.name, entry.title, entry.source)
    drawn = sorted((folder / "figures").glob("*.svg"))
    figure = drawn[0].stem if drawn else None
    return IndexEntry(entry.name, entry.title, entry.source, read_json(folder / "claims.json"), figure)


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings as JSON knows them, so that what is written and what is read are equal."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def _finite(data: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN or infinity: they become null."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in data.items()}


def _with_header(text: str) -> str:
    return '<?xml version="1.0" encoding="utf-8"?>\n' + text
