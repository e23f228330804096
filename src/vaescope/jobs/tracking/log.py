"""To whom a run folder is told."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from vaescope.errors import InputError
from vaescope.jobs.tracking.folder import Finished, finished_run

TENSORBOARD = "tensorboard:"
MLFLOW = ("http://", "https://", "sqlite:", "postgresql", "mysql", "file:", "databricks")


def log(folder: str | Path, to: str) -> int:
    """Log every finished member of a run folder that has not been logged there; how many were.

    `to` is an MLflow tracking address (`http://127.0.0.1:5000`, `sqlite:///mlflow.db`), or `tensorboard:FOLDER` for
    event files.
    """
    check_target(to)
    if (Path(folder) / "sweep.json").exists():
        return sum(log(one, to) for one in runs_of_sweep(Path(folder)))
    run: Finished = finished_run(Path(folder))
    if to.startswith(TENSORBOARD):
        from vaescope.jobs.tracking.tensorboard import write_events

        return write_events(run, Path(to.removeprefix(TENSORBOARD)))
    from vaescope.jobs.tracking.mlflow import log_members

    return log_members(run, to)


def check_target(to: str) -> None:
    """Before anything is trained: what would be told at the end."""
    if to.startswith(TENSORBOARD):
        if to == TENSORBOARD:
            raise InputError("tensorboard: needs a folder behind it, such as tensorboard:events.")
        needed = "tensorboard"
    else:
        if not to.startswith(MLFLOW):
            raise InputError(f"--track takes tensorboard:FOLDER or MLflow's {', '.join(MLFLOW)}..., got {to!r}.")
        needed = "mlflow"
    if importlib.util.find_spec(needed) is None:
        raise InputError(f"{needed} is not installed; install vaescope's extra for it: pip install 'vaescope[track]'.")


def runs_of_sweep(folder: Path) -> list[Path]:
    """Run folders of a sweep's stacks that have begun."""
    return sorted(file.parent for file in (folder / "stacks").rglob("config.json"))
