"""A run folder as trackers want it: settings, members with histories, claims, figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaescope.errors import InputError, RunError
from vaescope.runs import Cell, cell_key
from vaescope.runs.files import Row, malformed_as_run_error, read_json, read_rows


@dataclass(frozen=True)
class TrackedMember:
    """One row of the results, with the epochs that belong to it."""

    key: str
    cell: Cell
    numbers: Mapping[str, float]
    words: Mapping[str, str]
    history: Sequence[tuple[int, Mapping[str, float]]]


@dataclass(frozen=True)
class Finished:
    """All that is finished in a folder."""

    path: Path
    name: str
    settings: Mapping[str, Any]
    members: list[TrackedMember]
    claims: list[Mapping[str, Any]]

    @property
    def figures(self) -> list[Path]:
        return sorted((self.path / "figures").glob("*"))

    @property
    def report(self) -> Path | None:
        return found if (found := self.path / "report.html").exists() else None


def finished_run(path: Path) -> Finished:
    if not (path / "config.json").exists():
        raise InputError(f"{path} is not a run folder: it has no config.json.")
    with malformed_as_run_error(path):
        return _finished(path)


def _finished(path: Path) -> Finished:
    config = read_json(path / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("settings"), dict):
        raise InputError(f"{path / 'config.json'} is not a run's.")
    rows, epochs = read_rows(path / "results.parquet"), read_rows(path / "history.parquet")
    columns = _cell_columns(rows, epochs)
    by_cell: dict[str, list[Row]] = {}
    for row in epochs:
        by_cell.setdefault(cell_key({name: row.get(name) for name in columns}), []).append(row)
    claims = read_json(path / "claims.json") if (path / "claims.json").exists() else []
    if not isinstance(claims, list) or not all(isinstance(claim, dict) for claim in claims):
        raise RunError(f"{path / 'claims.json'} is not a list of claims; remove it to check them anew.")
    return Finished(
        path,
        str(config.get("experiment")),
        config["settings"] | {"profile": config.get("profile")},
        [_member(row, columns, by_cell) for row in rows],
        claims,
    )


def _cell_columns(rows: Sequence[Row], epochs: Sequence[Row]) -> list[str]:
    """What tells members apart: what stands before the epoch in histories; without them, the usual settings."""
    if not rows:
        return []
    if not epochs:
        return [name for name in ("precision", "beta", "seed") if name in rows[0]] or list(rows[0])[:1]
    names = list(epochs[0])
    return [name for name in names[: names.index("epoch")] if name in rows[0]] if "epoch" in names else names[:1]


def _member(row: Row, columns: Sequence[str], by_cell: Mapping[str, list[Row]]) -> TrackedMember:
    cell = {name: row.get(name) for name in columns}
    key = cell_key(cell)
    rest = {name: value for name, value in row.items() if name not in columns and value is not None}
    history = [
        (int(epoch["epoch"]), _numbers({k: v for k, v in epoch.items() if k not in (*columns, "epoch")}))
        for epoch in by_cell.get(key, [])
    ]
    words = {name: str(value) for name, value in rest.items() if isinstance(value, str | bool)}
    return TrackedMember(key, cell, _numbers(rest), words, history)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Finite ones."""
    return {
        name: float(v)
        for name, v in values.items()
        if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)
    }
