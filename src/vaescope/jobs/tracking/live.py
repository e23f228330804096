"""Rows of a watch in experiment trackers, while a model is trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vaescope.extras import require
from vaescope.jobs.tracking.export import TENSORBOARD, WANDB, check_target
from vaescope.watch import Row, WatchedMembers

PREFIX = "watch"


class TensorBoardRows:
    """Event files that TensorBoard reads while they grow."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def __call__(self, row: Row) -> None:
        for name, value in row.numbers().items():
            self._writer.add_scalar(f"{PREFIX}/{name}", value, row.step)
        for finding in row.findings:
            self._writer.add_text("findings", f"{finding.title} {finding.evidence} {finding.advice}", row.step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflowRows:
    """Metrics of a run of an MLflow server."""

    def __init__(self, address: str, experiment: str, name: str, tags: dict[str, str]) -> None:
        from vaescope.jobs.tracking.mlflow import open_run

        self._client, self._entities, self._run = open_run(address, experiment, name, tags)

    def __call__(self, row: Row) -> None:
        metrics = [
            self._entities.Metric(f"{PREFIX}/{name}", value, int(1000 * row.seconds), row.step)
            for name, value in row.numbers().items()
        ]
        tags = [
            self._entities.RunTag(f"finding.{finding.code}", f"step {finding.step}: {finding.title}")
            for finding in row.findings
        ]
        self._client.log_batch(self._run, metrics=metrics, tags=tags)

    def close(self) -> None:
        """The run stays open: the export of the finished member completes it."""


class WandbRows:
    """Metrics of a Weights & Biases run; set WANDB_MODE=offline to write files only."""

    def __init__(self, project: str, name: str) -> None:
        wandb = require("wandb", "logging to Weights & Biases")
        self._run: Any = wandb.init(project=project, name=name, reinit="create_new")

    def __call__(self, row: Row) -> None:
        self._run.log({f"{PREFIX}/{name}": value for name, value in row.numbers().items()}, step=row.step)
        for finding in row.findings:
            self._run.summary[f"findings/{finding.code}"] = f"step {finding.step}: {finding.title}"

    def close(self) -> None:
        self._run.finish()


Rows = TensorBoardRows | MLflowRows | WandbRows


def live(target: str, name: str = "watch") -> Rows:
    """A logger for `vs.Watch(..., loggers=[...])`.

    Args:
        target: `tensorboard:FOLDER`, the address of an MLflow server, or `wandb:PROJECT`.
        name: of the run.
    """
    check_target(target)
    if target.startswith(TENSORBOARD):
        return TensorBoardRows(Path(target.removeprefix(TENSORBOARD)) / name)
    if target.startswith(WANDB):
        return WandbRows(target.removeprefix(WANDB), name)
    return MLflowRows(target, "vaescope/watch", name, {})


def live_members(target: str, experiment: str, folder: Path) -> Callable[[str], Rows]:
    """Loggers for the members of a run folder, for `vs.watch.WatchedMembers`.

    They write where `export_run` will put the finished members.

    Args:
        target: as for `live`.
        experiment: `fit`, or the name of an experiment.
        folder: the run folder.
    """
    check_target(target)

    def logger(name: str) -> Rows:
        if target.startswith(TENSORBOARD):
            from vaescope.jobs.tracking.tensorboard import folder_name

            root = Path(target.removeprefix(TENSORBOARD))
            return TensorBoardRows(root / experiment / folder_name(folder) / name / "live")
        if target.startswith(WANDB):
            return WandbRows(target.removeprefix(WANDB), f"{folder.name}/{name}")
        from vaescope.jobs.tracking.mlflow import member_tags

        return MLflowRows(target, f"vaescope/{experiment}", name, member_tags(folder, name))

    return logger


def live_observer(
    target: str | None, experiment: str, folder: Path, message: Callable[[str], object]
) -> WatchedMembers | None:
    """An observer that logs the members of a run folder while they are trained; None without a target.

    Args:
        target: as for `live`.
        experiment: `fit`, or the name of an experiment.
        folder: the run folder.
        message: called with a line per finding.
    """
    if target is None:
        return None
    return WatchedMembers(live_members(target, experiment, folder), message=message)
