"""A run folder as trackers need it: settings, members with their histories, claims, figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vaescope.errors import InputError, RunError
from vaescope.plain import Plain
from vaescope.runs.files import Row, malformed_as_run_error, read_json, read_rows
from vaescope.runs.store import cell_key


@dataclass(frozen=True)
class TrackedMember:
    """One row of the results with its epochs."""

    key: str
    cell: Mapping[str, Plain]
    numbers: Mapping[str, float]
    texts: Mapping[str, str]
    history: Sequence[tuple[int, Mapping[str, float]]]


@dataclass(frozen=True)
class TrackedRun:
    """Everything that is finished in a run folder."""

    path: Path
    name: str
    settings: Mapping[str, Plain]
    members: list[TrackedMember]
    claims: list[Mapping[str, Plain]]

    @property
    def figures(self) -> list[Path]:
        return sorted((self.path / "figures").glob("*"))

    @property
    def report(self) -> Path | None:
        return found if (found := self.path / "report.html").exists() else None


def read_run(path: Path) -> TrackedRun:
    """The finished part of a run folder."""
    if not (path / "config.json").exists():
        raise InputError(f"{path} is not a run folder: it has no config.json.")
    with malformed_as_run_error(path):
        return _read(path)


def _read(path: Path) -> TrackedRun:
    config = read_json(path / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("settings"), dict):
        raise InputError(f"{path / 'config.json'} does not describe a run.")
    rows, epochs = read_rows(path / "results.parquet"), read_rows(path / "history.parquet")
    columns = _cell_columns(rows, epochs)
    by_cell: dict[str, list[Row]] = {}
    for row in epochs:
        by_cell.setdefault(_key(row, columns), []).append(row)
    claims = read_json(path / "claims.json") if (path / "claims.json").exists() else []
    if not isinstance(claims, list) or not all(isinstance(claim, dict) for claim in claims):
        raise RunError(f"{path / 'claims.json'} is not a list of claims; remove it and run the experiment again.")
    return TrackedRun(
        path,
        str(config.get("experiment")),
        config["settings"] | {"profile": config.get("profile")},
        [_member(row, columns, by_cell) for row in rows],
        claims,
    )


def _cell_columns(rows: Sequence[Row], epochs: Sequence[Row]) -> list[str]:
    """The columns that identify members: those before the epoch in histories; without histories, the usual settings."""
    if not rows:
        return []
    if not epochs:
        return [name for name in ("precision", "beta", "seed") if name in rows[0]] or list(rows[0])[:1]
    names = list(epochs[0])
    return [name for name in names[: names.index("epoch")] if name in rows[0]] if "epoch" in names else names[:1]


def _member(row: Row, columns: Sequence[str], by_cell: Mapping[str, list[Row]]) -> TrackedMember:
    cell, key = {name: row.get(name) for name in columns}, _key(row, columns)
    rest = {name: value for name, value in row.items() if name not in columns and value is not None}
    history = [
        (int(str(epoch["epoch"])), _finite({k: v for k, v in epoch.items() if k not in (*columns, "epoch")}))
        for epoch in by_cell.get(key, [])
    ]
    texts = {name: str(value) for name, value in rest.items() if isinstance(value, str | bool)}
    return TrackedMember(key, cell, _finite(rest), texts, history)


def _key(row: Row, columns: Sequence[str]) -> str:
    return cell_key({name: value for name in columns if isinstance(value := row.get(name), str | int | float)})


def _finite(values: Mapping[str, Plain]) -> dict[str, float]:
    """The finite numbers."""
    return {
        name: float(v)
        for name, v in values.items()
        if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)
    }
