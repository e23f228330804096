"""Export run folders to experiment trackers."""

from __future__ import annotations

from pathlib import Path

from vaescope.errors import InputError
from vaescope.extras import check_installed
from vaescope.jobs.tracking.folder import read_run

TENSORBOARD = "tensorboard:"
WANDB = "wandb:"
MLFLOW = ("http://", "https://", "sqlite:", "postgresql", "mysql", "file:", "databricks")


def export_run(folder: str | Path, target: str) -> int:
    """Export the finished members of a run or sweep folder; returns how many were new there.

    Args:
        folder: a run folder or the folder of a sweep.
        target: an MLflow tracking address (`http://127.0.0.1:5000`, `sqlite:///mlflow.db`), or `tensorboard:FOLDER`.
    """
    check_target(target)
    if (Path(folder) / "sweep.json").exists():
        return sum(export_run(run, target) for run in runs_of_sweep(Path(folder)))
    run = read_run(Path(folder))
    if target.startswith(WANDB):  # it receives rows while members are trained
        return 0
    if target.startswith(TENSORBOARD):
        from vaescope.jobs.tracking.tensorboard import write_events

        return write_events(run, Path(target.removeprefix(TENSORBOARD)))
    from vaescope.jobs.tracking.mlflow import log_members

    return log_members(run, target)


def check_target(target: str) -> None:
    """The target is one that is supported, and its library is installed."""
    if target.startswith(TENSORBOARD):
        if target == TENSORBOARD:
            raise InputError("tensorboard: needs a folder, such as tensorboard:events.")
        needed = "tensorboard"
    elif target.startswith(WANDB):
        if target == WANDB:
            raise InputError("wandb: needs a project, such as wandb:my-vae.")
        needed = "wandb"
    else:
        if not target.startswith(MLFLOW):
            raise InputError(
                f"--track must be tensorboard:FOLDER, wandb:PROJECT or an MLflow address ({', '.join(MLFLOW)}), got "
                f"{target!r}."
            )
        needed = "mlflow"
    check_installed(needed, f"--track {target}")


def runs_of_sweep(folder: Path) -> list[Path]:
    """The run folders of a sweep that were started."""
    return sorted(file.parent for file in (folder / "stacks").rglob("config.json"))
