"""`vaescope train`: train members on your own data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import tyro
from rich.table import Table

from vaescope.checks import whole_number
from vaescope.cli.data import DataOptions
from vaescope.cli.tables import console as new_console
from vaescope.cli.tables import table
from vaescope.cli.tracking import check_track, track
from vaescope.errors import InputError
from vaescope.settings import FitSettings

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from vaescope.data import Dataset
    from vaescope.data.files.streaming import StoredDataset
    from vaescope.fitting import Fit, FitJob
    from vaescope.runs.parts import Part
    from vaescope.training import Progress

SHOWN_SAMPLES = 5000  # on which members are summarised


@dataclass(frozen=True)
class Train:
    """Train variational autoencoders on your own data, or on a rendered data set.

    Members are saved as they finish: the same command again trains only the missing ones.
    """

    data: tyro.conf.Positional[str]
    """A file (.npy, .npz, .pt, .h5, .h5ad, .parquet, .csv), a folder of images, or a name; see `vaescope datasets`."""
    settings: tyro.conf.OmitArgPrefixes[FitSettings] = field(default_factory=FitSettings)
    source: tyro.conf.OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    track: str | None = None
    """Log members while they are trained, and when they have finished: the address of an MLflow server,
    tensorboard:FOLDER, or wandb:PROJECT."""

    jobs: int = 1
    """Processes that train members at the same time, each with its share of the cores. Several convolutional members
    of small images finish sooner so."""

    def run(self) -> int:
        out = self.settings.storage.out
        if out is None:
            raise InputError("--out is required: the folder for the run.")
        check_track(self.track)
        whole_number("--jobs", self.jobs)
        data, auxiliary = self._data()
        job = self._job(data, auxiliary)
        if self.jobs > 1:
            _run_parts(self, job, out)
        fitted = self._run_job(job)
        track(self.track, [out])
        console = new_console()
        console.print(_member_table(fitted, data, auxiliary))
        console.print(str(out.resolve()), soft_wrap=True, markup=False)
        return 0

    def _data(self) -> tuple[Dataset | StoredDataset, Tensor | None]:
        return self.source.open_for_training(self.data)

    def _job(self, data: Dataset | StoredDataset, auxiliary: Tensor | None) -> FitJob:
        from vaescope.fitting import prepare_fit

        kind = self.settings.model.model if auxiliary is None else "ivae"
        settings = replace(self.settings, model=replace(self.settings.model, model=kind))
        return prepare_fit(data, settings, auxiliary=auxiliary)

    def _run_job(self, job: FitJob) -> Fit:
        from vaescope.training import ProgressBar

        with ProgressBar("train") as progress:
            return self._run_watched(job, progress)

    def _run_watched(self, job: FitJob, progress: Progress, *, load: bool = True) -> Fit:
        from vaescope.jobs.tracking import live_members
        from vaescope.watch import WatchedMembers

        out = self.settings.storage.out
        tracked = None if self.track is None or out is None else live_members(self.track, "fit", out)
        observer = WatchedMembers(tracked, message=progress.message)
        fitted = job.run(progress, observer=observer, load=load)
        observer.close()
        return fitted


@dataclass(frozen=True)
class PartJob:
    """A part of the members of a command."""

    command: Train
    part: Part


def _run_parts(command: Train, job: FitJob, out: Path) -> None:
    """Train all members in several processes, each in a folder of its own below the run folder."""
    from vaescope.jobs import Task, run_in_processes
    from vaescope.runs.parts import Part

    count = min(command.jobs, len(job.members))
    parts = [Part(index, count) for index in range(count)]
    job.part(parts[0])  # refuses a folder with other settings here, once
    tasks = [
        Task(f"part {part.index + 1} of {count}", run_part, PartJob(command, part), part.folder(out)) for part in parts
    ]
    for outcome in run_in_processes(tasks, jobs=command.jobs):
        if outcome.error is not None:
            raise outcome.error


def run_part(job: PartJob, out: Path, progress: Progress) -> None:
    """Train a part in a worker process.

    Args:
        job: the command and the part.
        out: the folder of the part.
        progress: where progress is reported.
    """
    own = job.command._job(*job.command._data()).part(job.part)
    if own.members:
        job.command._run_watched(own, progress, load=False)


def _member_table(fitted: Fit, data: Dataset | StoredDataset, auxiliary: Tensor | None) -> Table:
    """A row per member: how training went, latents in use and, with known factors, how well they are recovered."""
    from vaescope.metrics import mcc
    from vaescope.regime import of_model

    with_factors = ("MCC", "chance") if data.factors is not None else ()
    listed = table("seed", "status", "epochs", "best epoch", "ELBO", "γ²", "in use", *with_factors)
    part = slice(0, SHOWN_SAMPLES)
    x, own = data.head(SHOWN_SAMPLES), None if auxiliary is None else auxiliary[part]
    for member in fitted.members:
        summary = member.summary()
        row: list[object] = [member.seed, summary.status, summary.epochs, summary.best_epoch]
        row += [summary.elbo, summary.used_precision]
        if member.status == "finished":
            used = of_model(member, x, auxiliary=own, decoder=False).used
            row.append(f"{len(used)} of {member.latent_dim}")
        if data.factors is not None and member.status == "finished":
            score = mcc(member.encode(x, own)[0], data.factors[part])
            row += [score.score, score.floor]
        listed.add_row(*(f"{v:.4g}" if isinstance(v, float) else "–" if v is None else str(v) for v in row))
    return listed
