"""The exceptions that users see. Both messages fit on one line; the command line prints them and exits with code 2."""

from __future__ import annotations


class InputError(ValueError):
    """An argument or a file is invalid. The message says what was expected, what was given and what to do."""


class RunError(RuntimeError):
    """A run folder cannot be used. The message says why and what to do."""


class AmbiguousOutputError(InputError):
    """A user's function returns several values, and it is not known which one is meant; no analysis goes on."""
