"""Tasks in processes of this machine, a few at a time, each with its share of the cores.

Small networks keep one core busy and a second one waiting: two tasks side by side finish sooner than one after the
other. A process that is killed costs what it had not written: its task is begun again and goes on from there.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

from vaescope.errors import InputError, RunError
from vaescope.jobs.tasks import Lines, Outcome, Relay, Said, Task, explained
from vaescope.training import ProgressBar

ATTEMPTS = 3  # at a task whose process was killed


def check_jobs(jobs: int) -> int:
    if jobs < 1:
        raise InputError(f"--jobs must be at least 1, got {jobs}.")
    return jobs


def run_here(tasks: Sequence[Task], *, jobs: int) -> Iterator[Outcome]:
    """What came of every task, as they finish."""
    check_jobs(jobs)
    threads = max(1, (os.cpu_count() or 1) // jobs)
    waiting = deque((task, 1) for task in tasks)
    running: list[_Worker] = []
    with Lines() as lines:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(_Worker.start(*waiting.popleft(), threads))
                connection.wait([worker.heard for worker in running])
                for worker in list(running):
                    outcome = worker.listen(lines)
                    if outcome is None:
                        continue
                    running.remove(worker)
                    lines.remove(worker.task.name)
                    if outcome is AGAIN:
                        waiting.append((worker.task, worker.attempt + 1))
                    else:
                        yield outcome
        finally:
            for worker in running:
                worker.process.terminate()
            for worker in running:
                worker.process.join()


AGAIN = Outcome("")


def run_inside(tasks: Sequence[Task]) -> Iterator[Outcome]:
    """One after another in this very process, with all of its cores: for scripts, and where nothing else is wanted."""
    for task in tasks:
        try:
            with ProgressBar(task.name) as monitor:
                yield Outcome(task.name, task.work(task.argument, task.out, monitor))
        except Exception as error:
            yield Outcome(task.name, error=explained(error))


@dataclass
class _Worker:
    task: Task
    attempt: int
    process: Any
    heard: Any

    @classmethod
    def start(cls, task: Task, attempt: int, threads: int) -> _Worker:
        context = multiprocessing.get_context("spawn")
        heard, tell = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(task, threads, tell, os.getpid()), daemon=False)
        process.start()
        tell.close()
        return cls(task, attempt, process, heard)

    def listen(self, lines: Lines) -> Outcome | None:
        """All that it has said; its outcome at the end, None until then."""
        try:
            while self.heard.poll():
                said = self.heard.recv()
                if isinstance(said, Said):
                    lines.show(said)
                    continue
                self.process.join()
                return Outcome(*said)
        except (EOFError, OSError):  # it is gone, and has not said what came of it
            self.process.join()
            how = f"by signal {-self.process.exitcode}" if self.process.exitcode < 0 else "before it had finished"
            if self.attempt < ATTEMPTS:
                lines.show(Said(self.task.name, None, None, f"its process ended {how}; it is begun again."))
                return AGAIN
            return Outcome(self.task.name, error=RunError(f"its process ended {how}, {ATTEMPTS} times."))
        return None


def _work(task: Task, threads: int, tell: Any, parent: int) -> None:
    """In a worker."""
    threading.Thread(target=_stop_with, args=(parent,), daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    try:
        tell.send(_done(task, tell))
    except (KeyboardInterrupt, BrokenPipeError):  # who would be told is gone
        os._exit(130)


def _done(task: Task, tell: Any) -> tuple[str, Any, Exception | None]:
    try:
        return task.name, task.work(task.argument, task.out, Relay(task.name, tell.send)), None
    except BrokenPipeError:
        raise
    except Exception as error:
        return task.name, None, explained(error)


def _stop_with(parent: int) -> None:
    """A worker does not outlive who started it; what it has not finished goes on another time."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
