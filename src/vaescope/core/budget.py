"""A limit on time, and lines that say what is being done."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vaescope.core.errors import Advice, Skipped

Progress = Callable[[str], object]


def to_stderr(line: str, end: str = "\n") -> None:
    """Write a line of progress. Nothing else in the library prints, but progress bars and the command line."""
    print(line, end=end, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Budget:
    """Seconds that an analysis may take. Cheap analyses always run; those that take long only if there is time."""

    seconds: float
    progress: Progress | None = None
    started: float = field(default_factory=lambda: time.monotonic())
    name: str = "diagnose"

    @property
    def left(self) -> float:
        return self.started + self.seconds - time.monotonic()

    def say(self, line: str) -> None:
        logging.getLogger(f"vaescope.{self.name}").info(line)
        if self.progress is not None:
            self.progress(f"{self.name}: {line}")

    def need(self, seconds: float) -> None:
        """Skip an analysis that would take longer than what is left."""
        if seconds > self.left:
            total = self.seconds - self.left + max(0.0, seconds)
            sentence = f"it would take about {max(1.0, seconds):.0f} s; pass {{}} to include it"
            raise Skipped(Advice.naming(sentence, "budget", f"{10 * (1 + total // 10):.0f}"))
