"""Analyses that do not apply to a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from vaescope.errors import AmbiguousOutputError, InputError

T = TypeVar("T")


class Skipped(Exception):
    """An analysis could not be made; the message says why."""


def could_not_differentiate(error: Exception) -> Skipped:
    """The reason to skip an analysis that needs derivatives of the decoder."""
    return Skipped(f"the decoder could not be differentiated ({first_line(error)})")


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:160]


class Attempts:
    """Call analyses, and collect the reasons of those that fail."""

    def __init__(self) -> None:
        self.skipped: dict[str, str] = {}

    def __call__(self, name: str, analyse: Callable[[], T]) -> T | None:
        try:
            return analyse()
        except AmbiguousOutputError:
            raise
        except (Skipped, InputError) as reason:
            self.skipped[name] = str(reason).rstrip(".")
        except (RuntimeError, NotImplementedError) as error:
            self.skipped[name] = f"the decoder failed ({first_line(error)})"
        return None
