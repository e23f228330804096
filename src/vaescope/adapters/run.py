"""Members of a run folder, as written by `vaescope train` or `vs.fit(..., out=)`."""

from __future__ import annotations

from pathlib import Path

from vaescope.errors import InputError, RunError
from vaescope.models import Member
from vaescope.models.describe import rebuild
from vaescope.runs import RunFolder
from vaescope.runs.files import as_run, read_json, read_rows


def members_of(folder: str | Path) -> list[Member]:
    """The finished members of a run, best first."""
    path = Path(folder)
    if not (path / "config.json").exists():
        raise InputError(f"{path} is not a run folder: it has no config.json.")
    with as_run(path):
        return _members(path)


def _members(path: Path) -> list[Member]:
    config = read_json(path / "config.json")
    described = config.get("settings", {}).get("model")
    if not isinstance(described, dict):
        raise RunError(f"{path} is a run of {config.get('experiment')!r}, which stores no models that can be opened.")
    model, run = rebuild(described), RunFolder(path, config)
    members = []
    for row in read_rows(path / "results.parquet"):
        cell = {name: row[name] for name in ("precision", "beta", "seed")}
        if row["status"] == "finished":
            params, summary = run.load_weights(cell)
            members.append(Member.from_summary(model, params, summary, seed=cell["seed"], beta=cell["beta"]))
    if not members:
        raise RunError(f"{path} has no finished member.")
    return sorted(members, key=lambda m: -m.best_elbo)


def from_run(folder: str | Path) -> Member:
    """The member of a run folder with the highest validation ELBO."""
    return members_of(folder)[0]
