"""To whom a run folder is told."""

from __future__ import annotations

from pathlib import Path

from vaescope.errors import InputError
from vaescope.tracking.folder import Finished, finished_run

TENSORBOARD = "tensorboard:"


def log(folder: str | Path, to: str) -> int:
    """Log every finished member of a run folder that has not been logged there; how many were.

    `to` is an MLflow tracking address (`http://127.0.0.1:5000`, `sqlite:///mlflow.db`), or `tensorboard:FOLDER` for
    event files.
    """
    run: Finished = finished_run(Path(folder))
    if to.startswith(TENSORBOARD):
        from vaescope.tracking.tensorboard import write_events

        place = to.removeprefix(TENSORBOARD)
        if not place:
            raise InputError("tensorboard: needs a folder behind it, such as tensorboard:events.")
        return write_events(run, Path(place))
    from vaescope.tracking.mlflow import log_members

    return log_members(run, to)
