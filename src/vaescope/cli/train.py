"""`vaescope train`: train members on your own data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.table import Table

from vaescope.cli.inputs import DataOptions
from vaescope.cli.output import console as new_console
from vaescope.cli.output import table
from vaescope.core.checks import choice, integer
from vaescope.core.errors import InputError
from vaescope.settings import FitSettings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from vaescope.data import Dataset
    from vaescope.data.files.streaming import StoredDataset
    from vaescope.fitting import Fit, FitJob
    from vaescope.jobs import Outcome, Task
    from vaescope.training import Progress, ProgressBar


def track(target: str | None, folders: Sequence[Path]) -> None:
    """Export run folders; members that were exported before are skipped."""
    if target is None:
        return
    from vaescope.jobs.tracking import export_run

    for folder in folders:
        if (folder / "config.json").exists() or (folder / "sweep.json").exists():
            export_run(folder, target)


def check_track(target: str | None) -> None:
    """Check the target before anything is trained."""
    if target is not None:
        from vaescope.jobs.tracking import check_target

        check_target(target)


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
    """Processes that train convolutional members at the same time, each with its share of the cores and its own copy
    of the data. Faster for several members on small images; the last digits of results depend on the number of threads.
    MLPs train as one stack."""

    def run(self) -> int:
        out = self.settings.storage.out
        if out is None:
            raise InputError("--out is required: the folder for the run.")
        check_track(self.track)
        integer("--jobs", self.jobs)
        from vaescope.training import ProgressBar

        data, auxiliary = self._data()
        job = self._job(data, auxiliary)
        with ProgressBar("train") as progress:
            separately = partial(_train_separately, self, out, progress) if self.jobs > 1 else None
            if self.jobs > 1 and job.model.networks.stackable:
                progress.message("--jobs has no effect here: MLPs train as one stack.")
            fitted = self._run_job(job, progress, train_separately=separately)
        track(self.track, [out])
        console = new_console()
        console.print(_member_table(fitted, data, auxiliary))
        console.print(_convergence(fitted), soft_wrap=True, markup=False)
        console.print(str(out.resolve()), soft_wrap=True, markup=False)
        return 0

    def _data(self) -> tuple[Dataset | StoredDataset, Tensor | None]:
        return self.source.open_for_training(self.data)

    def _job(self, data: Dataset | StoredDataset, auxiliary: Tensor | None) -> FitJob:
        from vaescope.fitting import prepare_fit

        kind = self.settings.model.model if auxiliary is None else "ivae"
        settings = replace(self.settings, model=replace(self.settings.model, model=kind))
        return prepare_fit(data, settings, auxiliary=auxiliary)

    def _run_job(self, job: FitJob, progress: Progress, **options: Any) -> Fit:
        from vaescope.jobs.tracking import live_members
        from vaescope.products.watch.watch import WatchedMembers

        out = self.settings.storage.out
        tracked = None if self.track is None or out is None else live_members(self.track, "fit", out)
        observer = WatchedMembers(tracked, message=progress.message)
        fitted = job.run(progress, observer=observer, **options)
        observer.close()
        return fitted


@dataclass(frozen=True)
class MemberJob:
    """One member of a command, for a worker process."""

    command: Train
    index: int


def _train_separately(command: Train, out: Path, progress: ProgressBar, names: Mapping[int, str]) -> None:
    """Train these members in processes, several at a time; those that fail are left to this process."""
    from vaescope.jobs import Task, run_in_processes

    tasks = [Task(name, run_member, MemberJob(command, index), out) for index, name in names.items()]
    if len(tasks) < 2:  # its checkpoint, if it was interrupted in a process of its own, is used in this one
        return
    with progress.paused():
        outcomes = list(run_in_processes(tasks, jobs=min(command.jobs, len(tasks))))
    failed: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.error is not None:
            failed.setdefault(str(outcome.error), []).append(outcome.name)
    for reason, members in failed.items():
        progress.message(f"{', '.join(members)}: trained in this process, because another one failed: {reason}")


def run_member(job: MemberJob, out: Path, progress: Progress) -> None:
    """Train one member in a worker process.

    Args:
        job: the command and the member.
        out: the folder of the whole run.
        progress: where progress is reported.
    """
    own = job.command._job(*job.command._data())
    if not own.belongs_to(out):
        raise InputError("the data changed after they had been read for the other members.")
    job.command._run_job(own.member_job(job.index), progress, load=False)


def _convergence(fitted: Fit) -> str:
    """Whether more epochs would have changed little."""
    finished = [member for member in fitted.members if member.status == "finished"]
    open_ended = [str(member.seed) for member in finished if member.converged is False]
    if not open_ended:
        return f"converged: {sum(bool(member.converged) for member in finished)} of {len(fitted.members)} members."
    return (
        f"Not converged: seed{'s' * (len(open_ended) > 1)} {', '.join(open_ended)}; the ELBO was still rising at the "
        "last epoch. Train longer with --epochs."
    )


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


@dataclass(frozen=True)
class ExecutorOptions:
    """Where and how tasks run; never what they compute."""

    executor: str = "local"
    """local: processes of this machine. ray: an existing Ray cluster (extra `ray`)."""
    jobs: int = 1
    """local: tasks at a time, each with its share of the cores."""
    address: str = "auto"
    """ray: address of the cluster."""
    cpus: int = 1
    """ray: cores per task."""
    storage: str = "shared"
    """ray: shared if all machines see the output folder, returned if files come back with the results."""

    def check(self) -> None:
        choice("--executor", self.executor, ("local", "ray"))
        choice("--storage", self.storage, ("shared", "returned"))
        integer("--jobs", self.jobs)
        integer("--cpus", self.cpus)

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Outcomes of the tasks; the options were checked before."""
        if self.executor == "ray":
            from vaescope.jobs.ray import run_on_ray

            return run_on_ray(tasks, address=self.address, cpus=self.cpus, return_files=self.storage == "returned")
        from vaescope.jobs import run_in_processes

        return run_in_processes(tasks, jobs=self.jobs)
