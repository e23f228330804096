"""The two things that can go wrong for a user, each told in one line."""

from __future__ import annotations


class InputError(ValueError):
    """An argument is not what was expected: says what was expected, what came, what to do."""


class RunError(RuntimeError):
    """A run folder cannot be used as asked: says why and what to do."""
