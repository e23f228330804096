"""Results of a sweep as one table, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vaescope.errors import InputError
from vaescope.runs.files import Row, malformed_as_run_error, read_json, read_rows, write_rows
from vaescope.runs.lock import is_locked
from vaescope.sweeps.sweep import Stack, Sweep


def results(what: Sweep, folder: Path) -> list[Row]:
    """A row per finished member: the settings that were swept, then what was measured."""
    rows = []
    for stack in what.stacks:
        swept = {name: _cell(stack.settings[name]) for name in what.grid if name in stack.settings}
        own = read_rows(_rows_of(folder, stack))
        rows += [{"stack": stack.name} | swept | {k: v for k, v in row.items() if k not in swept} for row in own]
    mixed = [name for name in what.grid if len({_kind(row[name]) for row in rows if name in row}) > 1]
    return [{k: str(v) if k in mixed else v for k, v in row.items()} for row in rows]


def _kind(value: Any) -> str:
    """What a column holds: kinds that Parquet cannot mix."""
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def write_results(what: Sweep, folder: Path) -> list[Row]:
    rows = results(what, folder)
    if rows:
        write_rows(folder / "results.parquet", rows)
    return rows


def _rows_of(folder: Path, stack: Stack) -> Path:
    own = folder / "stacks" / stack.name
    return (own / str(stack.settings["experiment"]) if "experiment" in stack.settings else own) / "results.parquet"


def _cell(value: Any) -> Any:
    """As a column of a table can hold it."""
    return value if isinstance(value, str | int | float | bool) else str(value)


def status(folder: str | Path) -> list[Row]:
    """A row per stack: what it is, how many members are kept, and what is going on."""
    path = Path(folder)
    if not (path / "sweep.json").exists():
        raise InputError(f"{path} is not a sweep's folder: it has no sweep.json.")
    known = read_json(path / "sweep.json")
    stacks = known.get("stacks") if isinstance(known, dict) else None
    if not isinstance(stacks, dict):
        raise InputError(f"{path / 'sweep.json'} is not a sweep's.")
    with malformed_as_run_error(path / "sweep.json"):
        common = known.get("sweep", {}).get("common", {})
        return [_line(path / "stacks" / name, name, about, common) for name, about in stacks.items()]


def _line(own: Path, name: str, about: Mapping[str, Any], common: Mapping[str, Any]) -> Row:
    settings = about.get("settings", {})
    inner = own / str(settings["experiment"]) if "experiment" in settings else own
    kept = len(list((inner / "weights").glob("*.safetensors")))
    done = len(read_rows(inner / "results.parquet"))
    total = about.get("members")
    if is_locked(inner):
        state = "running"
    elif (total is not None and done >= total) or (total is None and (inner / "report.html").exists()):
        state = "finished"
    else:
        state = "interrupted" if (inner / "unfinished.json").exists() or kept or done else "waiting"
    differs = {k: v for k, v in settings.items() if common.get(k) != v and k not in ("experiment", "profile")}
    return {
        "stack": name,
        "settings": ", ".join(f"{k}={v}" for k, v in differs.items()) or "–",
        "members": f"{max(kept, done)} of {total}" if total is not None else str(max(kept, done)),
        "state": state,
    }
