"""Several experiments at a time, each in a process of its own with its share of the cores.

Small networks keep one core busy and a second one waiting: two experiments side by side finish sooner than one after
the other.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import queue as queues
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from vaescope.errors import InputError, RunError
from vaescope.experiments.catalogue import Entry, find

Claims = list[dict[str, Any]]
LOOK = 0.2  # seconds between two looks at what workers say


@dataclass(frozen=True)
class Job:
    """One experiment, as a worker is told of it."""

    name: str
    profile: str
    out: Path
    seeds: int | None
    device: str


@dataclass(frozen=True)
class Relay:
    """A `Monitor` in a worker: passes on what it is told."""

    name: str
    queue: Any

    def begin(self, members: int, epochs: int) -> None:
        self.queue.put((self.name, 0, epochs, f"{members} members"))

    def epoch(self, done: int, *, training: int, finished: int, diverged: int, elbo: float) -> None:
        state = f"{training} training, {finished} finished, {diverged} diverged"
        state += f"; ELBO {elbo:.2f}" if math.isfinite(elbo) else ""
        self.queue.put((self.name, done, None, state))

    def say(self, message: str) -> None:
        self.queue.put((self.name, None, None, message))


def check_jobs(jobs: int) -> int:
    if jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {jobs}.")
    return jobs


def side_by_side(
    entries: Sequence[Entry], job: Callable[[Entry], Job], jobs: int
) -> Iterator[tuple[str, Claims | Exception]]:
    """Every experiment's claims, or what went wrong with it, as they finish."""
    context = multiprocessing.get_context("spawn")
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with (
        context.Manager() as manager,
        ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1) as pool,
        _Lines() as lines,
    ):
        queue = manager.Queue()
        pending = {pool.submit(_work, job(entry), threads, queue): entry.name for entry in entries}
        try:
            while pending:
                done, _ = wait(pending, timeout=LOOK, return_when=FIRST_COMPLETED)
                lines.update(queue)
                for future in done:
                    name = pending.pop(future)
                    lines.remove(name)
                    yield name, _outcome(future)
        except KeyboardInterrupt:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _outcome(future: Future[Claims]) -> Claims | Exception:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, KeyboardInterrupt):
        raise error
    return error if isinstance(error, InputError | RunError) else RunError(f"{type(error).__name__}: {error}")


def _work(job: Job, threads: int, queue: Any) -> Claims:
    """In a worker."""
    from vaescope.experiments.run import reproduce, write_index

    torch.set_num_threads(threads)
    threading.Thread(target=_stop_with, args=(os.getppid(),), daemon=True).start()
    claims = reproduce(
        find(job.name).load(),
        profile=job.profile,
        out=job.out,
        monitor=Relay(job.name, queue),
        seeds=job.seeds,
        device=job.device,
    )
    write_index(job.out, job.profile)
    return [claim.as_data() for claim in claims]


def _stop_with(parent: int) -> None:
    """A worker does not outlive who started it; what it has not finished goes on another time."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


class _Lines:
    """A progress line for every experiment that runs, where there is a terminal."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Lines:
        self.progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.progress.__exit__(*error)

    def update(self, queue: Any) -> None:
        while True:
            try:
                name, done, total, state = queue.get_nowait()
            except queues.Empty:
                return
            if done is None:
                self.console.print(f"{name}: {state}", markup=False)
                continue
            if name not in self.tasks:
                self.tasks[name] = self.progress.add_task(name, total=None, state="")
            if total is not None:
                self.progress.reset(self.tasks[name], total=total, state=state)
            self.progress.update(self.tasks[name], completed=done, state=state)

    def remove(self, name: str) -> None:
        if name in self.tasks:
            self.progress.remove_task(self.tasks.pop(name))
