"""Tasks on an existing Ray cluster; a task whose node dies is restarted on another node.

Workers write into the task's folder if it is on storage that all machines share, and continue there after a failure.
Otherwise (`return_files=True`) they write into a temporary folder and return its files, which are written here.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

from vaescope.core.errors import InputError, RunError, first_line, require
from vaescope.jobs.tasks import Outcome, ProgressEvent, ProgressLines, ProgressRelay, Task, one_line_error
from vaescope.runs import files as lock
from vaescope.runs.files import locked, write_bytes

MAX_ATTEMPTS = 5  # of a task whose node or process is lost


def run_on_ray(
    tasks: Sequence[Task], *, address: str = "auto", cpus: int = 1, return_files: bool = False
) -> Iterator[Outcome]:
    """Outcomes of the tasks as they finish.

    Args:
        tasks: what to run.
        address: where the cluster is.
        cpus: cores per task.
        return_files: whether workers return their files, because machines share no storage.
    """
    ray = _connect(address)
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    # the collector runs on this node, because other nodes may die
    collector = ray.remote(num_cpus=0, scheduling_strategy=here)(ProgressCollector).remote()
    remote = ray.remote(num_cpus=cpus, max_retries=MAX_ATTEMPTS - 1, retry_exceptions=False)(_run_worker)
    with ProgressLines() as lines, ExitStack() as locks:
        for task in tasks if return_files else ():
            locks.enter_context(locked(task.folder))
        files = [_read_files(task.out, task.subfolder) if return_files else None for task in tasks]
        pending = {remote.remote(task, cpus, collector, own): task for task, own in zip(tasks, files, strict=True)}
        try:
            while pending:
                done, _ = ray.wait(list(pending), timeout=0.3)
                for event in ray.get(collector.drain.remote()):
                    lines.show(event)
                for reference in done:
                    task = pending.pop(reference)
                    lines.remove(task.name)
                    yield _outcome(ray, reference, task)
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)


def _connect(address: str) -> ModuleType:
    ray = require("ray", "--executor ray")
    require("ray.util.scheduling_strategies", "--executor ray")
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="vaescope")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise RunError(
                f"no Ray cluster at {address!r} ({first_line(error)}); start one with `ray start --head`."
            ) from None
    return ray


def _outcome(ray: ModuleType, reference: object, task: Task) -> Outcome:
    try:
        value, files, error = ray.get(reference)
    except ray.exceptions.RayTaskError as failure:
        cause = failure.cause if isinstance(failure.cause, Exception) else failure
        return Outcome(task.name, error=one_line_error(cause))
    except ray.exceptions.RayError as failure:
        return Outcome(task.name, error=RunError(f"lost {MAX_ATTEMPTS} times ({type(failure).__name__})."))
    if error is not None:
        return Outcome(task.name, error=error)
    # files that a worker returned: results after the weights they belong to; files that it deleted are deleted
    for path in sorted(files, key=lambda name: (name.endswith("results.parquet"), name)):
        write_bytes(task.out / path, files[path])
    for deleted in _read_files(task.out, task.subfolder).keys() - files.keys() if files else ():
        (task.out / deleted).unlink(missing_ok=True)
    return Outcome(task.name, value)


def _read_files(out: Path, subfolder: str) -> dict[str, bytes]:
    """The content of every file of a task's folder by its path relative to `out`."""
    found = [p for p in (out / subfolder).rglob("*") if p.is_file() and p.name != ".lock"]
    return {str(p.relative_to(out)): p.read_bytes() for p in found}


class ProgressCollector:
    """Collects the progress events of all workers until they are drained."""

    def __init__(self) -> None:
        self.events: list[ProgressEvent] = []

    def add(self, event: ProgressEvent) -> None:
        self.events.append(event)

    def drain(self) -> list[ProgressEvent]:
        events, self.events = self.events, []
        return events


def _run_worker(
    task: Task, cpus: int, collector: Any, files: dict[str, bytes] | None
) -> tuple[object, dict[str, bytes], Exception | None]:
    """The main function of a worker. Our own errors are returned, so that Ray does not retry them.

    With files the task runs in a temporary folder that starts with them; without, in its own folder.
    """
    import torch

    torch.set_num_threads(cpus)
    lock.WAIT_SECONDS = 60.0  # a lost node may keep a lock on shared storage for a while
    progress = ProgressRelay(task.name, collector.add.remote)
    try:
        if files is None:
            return task.run(task.out, progress), {}, None
        with tempfile.TemporaryDirectory() as folder:
            for path, content in files.items():
                write_bytes(Path(folder) / path, content)
            value = task.run(Path(folder), progress)
            return value, _read_files(Path(folder), task.subfolder), None
    except (InputError, RunError) as error:
        return None, {}, error
