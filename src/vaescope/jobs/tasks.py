"""A task, what workers say while they are at it, and how it is shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from vaescope.errors import InputError, RunError
from vaescope.training import Progress as Monitor


@dataclass(frozen=True)
class Task:
    """Work for one process: a function of a module, what it is told, and the folder that it may write."""

    name: str
    work: Callable[[Any, Path, Monitor], Any]
    argument: Any
    out: Path
    keeps: str = ""
    """The folder in `out` that is the task's own."""


class Outcome(NamedTuple):
    """What came of a task: a value, or what went wrong."""

    name: str
    value: Any = None
    error: Exception | None = None


class Said(NamedTuple):
    """How far a task is (done of total), in words; without `done` it is a message."""

    name: str
    done: int | None
    total: int | None
    words: str


@dataclass(frozen=True)
class Relay:
    """A `Monitor` in a worker: passes on what it is told."""

    name: str
    tell: Callable[[Said], Any]

    def begin(self, members: int, epochs: int) -> None:
        self.tell(Said(self.name, 0, epochs, f"{members} members"))

    def epoch(self, done: int, *, training: int, finished: int, diverged: int, elbo: float) -> None:
        words = f"{training} training, {finished} finished, {diverged} diverged"
        words += f"; ELBO {elbo:.2f}" if math.isfinite(elbo) else ""
        self.tell(Said(self.name, done, None, words))

    def message(self, text: str) -> None:
        self.tell(Said(self.name, None, None, text))


def explained(error: BaseException) -> Exception:
    """Errors of ours as they are; others in one line."""
    if isinstance(error, InputError | RunError):
        return error
    reason = (str(error).splitlines() or [""])[0]
    return RunError(f"{type(error).__name__}: {reason}")


class Lines:
    """A progress line for every task that runs, where there is a terminal; messages are always printed."""

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

    def __enter__(self) -> Lines:
        self.progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.progress.__exit__(*error)

    def show(self, said: Said) -> None:
        if said.done is None:
            self.console.print(f"{said.name}: {said.words}", markup=False)
            return
        if said.name not in self.tasks:
            self.tasks[said.name] = self.progress.add_task(said.name, total=None, state="")
        if said.total is not None:
            self.progress.reset(self.tasks[said.name], total=said.total, state=said.words)
        self.progress.update(self.tasks[said.name], completed=said.done, state=said.words)

    def remove(self, name: str) -> None:
        if name in self.tasks:
            self.progress.remove_task(self.tasks.pop(name))
