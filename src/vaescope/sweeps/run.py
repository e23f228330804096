"""Run a sweep: its stacks as tasks of an executor, results as one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from vaescope.core.errors import RunError
from vaescope.core.serialization import Plain
from vaescope.data import Dataset
from vaescope.data.catalogue import load_auxiliary, open_dataset
from vaescope.distributions.priors import prior_from, prior_to_text
from vaescope.fitting import FitJob, prepare_fit
from vaescope.jobs import Outcome, Task, run_in_this_process
from vaescope.jobs.tracking import live_observer
from vaescope.models import MLPNetworks
from vaescope.runs.files import Row, locked, read_json, remove_partial_files, write_json
from vaescope.settings import CHECKPOINT_SECONDS, FitSettings
from vaescope.sweeps.sweep import DATA_SETTINGS, MemberCell, StackPlan, Sweep, write_results
from vaescope.training import MemberSpec, Progress
from vaescope.training.batches import MAX_GATHERED, STEPS_PER_DRAW
from vaescope_papers.experiment import RunOptions
from vaescope_papers.run import ExperimentJob, run_job


def member_bytes(job: FitJob) -> int:
    """Memory of one member while it trains, roughly."""
    weights = sum(value.numel() for value in job.model.init([0]).values())
    batch = min(job.settings.training.batch_size, len(job.data))
    width, latents = job.data.columns, job.model.latent_dim
    hidden = job.model.networks.hidden if isinstance(job.model.networks, MLPNetworks) else ()
    # six copies of the activations of a batch, forward and backward
    activations = 6 * batch * (2 * width + 2 * sum(hidden) + 4 * latents)
    gathered = min(STEPS_PER_DRAW * batch * (width + latents), MAX_GATHERED)
    validation = len(job.data) * latents // 5
    # seven copies of the weights: themselves, gradients, two moments, the best weights, and two temporary copies
    return 4 * (7 * weights + activations + gathered + validation + len(job.data))


def free_bytes() -> int:
    """Memory that is available to this process: of the machine, and of its container or batch job if that is less."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError):  # there is no such group, or it has no limit
        limit, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, max(0, limit - used))
    return free


def largest_stack(job: FitJob, memory: int) -> int:
    """Members that fit into half of this memory, because sizes are estimates; at least one."""
    return max(1, int(0.5 * memory) // member_bytes(job))


SWEEP_FILE = "sweep.json"
STACKS = "stacks"
Executor = Callable[[Sequence[Task]], Iterable[Outcome]]


@dataclass(frozen=True)
class SweepOptions:
    """Where and how a sweep runs; never what it trains."""

    device: str = "cpu"
    """Where to train: cpu, cuda, ..."""
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    """Seconds between two checkpoints, at least."""
    memory: int | None = None
    """Free memory in bytes, of which a stack uses half; by default what is free when the sweep starts. A resumed sweep
    keeps the first value."""
    track: str | None = None
    """Where members are logged while they are trained; see `vs.jobs.tracking.live`."""


def run_sweep(
    sweep: Sweep, out: str | Path, *, executor: Executor | None = None, options: SweepOptions | None = None
) -> list[Row]:
    """Train every cell that is not in the folder yet; a row per member with the settings that differ.

    Args:
        sweep: what to train.
        out: folder for the results.
        executor: runs the tasks: by default one after another in this process. `vs.jobs.run_in_processes` runs several
            at a time (scripts then need `if __name__ == "__main__":`).
        options: device, checkpoints and memory.
    """
    folder, options = Path(out), options or SweepOptions()
    check_jobs(sweep)
    with locked(folder):
        remove_partial_files(folder)
        options = replace(options, memory=_bind_folder(folder, sweep, options.memory))
        tasks = [_task(plan, folder, options) for plan in sweep.stacks]
        outcomes = list((executor or run_in_this_process)(tasks))
        failed = [f"{outcome.name} ({outcome.error})" for outcome in outcomes if outcome.error is not None]
        rows = write_results(sweep, folder)
    if failed:
        raise RunError(f"{len(failed)} of {len(tasks)} stacks did not finish: {'; '.join(failed[:5])}")
    return rows


def _bind_folder(folder: Path, sweep: Sweep, memory: int | None) -> int:
    """Refuse the folder of another sweep; returns the bytes that a stack may use, as when the sweep was started."""
    file = folder / SWEEP_FILE
    started = any(folder.glob(f"{STACKS}/*"))
    if file.exists():
        known = read_json(file)
        if started and (not isinstance(known, dict) or known.get("sweep") != sweep.to_data()):
            raise RunError(f"{folder} holds another sweep; choose another --out or remove it.")
        if started:
            return known["memory"] if isinstance(known.get("memory"), int) else free_bytes()
    elif (folder / "config.json").exists():
        raise RunError(f"{folder} holds a run; choose another --out.")
    elif started:
        raise RunError(f"{folder} has stacks but no {SWEEP_FILE}; choose another --out or remove it.")
    limit = free_bytes() if memory is None else memory
    stacks = {p.name: {"settings": dict(p.settings), "members": len(p.members) or None} for p in sweep.stacks}
    write_json(file, {"sweep": sweep.to_data(), "memory": limit, "stacks": stacks})
    return limit


def check_jobs(sweep: Sweep) -> None:
    """Check the settings of every stack before anything is trained; every data set is opened once."""
    if sweep.experiment is not None:
        return
    opened: dict[str, Dataset] = {}
    for plan in sweep.stacks:
        key = repr([plan.settings.get(name) for name in DATA_SETTINGS])
        opened[key] = opened.get(key) or _open_dataset(plan.settings)
        fit_job(plan.settings, plan.members, data=opened[key])


# one stack ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StackJob:
    """A stack of `fit` as a worker receives it."""

    settings: Mapping[str, Plain]
    members: tuple[MemberCell, ...]
    options: SweepOptions


def _task(plan: StackPlan, folder: Path, options: SweepOptions) -> Task:
    out = folder.resolve() / STACKS / plan.name
    if "experiment" not in plan.settings:
        files = ("data", "auxiliary")
        settings = {name: _absolute(value) if name in files else value for name, value in plan.settings.items()}
        return Task(plan.name, train_stack, StackJob(settings, plan.members, options), out)
    changes = {k: v for k, v in plan.settings.items() if k not in ("experiment", "profile")}
    run = RunOptions(
        profile=str(plan.settings["profile"]),
        changes=changes,
        device=options.device,
        checkpoint_seconds=options.checkpoint_seconds,
        track=options.track,
    )
    return Task(plan.name, run_job, ExperimentJob(str(plan.settings["experiment"]), run), out)


def train_stack(job: StackJob, out: Path, progress: Progress) -> int:
    """In a worker: train the missing members of a stack; returns how many members it has."""
    fit = fit_job(job.settings, job.members, out=out, options=job.options)
    limit = free_bytes() if job.options.memory is None else job.options.memory
    observer = live_observer(job.options.track, "fit", out, progress.message)
    fit.run(progress, max_members=largest_stack(fit, limit), load=False, observer=observer)
    if observer is not None:
        observer.close()
    return len(fit.members)


def _absolute(value: Plain) -> Plain:
    """The absolute path of an existing file: workers may run in another folder."""
    return str(Path(value).resolve()) if isinstance(value, str) and Path(value).exists() else value


def _open_dataset(settings: Mapping[str, Plain]) -> Dataset:
    rows = settings.get("rows")
    return open_dataset(
        str(settings["data"]),
        array=_text(settings.get("array")),
        factors=_text(settings.get("factors")),
        rows=rows if isinstance(rows, int) else None,
    )


def _text(value: Plain) -> str | None:
    return None if value is None else str(value)


def fit_job(
    settings: Mapping[str, Plain],
    members: Sequence[MemberCell],
    *,
    data: Dataset | None = None,
    out: Path | None = None,
    options: SweepOptions | None = None,
) -> FitJob:
    """What `fit` would train with these settings and members."""
    data, options = _open_dataset(settings) if data is None else data, options or SweepOptions()
    own = {name: value for name, value in settings.items() if name not in DATA_SETTINGS}
    own |= {"out": out, "checkpoint_seconds": options.checkpoint_seconds, "device": options.device}
    if isinstance(own.get("hidden"), int):
        own["hidden"] = [own["hidden"]]
    if "prior" in own:
        own["prior"] = prior_to_text(prior_from(own["prior"]))
    rows = settings.get("rows")
    auxiliary = load_auxiliary(_text(settings.get("auxiliary")), data, rows if isinstance(rows, int) else None)
    if auxiliary is not None:
        own.setdefault("model", "ivae")
    fixed = [member.precision for member in members if member.precision is not None]
    if fixed:
        own["precision"] = fixed[0]
    job = prepare_fit(data, FitSettings().updated(own), auxiliary=auxiliary)
    specs = [
        MemberSpec(m.seed, 1.0 if m.precision is None else m.precision, m.beta, kl_schedule=m.kl_schedule)
        for m in members
    ]
    return replace(job, members=specs)
