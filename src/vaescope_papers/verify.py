"""Verdicts computed again from committed tables: the check of them, and their export as one file.

A profile folder holds the run folders of experiments, and `verdicts.json`: the claims of all of them with verdict,
interval, the hashes of tables and protocol, and provenance.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import escape

import vaescope
from vaescope.core.errors import InputError, RunError
from vaescope.core.serialization import Plain, from_plain
from vaescope.runs.files import json_data, read_json, write_json
from vaescope.runs.store import read_config, read_table, row_key
from vaescope_papers.catalogue import find_experiment
from vaescope_papers.claims import Claim, judge_claims
from vaescope_papers.experiment import Experiment, Settings
from vaescope_papers.registration import fingerprint, protocol_of, read_registration
from vaescope_papers.results import Results, SeedCell, cell_row, from_rows

EXPORT = "verdicts.json"
TABLES = ("results.parquet", "config.json")


@dataclass(frozen=True)
class StoredRun:
    """A run folder, read without changing it."""

    folder: Path
    experiment: Experiment[Settings, SeedCell, object]
    settings: Settings
    profile: str
    results: Results[SeedCell, object]
    other_rows: tuple[str, ...]
    """Rows of cells that the settings do not have."""
    missing: tuple[str, ...]
    """Cells of the settings without a row."""

    def judge(self) -> list[Claim]:
        """All claims, judged on the stored results."""
        return judge_claims(self.experiment.claims(self.settings), self.results.finished, self.settings)

    @property
    def protocol_hash(self) -> str:
        return fingerprint(protocol_of(self.experiment.claims(self.settings), self.settings))


def read_run(folder: Path) -> StoredRun:
    """The results of a run folder, and the settings they were computed with."""
    if not (folder / "results.parquet").exists():
        raise RunError(f"{folder} has no results.parquet; give the folder of an experiment that has run.")
    config = read_config(folder)
    experiment = find_experiment(str(config["experiment"])).load()
    settings = from_plain(type(experiment.quick), config["settings"], name=str(folder / "config.json"))  # type: ignore[arg-type]
    cells = {row_key(row, list(row)): row for row in map(cell_row, experiment.cells(settings))}
    columns = list(next(iter(cells.values())))
    rows = {row_key(row, columns): row for row in read_table(folder, "results", config)}
    own = [rows[key] for key in cells if key in rows]
    return StoredRun(
        folder=folder,
        experiment=experiment,
        settings=settings,
        profile=str(config["profile"]),
        results=from_rows(own, experiment.cell_type, experiment.measured_type),
        other_rows=tuple(key for key in rows if key not in cells),
        missing=tuple(key for key in cells if key not in rows),
    )


def run_folders(folder: Path) -> list[Path]:
    """The run folders of experiments in a folder and below, or the folder itself."""
    return sorted(file.parent for file in folder.rglob("claims.json") if (file.parent / "results.parquet").exists())


# the export -----------------------------------------------------------------------------------


def write_export(folder: Path) -> Path:
    """Write the verdicts of all experiments of a profile folder."""
    runs = {path.name: _exported(path) for path in run_folders(folder) if path.parent == folder}
    write_json(folder / EXPORT, json_data({"vaescope": vaescope.__version__, "experiments": runs}))
    return folder / EXPORT


def _exported(folder: Path) -> dict[str, Plain]:
    config, registration = read_config(folder), read_registration(folder)
    return {
        "profile": config.get("profile"),
        "settings": config.get("settings"),
        "tables": {name: file_hash(folder / name) for name in TABLES},
        "protocol": None if registration is None else registration.hash,
        "registered": None if registration is None else registration.words,
        "claims": read_json(folder / "claims.json"),
    }


def file_hash(file: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


# the check ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """How many claims were judged again, and a line for everything that differs from what is stored."""

    claims: int
    experiments: int
    differences: tuple[str, ...]


def verify(folder: Path) -> Verification:
    """Judge all claims of the experiments in a folder again, from their tables, and compare with what is stored."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; give one with results, such as results/laptop.")
    paths = run_folders(folder)
    if not paths:
        raise InputError(f"{folder} has no experiment with results.parquet and claims.json; give another folder.")
    exports = {parent: _read_export(parent) for parent in {path.parent for path in paths}}
    lines = [f"{parent / EXPORT}: there is none." for parent, export in exports.items() if export is None]
    count = 0
    for path in paths:
        run = read_run(path)
        claims = [claim.to_data() for claim in run.judge()]
        count += len(claims)
        lines += [f"{path}: {line}" for line in _differences(run, claims)]
        if (export := exports[path.parent]) is not None:
            lines += [
                f"{path.parent / EXPORT}: {path.name}: {line}" for line in _export_differences(run, export, claims)
            ]
    return Verification(count, len(paths), tuple(lines))


def _read_export(parent: Path) -> Mapping[str, Plain] | None:
    file = parent / EXPORT
    data = read_json(file).get("experiments", {}) if file.exists() else None
    return data if isinstance(data, dict) else None


def _differences(run: StoredRun, claims: Sequence[Mapping[str, Plain]]) -> Iterator[str]:
    yield from (f"results.parquet has a row that the settings do not have: {key}." for key in run.other_rows)
    yield from (f"results.parquet has no row for {key}." for key in run.missing)
    yield from claim_differences("claims.json", read_json(run.folder / "claims.json"), claims)
    registration = read_registration(run.folder)
    if registration is None:
        yield "protocol.json: there is none."
    elif fingerprint(registration.protocol) != registration.hash:
        yield "protocol.json: the protocol does not have the hash beside it."
    elif registration.hash != run.protocol_hash:
        yield "protocol.json: settings or claims were changed and not registered; use vaescope reproduce --redraw."
    page = (run.folder / "report.html").read_text(encoding="utf-8") if (run.folder / "report.html").exists() else ""
    for claim in claims:
        if str(escape(str(claim["reason"]))) not in page or str(escape(str(claim["measured"]))) not in page:
            yield f"report.html does not show: {claim['sentence']}"


def _export_differences(
    run: StoredRun, export: Mapping[str, Plain], claims: Sequence[Mapping[str, Plain]]
) -> Iterator[str]:
    stored = export.get(run.folder.name)
    if not isinstance(stored, dict):
        yield "it is not in the file."
        return
    for name in TABLES:
        if stored.get("tables", {}).get(name) != file_hash(run.folder / name):
            yield f"{name} has another hash."
    if stored.get("protocol") != run.protocol_hash:
        yield "the protocol has another hash."
    yield from claim_differences("", stored.get("claims", []), claims)


def claim_differences(
    name: str, stored: Sequence[Mapping[str, Plain]], found: Sequence[Mapping[str, Plain]]
) -> Iterator[str]:
    """A line for every claim that differs from its stored form; numbers may differ in the last digits.

    >>> list(claim_differences("f", [{"sentence": "A.", "value": 1.0}], [{"sentence": "A.", "value": 2.0}]))
    ['f: value is stored as 1.0, the tables give 2.0: A.']
    """
    prefix = f"{name}: " if name else ""
    if len(stored) != len(found):
        yield f"{prefix}{len(stored)} claims are stored, there are {len(found)}."
        return
    for before, after in zip(stored, found, strict=True):
        plain = json_data(after)
        assert isinstance(plain, dict)
        keys = dict.fromkeys(["sentence", "verdict", "value", *before, *plain])
        other = [key for key in keys if not _same(before.get(key), plain.get(key))]
        if other:
            values = f"{other[0]} is stored as {before.get(other[0])}, the tables give {plain.get(other[0])}"
            more = f" (also {', '.join(other[1:])})" if other[1:] else ""
            yield f"{prefix}{values}{more}: {plain['sentence']}"


def _same(first: Plain, second: Plain) -> bool:
    if isinstance(first, float) and isinstance(second, float):
        return math.isclose(first, second, rel_tol=1e-9, abs_tol=1e-12)
    return first == second
