"""Results of a sweep as one table, and its status."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from vaescope.errors import InputError
from vaescope.plain import Plain
from vaescope.runs.files import Row, malformed_as_run_error, read_json, read_rows, write_rows
from vaescope.runs.lock import is_locked
from vaescope.sweeps.sweep import StackPlan, Sweep


def sweep_results(sweep: Sweep, folder: Path) -> list[Row]:
    """A row per finished member: the settings that were swept, then what was measured."""
    rows: list[Row] = []
    for plan in sweep.stacks:
        swept = {name: _table_value(plan.settings[name]) for name in sweep.grid if name in plan.settings}
        found = read_rows(_results_file(folder, plan))
        rows += [{"stack": plan.name} | swept | {k: v for k, v in row.items() if k not in swept} for row in found]
    mixed = [name for name in sweep.grid if len({_column_kind(row[name]) for row in rows if name in row}) > 1]
    return [{k: str(v) if k in mixed else v for k, v in row.items()} for row in rows]


def _column_kind(value: Plain) -> str:
    """The kind of value that a column holds: Parquet cannot mix kinds."""
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def write_results(sweep: Sweep, folder: Path) -> list[Row]:
    rows = sweep_results(sweep, folder)
    if rows:
        write_rows(folder / "results.parquet", rows)
    return rows


def _results_file(folder: Path, plan: StackPlan) -> Path:
    stack = folder / "stacks" / plan.name
    run = stack / str(plan.settings["experiment"]) if "experiment" in plan.settings else stack
    return run / "results.parquet"


def _table_value(value: Plain) -> Plain:
    """A setting as a table column can hold it."""
    return value if isinstance(value, str | int | float | bool) else str(value)


def sweep_status(folder: str | Path) -> list[Row]:
    """A row per stack: its settings, how many members are finished, and its state.

    Args:
        folder: the folder of a sweep, finished or not.
    """
    path = Path(folder)
    if not (path / "sweep.json").exists():
        raise InputError(f"{path} is not the folder of a sweep: it has no sweep.json.")
    known = read_json(path / "sweep.json")
    stacks = known.get("stacks") if isinstance(known, dict) else None
    if not isinstance(stacks, dict):
        raise InputError(f"{path / 'sweep.json'} does not describe a sweep.")
    with malformed_as_run_error(path / "sweep.json"):
        common = known.get("sweep", {}).get("common", {})
        return [_status_row(path / "stacks" / name, name, plan, common) for name, plan in stacks.items()]


def _status_row(folder: Path, name: str, plan: Mapping[str, Plain], common: Mapping[str, Plain]) -> Row:
    settings = plan.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    run = folder / str(settings["experiment"]) if "experiment" in settings else folder
    trained = len(list((run / "weights").glob("*.safetensors")))
    measured = len(read_rows(run / "results.parquet"))
    members = plan.get("members")
    total = members if isinstance(members, int) else None
    differs = {k: v for k, v in settings.items() if common.get(k) != v and k not in ("experiment", "profile")}
    done = max(trained, measured)
    return {
        "stack": name,
        "settings": ", ".join(f"{k}={v}" for k, v in differs.items()) or "–",
        "members": f"{done} of {total}" if total is not None else str(done),
        "state": _state(run, total, trained, measured),
    }


def _state(run: Path, total: int | None, trained: int, measured: int) -> str:
    if is_locked(run):
        return "running"
    if (total is not None and measured >= total) or (total is None and (run / "report.html").exists()):
        return "finished"
    return "interrupted" if (run / "unfinished.json").exists() or trained or measured else "waiting"
