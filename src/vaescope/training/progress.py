"""Progress of training: a bar in a terminal or a notebook, or nothing."""

from __future__ import annotations

import html
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from torch import Tensor

from vaescope.models import Member

logger = logging.getLogger("vaescope.training")
SECONDS_BETWEEN_UPDATES = 0.5
SECONDS_BETWEEN_LINES = 30.0  # where there is no terminal, as in a log file


@runtime_checkable
class Progress(Protocol):
    """Receives the progress of training."""

    def begin(self, members: int, epochs: int) -> None:
        """Training starts, or resumes.

        Args:
            members: number of members that are trained.
            epochs: at most.
        """
        ...

    def step(self, done: int, total: int) -> None:
        """So many of the steps of an epoch are done.

        Args:
            done: steps done in this epoch.
            total: steps of an epoch.
        """
        ...

    def epoch(self, done: int, *, training: int, finished: int, diverged: int, elbo: float) -> None:
        """An epoch is done.

        Args:
            done: epochs done.
            training: members that continue.
            finished: members that have stopped.
            diverged: members that have diverged.
            elbo: median over members of the best validation ELBO; NaN before there is one.
        """
        ...

    def message(self, text: str) -> None:
        """A line for the user.

        Args:
            text: the line.
        """
        ...


class NoProgress(Progress):
    """Shows nothing."""

    def begin(self, members: int, epochs: int) -> None:
        pass

    def step(self, done: int, total: int) -> None:
        pass

    def epoch(self, done: int, *, training: int, finished: int, diverged: int, elbo: float) -> None:
        pass

    def message(self, text: str) -> None:
        pass


class LoggedProgress(NoProgress):
    """Passes everything on, and logs it as `vaescope.training`: epochs at level DEBUG, the rest at INFO and above."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self._diverged = progress, 0

    def begin(self, members: int, epochs: int) -> None:
        logger.info("training %d members for at most %d epochs", members, epochs)
        self._diverged = 0
        self.progress.begin(members, epochs)

    def step(self, done: int, total: int) -> None:
        self.progress.step(done, total)

    def epoch(self, done: int, *, training: int, finished: int, diverged: int, elbo: float) -> None:
        logger.debug(
            "epoch %d: %d members training, %d finished, %d diverged; ELBO %.6g",
            done,
            training,
            finished,
            diverged,
            elbo,
        )
        if diverged > self._diverged:
            logger.warning("%d members have diverged after epoch %d", diverged, done)
            self._diverged = diverged
        if not training:
            logger.info("training has ended after epoch %d", done)
        self.progress.epoch(done, training=training, finished=finished, diverged=diverged, elbo=elbo)

    def message(self, text: str) -> None:
        logger.info(text)
        self.progress.message(text)


class NotebookBar:
    """A bar below the cell of a notebook, drawn by the notebook itself, at most twice a second."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._update: Callable[[object], object] | None = None
        self._shown_at = 0.0

    def show(self, done: int, total: int, state: str) -> None:
        """Draw or redraw the bar.

        Args:
            done: epochs done.
            total: epochs at most.
            state: what is written beside the bar.
        """
        if done < total and time.monotonic() - self._shown_at < SECONDS_BETWEEN_UPDATES:
            return
        from IPython.display import HTML, display  # there is IPython in every notebook

        bar = f'{html.escape(self.title)} <progress value="{done}" max="{total}"></progress> {html.escape(state)}'
        self._shown_at = time.monotonic()
        if self._update is None:
            self._update = display(HTML(bar), display_id=True).update
        else:
            self._update(HTML(bar))


class ProgressBar:
    """A progress bar on standard error, with the state of the members and the time left.

    Use as a context manager. In a notebook the bar is below the cell; with neither terminal nor notebook, a line is
    printed every half minute. Messages are always printed.
    """

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.title = title
        self.console = console or Console(stderr=True, highlight=False)
        self._progress = RichProgress(
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
        self._epochs, self._total, self._shown_at = 0, 0, time.monotonic()
        self._printed_at = time.monotonic()
        self._notebook = NotebookBar(title) if self.console.is_jupyter else None

    def __enter__(self) -> ProgressBar:
        self._progress.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.__exit__(kind, error, trace)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hide the bar while another one is shown."""
        self._progress.stop()
        try:
            yield
        finally:
            self._progress.start()

    def begin(self, members: int, epochs: int) -> None:
        self._progress.reset(self._task, total=epochs, state=f"{members} members")
        self._epochs, self._total, self._shown_at = 0, epochs, time.monotonic()

    def step(self, done: int, total: int) -> None:
        if time.monotonic() - self._shown_at > SECONDS_BETWEEN_UPDATES:
            self._progress.update(self._task, completed=self._epochs + min(1.0, done / total))
            self._shown_at = time.monotonic()

    def epoch(self, done: int, *, training: int, finished: int, diverged: int, elbo: float) -> None:
        state = f"{training} training, {finished} finished, {diverged} diverged"
        state += f"; ELBO {elbo:.2f}" if math.isfinite(elbo) else ""
        self._progress.update(self._task, completed=done, state=state)
        self._epochs, self._shown_at = done, time.monotonic()
        if self._notebook is not None:
            self._notebook.show(done, self._total, state)
        elif not self.console.is_terminal and time.monotonic() - self._printed_at > SECONDS_BETWEEN_LINES:
            self.message(f"{self.title}: epoch {done} of {self._total}, {state}")
            self._printed_at = time.monotonic()

    def message(self, text: str) -> None:
        self.console.print(text, markup=False)


@runtime_checkable
class Observer(Protocol):
    """Sees the members of a stack between two steps; `vs.watch.WatchedMembers` is one."""

    def begin(
        self, names: Mapping[int, str], train: Float[Tensor, "D N r"], validation: Float[Tensor, "D M r"]
    ) -> None:
        """A stack begins.

        Args:
            names: of its members, by index.
            train: some of the training rows of every data set.
            validation: some of the validation rows.
        """
        ...

    def due(self, step: int) -> bool:
        """Whether to look after this step; called after every one.

        Args:
            step: steps done.
        """
        ...

    def update(self, step: int, members: Callable[[], Mapping[int, tuple[int, Member]]]) -> None:
        """Look at the members.

        Args:
            step: steps done.
            members: returns the active members with their data set, by index.
        """
        ...
