"""The command line: one file per command. Heavy modules are imported only when a command runs."""

from vaescope.cli.main import dispatch, main

__all__ = ["dispatch", "main"]
