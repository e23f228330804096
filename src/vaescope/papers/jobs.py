"""Experiments as tasks for an executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vaescope.jobs import Task
from vaescope.papers.catalogue import ExperimentInfo, find_experiment
from vaescope.papers.experiment import RunOptions
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


def run_job(job: ExperimentJob, out: Path, progress: Progress) -> list[dict[str, Plain]]:
    """Run an experiment in a worker; its claims as plain data."""
    from vaescope.papers.run import reproduce, write_index

    claims = reproduce(find_experiment(job.name).load(), job.options, out=out, progress=progress)
    write_index(out, job.options.profile)
    return [claim.to_data() for claim in claims]
