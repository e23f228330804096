"""Tasks in processes of this machine, several at a time, each with its share of the cores.

Small networks keep one core busy and leave a second one idle, so two tasks at a time finish sooner than one after the
other. If a worker process is killed its task is restarted, and continues from what it had saved.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from vaescope.core.checks import integer
from vaescope.core.errors import RunError
from vaescope.jobs.tasks import Outcome, ProgressEvent, ProgressLines, ProgressRelay, Task, one_line_error
from vaescope.training import ProgressBar

MAX_ATTEMPTS = 3  # of a task whose process is killed


def run_in_processes(tasks: Sequence[Task], *, jobs: int) -> Iterator[Outcome]:
    """Outcomes of the tasks as they finish, with `jobs` worker processes at a time.

    Args:
        tasks: what to run; functions and arguments must be picklable.
        jobs: number of processes; each has an equal share of the cores. A task whose process is killed is restarted,
            at most twice.
    """
    integer("jobs", jobs)
    threads = _threads(jobs)
    waiting = deque((task, 1) for task in tasks)
    running: list[_Worker] = []
    with ProgressLines() as lines:
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    running.append(_Worker.start(*waiting.popleft(), threads))
                connection.wait([worker.receiver for worker in running])
                for worker in list(running):
                    ended = worker.receive(lines)
                    if ended is None:
                        continue
                    running.remove(worker)
                    lines.remove(worker.task.name)
                    if isinstance(ended, Outcome):
                        yield ended
                    else:
                        waiting.append((worker.task, worker.attempt + 1))
        finally:
            for worker in running:
                worker.process.terminate()
            for worker in running:
                worker.process.join()


def run_in_this_process(tasks: Sequence[Task]) -> Iterator[Outcome]:
    """Outcomes of the tasks, one after another in this process with all of its cores.

    Args:
        tasks: what to run.
    """
    for task in tasks:
        try:
            with ProgressBar(task.name) as progress:
                yield Outcome(task.name, task.run(task.out, progress))
        except Exception as error:
            yield Outcome(task.name, error=one_line_error(error))


def _threads(jobs: int) -> int:
    """Of each of so many processes: its share of the cores that this process may use, at most OMP_NUM_THREADS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores // jobs, int(limit) if limit.isdecimal() else cores))


@contextmanager
def _ignored_interrupts() -> Iterator[None]:
    """Processes that are started meanwhile ignore Ctrl-C, from their first line on: their parent terminates them."""
    if threading.current_thread() is not threading.main_thread():  # others cannot change what signals do
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Restart:
    """The task has to be started again."""


@dataclass
class _Worker:
    task: Task
    attempt: int
    process: SpawnProcess
    receiver: Connection

    @classmethod
    def start(cls, task: Task, attempt: int, threads: int) -> _Worker:
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run_worker, args=(task, threads, sender, os.getpid()), daemon=False)
        with _ignored_interrupts():
            process.start()
        sender.close()
        return cls(task, attempt, process, receiver)

    def receive(self, lines: ProgressLines) -> Outcome | _Restart | None:
        """Show all progress that was sent; the outcome once the task has ended, None before."""
        while True:
            try:
                if not self.receiver.poll():
                    return None
                received = self.receiver.recv()
            except (EOFError, OSError):  # the process ended without sending an outcome
                self.process.join()
                return self._ended(lines)
            if not isinstance(received, ProgressEvent):
                self.process.join()
                return Outcome(*received)
            lines.show(received)

    def _ended(self, lines: ProgressLines) -> Outcome | _Restart:
        code = self.process.exitcode or 0
        how = f"was killed by signal {-code}" if code < 0 else "ended before it had finished"
        if self.attempt < MAX_ATTEMPTS:
            lines.show(ProgressEvent(self.task.name, None, None, f"the worker process {how}; restarting."))
            return _Restart()
        return Outcome(self.task.name, error=RunError(f"the worker process {how}, {MAX_ATTEMPTS} times."))


def _run_worker(task: Task, threads: int, sender: Connection, parent: int) -> None:
    """The main function of a worker process."""
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()
    import torch

    torch.set_num_threads(threads)
    try:
        sender.send(_outcome(task, sender))
    except BrokenPipeError:  # the parent process is gone
        os._exit(130)


def _outcome(task: Task, sender: Connection) -> tuple[str, object, Exception | None]:
    try:
        return task.name, task.run(task.out, ProgressRelay(task.name, sender.send)), None
    except BrokenPipeError:
        raise
    except Exception as error:
        return task.name, None, one_line_error(error)


def _exit_with_parent(parent: int) -> None:
    """End this worker when its parent process ends; unfinished work continues in a later run."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
