"""Experiments as tasks for an executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vaescope.core.serialization import Plain
from vaescope.jobs import Task
from vaescope.jobs.tasks import one_line_error
from vaescope.runs.store import Part
from vaescope.training import Progress
from vaescope_papers.catalogue import ExperimentInfo, find_experiment
from vaescope_papers.experiment import RunOptions
from vaescope_papers.run import reproduce, solve_part


@dataclass(frozen=True)
class ExperimentJob:
    """One experiment and how to run it."""

    name: str
    options: RunOptions


def experiment_tasks(infos: Sequence[ExperimentInfo], out: Path, options: RunOptions) -> list[Task]:
    """A task per experiment, all in one output folder."""
    return [Task(info.name, run_job, ExperimentJob(info.name, options), out, info.name) for info in infos]


@dataclass(frozen=True)
class PartJob:
    """Some of the cells of every experiment."""

    names: tuple[str, ...]
    options: RunOptions
    part: Part


def part_tasks(infos: Sequence[ExperimentInfo], out: Path, options: RunOptions, count: int) -> list[Task]:
    """`count` tasks, each with its share of the cells of every experiment.

    Run the experiments afterwards to merge them. Each task begins with another experiment: what one compiles, the
    others then find in the compiler's cache.
    """
    names = [info.name for info in infos]
    label = names[0] if len(names) == 1 else f"{len(names)} experiments"
    tasks = []
    for index in range(count):
        first = index % len(names)
        job = PartJob((*names[first:], *names[:first]), options, Part(index, count))
        tasks.append(Task(f"{label} ({index + 1} of {count})", run_part, job, out))
    return tasks


def run_part(job: PartJob, out: Path, progress: Progress) -> dict[str, Exception]:
    """Solve a part of every experiment in a worker; the errors of those that failed, by name."""
    failed = {}
    for name in job.names:
        if len(job.names) > 1:
            progress.message(name)
        try:
            solve_part(find_experiment(name).load(), job.options, job.part, out=out, progress=progress)
        except BrokenPipeError:  # the parent process is gone
            raise
        except Exception as error:
            failed[name] = one_line_error(error)
    return failed


def run_job(job: ExperimentJob, out: Path, progress: Progress) -> list[dict[str, Plain]]:
    """Run an experiment in a worker; its claims as plain data."""
    claims = reproduce(find_experiment(job.name).load(), job.options, out=out, progress=progress)
    return [claim.to_data() for claim in claims]
