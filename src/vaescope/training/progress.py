"""What a long job shows while it runs: a live line in a terminal, nothing elsewhere."""

from __future__ import annotations

import math
import sys
from types import TracebackType
from typing import Protocol, runtime_checkable

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@runtime_checkable
class Monitor(Protocol):
    """Told by the training loop how far it is."""

    def begin(self, members: int, epochs: int) -> None: ...

    def epoch(self, done: int, *, training: int, finished: int, diverged: int, elbo: float) -> None: ...

    def say(self, message: str) -> None: ...


class Silent:
    """Says nothing."""

    def begin(self, members: int, epochs: int) -> None:
        pass

    def epoch(self, done: int, *, training: int, finished: int, diverged: int, elbo: float) -> None:
        pass

    def say(self, message: str) -> None:
        pass


class Live:
    """A progress line: members training, finished, diverged; median validation ELBO; time left.

    Use as a context manager. The line is drawn only in a terminal; messages are always printed.
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.title = title
        self.console = console or Console(stderr=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TextColumn("elapsed, at most"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self._task = self._progress.add_task(title, total=None, state="")

    def __enter__(self) -> Live:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    def begin(self, members: int, epochs: int) -> None:
        self._progress.reset(self._task, total=epochs, state=f"{members} members")

    def epoch(self, done: int, *, training: int, finished: int, diverged: int, elbo: float) -> None:
        state = f"{training} training, {finished} finished, {diverged} diverged"
        state += f"; ELBO {elbo:.2f}" if math.isfinite(elbo) else ""
        self._progress.update(self._task, completed=done, state=state)

    def say(self, message: str) -> None:
        self.console.print(message, markup=False)


def for_terminal(title: str) -> Live | Silent:
    """A live line if somebody is looking, else silence (for library calls)."""
    return Live(title) if sys.stderr.isatty() else Silent()
