"""Which executor carries tasks out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vaescope.errors import InputError

if TYPE_CHECKING:
    from vaescope.jobs import Outcome, Task

EXECUTORS = ("local", "ray")
STORAGE = ("shared", "returned")


@dataclass(frozen=True)
class Executing:
    """Where and how tasks run; never what they compute."""

    executor: str = "local"
    """local: processes of this machine. ray: an existing Ray cluster (extra `ray`)."""
    jobs: int = 1
    """local: tasks that run at a time, each with its share of the cores."""
    address: str = "auto"
    """ray: where the cluster is."""
    cpus: int = 1
    """ray: cores of a task."""
    storage: str = "shared"
    """ray: whether all machines see the output folder (shared), or files come back with results (returned)."""

    def check(self) -> None:
        if self.executor not in EXECUTORS:
            raise InputError(f"--executor must be one of {', '.join(EXECUTORS)}, got {self.executor!r}.")
        if self.storage not in STORAGE:
            raise InputError(f"--storage must be one of {', '.join(STORAGE)}, got {self.storage!r}.")
        for name in ("jobs", "cpus"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} must be at least 1, got {getattr(self, name)}.")

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        self.check()
        if self.executor == "ray":
            from vaescope.jobs.ray import run_on_ray

            return run_on_ray(tasks, address=self.address, cpus=self.cpus, returned=self.storage == "returned")
        from vaescope.jobs import run_here

        return run_here(tasks, jobs=self.jobs)
