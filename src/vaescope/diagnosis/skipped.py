"""Analyses that do not apply to a model."""

from __future__ import annotations


class Skipped(Exception):
    """An analysis could not be made; the message says why."""


def could_not_differentiate(error: Exception) -> Skipped:
    """The reason to skip an analysis that needs derivatives of the decoder."""
    return Skipped(f"the decoder could not be differentiated ({first_line(error)})")


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:160]
