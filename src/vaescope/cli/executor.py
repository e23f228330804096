"""Options that choose the executor of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vaescope.checks import choice, whole_number

if TYPE_CHECKING:
    from vaescope.jobs import Outcome, Task

EXECUTORS = ("local", "ray")
STORAGE = ("shared", "returned")


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
        choice("--executor", self.executor, EXECUTORS)
        choice("--storage", self.storage, STORAGE)
        whole_number("--jobs", self.jobs)
        whole_number("--cpus", self.cpus)

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        self.check()
        if self.executor == "ray":
            from vaescope.jobs.ray import run_on_ray

            return run_on_ray(tasks, address=self.address, cpus=self.cpus, return_files=self.storage == "returned")
        from vaescope.jobs import run_in_processes

        return run_in_processes(tasks, jobs=self.jobs)
