"""The command line, a file per command. Nothing heavy is imported until a command needs it."""

from vaescope.cli.main import dispatch, main

__all__ = ["dispatch", "main"]
