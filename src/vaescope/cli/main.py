"""The entry point of the command line: which command, and how errors are shown."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn, Protocol, runtime_checkable

import tyro

from vaescope.cli.analyse import (
    AuditCommand,
    Certify,
    CheckCommand,
    Compare,
    Diagnose,
    Explore,
    Improve,
    LeakageCommand,
    PreflightCommand,
)
from vaescope.cli.info import Datasets, Info, Version
from vaescope.cli.reproduce import Reproduce, Verify
from vaescope.cli.sweep import Status, SweepCommand, Track
from vaescope.cli.train import Train
from vaescope.core.errors import InputError, RunError


@runtime_checkable
class Command(Protocol):
    """Options of a command; to run it gives the exit code."""

    def run(self) -> int: ...


COMMANDS: dict[str, Callable[..., Command]] = {
    "reproduce": Reproduce,
    "verify": Verify,
    "preflight": PreflightCommand,
    "audit": AuditCommand,
    "train": Train,
    "sweep": SweepCommand,
    "status": Status,
    "track": Track,
    "diagnose": Diagnose,
    "improve": Improve,
    "certify": Certify,
    "check": CheckCommand,
    "leakage": LeakageCommand,
    "compare": Compare,
    "explore": Explore,
    "datasets": Datasets,
    "info": Info,
    "version": Version,
}


@dataclass
class _Exit:
    """`os._exit` of this process while it runs a command: a model's code cannot end the command with code 0 by it.

    Nothing can catch `os._exit`, so it is replaced; forks keep the original. What ends a process in C, or replaces it
    by another program (`os.exec`), is not seen.
    """

    end: Callable[[int], NoReturn]
    process: int
    code: int | None = None
    """Of the command; None until it has finished."""

    def __call__(self, status: int) -> NoReturn:
        if os.getpid() == self.process:
            if self.code is None:
                os.write(
                    2, b"vaescope: the command did not finish: a model or its imports called os._exit; remove that.\n"
                )
            status = status or (2 if self.code is None else self.code)
        self.end(status)


def main() -> None:
    """Run the command line: a user's error is one line and exit code 2."""
    ending = _Exit(os._exit, os.getpid())
    os._exit = ending
    ending.code = _exit_code()
    sys.exit(ending.code)


def _exit_code() -> int:
    try:
        return dispatch(sys.argv[1:])
    except (InputError, RunError) as error:
        print(f"vaescope: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("vaescope: interrupted; finished work is saved, run the same command to continue.", file=sys.stderr)
        return 130


def dispatch(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    arguments = ["version"] if arguments == ["--version"] else arguments
    command = _parse(arguments or ["--help"])
    try:
        return command.run()
    except BaseException as ended:
        if isinstance(ended, Exception | KeyboardInterrupt):
            raise
        how = "called sys.exit" if isinstance(ended, SystemExit) else f"raised {type(ended).__name__}"
        raise RunError(f"the command did not finish: a model or its imports {how}; remove that.") from None


def _parse(arguments: list[str]) -> Command:
    """The command with its options. An option that a settings class refuses is an `InputError`, as from Python."""
    errors = io.StringIO()
    description = "Understand variational autoencoders: why they disentangle, whether yours does, what to change."
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                args=arguments,
                prog="vaescope",
                description=description,
            )
    except SystemExit as ended:
        cause: BaseException | None = ended  # the parser exits while it handles the error of a settings class
        while cause is not None:
            if isinstance(cause, InputError):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        sys.stderr.write(errors.getvalue())
        raise
