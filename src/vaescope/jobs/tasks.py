"""A task for an executor, its outcome, and the progress that workers report."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from vaescope.core.errors import InputError, RunError, first_line
from vaescope.training import Progress as TrainingProgress
from vaescope.training.progress import SECONDS_BETWEEN_LINES


@dataclass(frozen=True)
class Task:
    """A module-level function, its argument, and the folder that it may write to."""

    name: str
    function: Callable[..., object]
    """Called with the argument, the output folder and a progress object, in a worker process."""
    argument: object
    out: Path
    subfolder: str = ""
    """The folder below `out` that belongs to this task alone."""

    @property
    def folder(self) -> Path:
        return self.out / self.subfolder

    def run(self, out: Path, progress: TrainingProgress) -> object:
        return self.function(self.argument, out, progress)


class Outcome(NamedTuple):
    """The value of a task, or the error that ended it."""

    name: str
    value: object = None
    error: Exception | None = None


class ProgressEvent(NamedTuple):
    """Progress of a task: `done` of `total`, with a description; a plain message where `done` is None."""

    task: str
    done: int | None
    total: int | None
    text: str


@dataclass(frozen=True)
class ProgressRelay:
    """Training progress in a worker, sent to the process that shows it."""

    task: str
    send: Callable[[ProgressEvent], object]

    def begin(self, members: int, epochs: int) -> None:
        self.send(ProgressEvent(self.task, 0, epochs, f"{members} members"))

    def step(self, done: int, total: int) -> None:
        """Not sent: a message per step would cost more than it shows."""

    def epoch(self, done: int, *, training: int, finished: int, diverged: int, elbo: float) -> None:
        text = f"{training} training, {finished} finished, {diverged} diverged"
        text += f"; ELBO {elbo:.2f}" if math.isfinite(elbo) else ""
        self.send(ProgressEvent(self.task, done, None, text))

    def message(self, text: str) -> None:
        self.send(ProgressEvent(self.task, None, None, text))


def one_line_error(error: BaseException) -> Exception:
    """Our own errors unchanged, all others as one line."""
    if isinstance(error, InputError | RunError):
        return error
    return RunError(f"{type(error).__name__}: {first_line(error)}")


class ProgressLines:
    """A progress line for every running task, in a terminal; without one, a line is printed every half minute.

    Messages are always printed.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
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
        self._totals: dict[str, int] = {}
        self._printed_at: dict[str, float] = {}

    def __enter__(self) -> ProgressLines:
        self.progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.__exit__(kind, error, trace)

    def show(self, event: ProgressEvent) -> None:
        if event.done is None:
            named = event.text if event.text.startswith(event.task) else f"{event.task}: {event.text}"
            self.console.print(named, markup=False, soft_wrap=True)
            return
        if event.task not in self.tasks:
            self.tasks[event.task] = self.progress.add_task(event.task, total=None, state="")
            self._printed_at[event.task] = time.monotonic()
        if event.total is not None:
            self.progress.reset(self.tasks[event.task], total=event.total, state=event.text)
            self._totals[event.task] = event.total
        self.progress.update(self.tasks[event.task], completed=event.done, state=event.text)
        if not self.console.is_terminal and time.monotonic() - self._printed_at[event.task] > SECONDS_BETWEEN_LINES:
            total = self._totals.get(event.task, event.done)
            line = f"{event.task}: epoch {event.done} of {total}, {event.text}"
            self.console.print(line, markup=False, soft_wrap=True)
            self._printed_at[event.task] = time.monotonic()

    def remove(self, task: str) -> None:
        if task in self.tasks:
            self.progress.remove_task(self.tasks.pop(task))
