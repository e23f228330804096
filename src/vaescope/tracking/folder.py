"""A run folder as trackers want it: settings, members with histories, claims, figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaescope.errors import InputError
from vaescope.runs import Cell, cell_key
from vaescope.runs.files import Row, read_json, read_rows


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
    config = read_json(path / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("settings"), dict):
        raise InputError(f"{path / 'config.json'} is not a run's.")
    rows, epochs = read_rows(path / "results.parquet"), read_rows(path / "history.parquet")
    columns = _cell_columns(rows, epochs)
    by_cell: dict[str, list[Row]] = {}
    for row in epochs:
        by_cell.setdefault(cell_key({name: row.get(name) for name in columns}), []).append(row)
    claims = read_json(path / "claims.json") if (path / "claims.json").exists() else []
    return Finished(
        path,
        str(config.get("experiment")),
        config["settings"] | {"profile": config.get("profile")},
        [_member(row, columns, by_cell) for row in rows],
        claims,
    )


def _cell_columns(rows: Sequence[Row], epochs: Sequence[Row]) -> list[str]:
    """What tells members apart: columns of the results that histories have too, or, without histories, all settings."""
    if not rows:
        return []
    if not epochs:
        return [name for name in ("precision", "beta", "seed") if name in rows[0]] or list(rows[0])[:1]
    return [name for name in rows[0] if name in epochs[0]]


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
