"""Tasks on an existing Ray cluster: each on some node, begun again elsewhere when its node dies.

Workers write into the task's folder where that is on storage that all machines share, and go on there after a failure.
Elsewhere (`returned=True`) they write into a folder of their own and return its files, which are written here.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from vaescope.errors import InputError, RunError
from vaescope.jobs.tasks import Lines, Outcome, Relay, Said, Task, explained
from vaescope.runs import lock
from vaescope.runs.files import write_bytes
from vaescope.runs.lock import locked

ATTEMPTS = 5  # of a task whose node or process was lost
LOST = 60.0  # seconds for which a worker waits for a folder that is in use
LOOK = 0.3  # seconds between two looks at what workers say
LEFT_BEHIND = (".lock",)


def run_on_ray(
    tasks: Sequence[Task], *, address: str = "auto", cpus: int = 1, returned: bool = False
) -> Iterator[Outcome]:
    """What came of every task, as they finish; each task has so many cores."""
    ray = _connected(address)
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    told = ray.remote(num_cpus=0, scheduling_strategy=here)(_Ear).remote()  # on this node: others may die
    remote = ray.remote(num_cpus=cpus, max_retries=ATTEMPTS - 1, retry_exceptions=False)(_work)
    with Lines() as lines, ExitStack() as held:
        for task in tasks if returned else ():
            held.enter_context(locked(task.out / task.keeps))
        files = [_files(task.out, task.keeps) if returned else None for task in tasks]
        pending = {remote.remote(task, cpus, told, own): task for task, own in zip(tasks, files, strict=True)}
        try:
            while pending:
                done, _ = ray.wait(list(pending), timeout=LOOK)
                for said in ray.get(told.heard.remote()):
                    lines.show(said)
                for reference in done:
                    task = pending.pop(reference)
                    lines.remove(task.name)
                    yield _outcome(ray, reference, task)
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)


def _connected(address: str) -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError:
        raise InputError(
            "Ray is not installed; install vaescope's extra for it: pip install 'vaescope[ray]'."
        ) from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, namespace="vaescope")
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise RunError(f"no Ray cluster at {address!r} ({reason}); start one with `ray start --head`.") from None
    return ray


def _outcome(ray: Any, reference: Any, task: Task) -> Outcome:
    try:
        value, files, error = ray.get(reference)
    except ray.exceptions.RayTaskError as failure:
        return Outcome(task.name, error=explained(failure.cause if isinstance(failure.cause, Exception) else failure))
    except ray.exceptions.RayError as failure:
        return Outcome(task.name, error=RunError(f"lost {ATTEMPTS} times ({type(failure).__name__})."))
    if error is not None:
        return Outcome(task.name, error=error)
    for place in sorted(files, key=lambda name: (name.endswith("results.parquet"), name)):  # rows after their weights
        write_bytes(task.out / place, files[place])
    for gone in _files(task.out, task.keeps).keys() - files.keys() if files else ():
        (task.out / gone).unlink(missing_ok=True)  # a state that is needed no more
    return Outcome(task.name, value)


def _files(out: Path, keeps: str) -> dict[str, bytes]:
    """All files of a task's own folder."""
    found = [p for p in (out / keeps).rglob("*") if p.is_file() and p.name not in LEFT_BEHIND]
    return {str(p.relative_to(out)): p.read_bytes() for p in found}


class _Ear:
    """Hears what all workers say, until it is asked."""

    def __init__(self) -> None:
        self.said: list[Said] = []

    def tell(self, said: Said) -> None:
        self.said.append(said)

    def heard(self) -> list[Said]:
        said, self.said = self.said, []
        return said


def _work(
    task: Task, cpus: int, told: Any, files: dict[str, bytes] | None
) -> tuple[Any, dict[str, bytes], Exception | None]:
    """In a worker; an error of ours is no failure of Ray's, and is not tried again.

    With files it works in a folder of its own that begins with them; without, in the task's.
    """
    import torch

    torch.set_num_threads(cpus)
    lock.PATIENCE = LOST  # a node that was lost may hold a lock on shared storage for a while
    monitor = Relay(task.name, told.tell.remote)
    try:
        if files is None:
            return task.work(task.argument, task.out, monitor), {}, None
        with tempfile.TemporaryDirectory() as folder:
            for place, content in files.items():
                write_bytes(Path(folder) / place, content)
            value = task.work(task.argument, Path(folder), monitor)
            return value, _files(Path(folder), task.keeps), None
    except (InputError, RunError) as error:
        return None, {}, error
