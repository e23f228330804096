"""Members of a run folder that `vaescope train` or `vs.fit(..., out=)` has written."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from vaescope.core.errors import InputError, RunError
from vaescope.core.serialization import from_plain
from vaescope.models import Member
from vaescope.models.build import model_from_config
from vaescope.runs import Cell, RunFolder
from vaescope.runs.files import malformed_as_run_error
from vaescope.runs.members import load_members
from vaescope.runs.store import read_config, read_table, row_key
from vaescope.training import MemberSpec


def members_of(folder: str | Path) -> list[Member]:
    """Every finished member of a run, best first."""
    path = Path(folder)
    if not (path / "config.json").exists():
        raise InputError(f"{path} is not a run folder: it has no config.json.")
    with malformed_as_run_error(path):
        return _members(path)


def _members(path: Path) -> list[Member]:
    config = read_config(path)
    settings = config.get("settings")
    if config.get("experiment") != "fit" or not isinstance(settings, dict):
        raise RunError(f"{path} is a run of {config.get('experiment')!r}; only runs of fit contain models to open.")
    rows = [row for row in read_table(path, "results", config) if row["status"] == "finished"]
    if not rows:
        raise RunError(f"{path} has no finished member.")
    columns = [name for name in ("precision", "beta", "kl_schedule", "seed") if name in rows[0]]
    if repeated := [key for key, count in Counter(row_key(row, columns) for row in rows).items() if count > 1]:
        raise RunError(
            f"{path / 'results.parquet'} has several rows of member {repeated[0]}; remove it to write it again."
        )
    specs = [from_plain(MemberSpec, {name: row[name] for name in columns}, name="results.parquet") for row in rows]
    cells: list[Cell] = [{name: row[name] for name in columns} for row in rows]  # type: ignore[misc]
    members = load_members(RunFolder(path, config), model_from_config(settings), cells, specs)
    return sorted(members, key=lambda m: -m.best_elbo)


def from_run(folder: str | Path) -> Member:
    """The member of a run folder with the highest validation ELBO.

    Args:
        folder: a run folder of `vs.fit(..., out=)` or `vaescope train`.
    """
    return members_of(folder)[0]
