"""Experiments as tasks for an executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vaescope.jobs import Task
from vaescope.papers.catalogue import Entry, find
from vaescope.training import Progress


@dataclass(frozen=True)
class Job:
    """One experiment, as a worker is told of it."""

    name: str
    profile: str
    seeds: int | None = None
    device: str = "cpu"
    checkpoint_seconds: float | None = None
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Settings other than the profile's."""


def tasks(entries: Sequence[Entry], out: Path, job: Mapping[str, Any]) -> list[Task]:
    """A task per experiment, all into one folder."""
    return [Task(entry.name, work, Job(entry.name, **job), out, keeps=entry.name) for entry in entries]


def work(job: Job, out: Path, monitor: Progress) -> list[dict[str, Any]]:
    """In a worker: its claims as data."""
    from vaescope.papers.run import reproduce, write_index

    claims = reproduce(
        find(job.name).load(),
        profile=job.profile,
        out=out,
        monitor=monitor,
        seeds=job.seeds,
        device=job.device,
        changed=job.changed,
        checkpoint_seconds=job.checkpoint_seconds,
    )
    write_index(out, job.profile)
    return [claim.as_data() for claim in claims]
