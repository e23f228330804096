"""Experiments as tasks for an executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vaescope.jobs import Task
from vaescope.papers.catalogue import ExperimentInfo, find_experiment
from vaescope.papers.experiment import RunOptions
from vaescope.papers.run import Part, reproduce, solve_part, write_index
from vaescope.plain import Plain
from vaescope.training import Progress


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
    """Some of the cells of an experiment."""

    name: str
    options: RunOptions
    part: Part


def part_tasks(infos: Sequence[ExperimentInfo], out: Path, options: RunOptions, count: int) -> list[Task]:
    """`count` tasks per experiment, each with its share of the cells; run the experiment afterwards to merge them."""
    jobs = [PartJob(info.name, options, Part(index, count)) for info in infos for index in range(count)]
    return [
        Task(f"{job.name} ({job.part.index + 1} of {count})", run_part, job, out, str(job.part.folder(job.name)))
        for job in jobs
    ]


def run_part(job: PartJob, out: Path, progress: Progress) -> int:
    """Solve a part of an experiment in a worker; returns how many cells it has."""
    return solve_part(find_experiment(job.name).load(), job.options, job.part, out=out, progress=progress)


def run_job(job: ExperimentJob, out: Path, progress: Progress) -> list[dict[str, Plain]]:
    """Run an experiment in a worker; its claims as plain data."""
    claims = reproduce(find_experiment(job.name).load(), job.options, out=out, progress=progress)
    write_index(out, job.options.profile)
    return [claim.to_data() for claim in claims]
