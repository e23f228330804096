"""The entry point of the command line: which command, and how errors are shown."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from typing import Any

import tyro

from vaescope.cli.analyse import AuditCommand, Certify, Compare, Diagnose, Explore, PreflightCommand
from vaescope.cli.info import Datasets, Info, Version
from vaescope.cli.reproduce import Reproduce, Verify
from vaescope.cli.sweep import Status, SweepCommand, Track
from vaescope.cli.train import Train
from vaescope.core.errors import InputError, RunError

COMMANDS: dict[str, Callable[..., Any]] = {
    "reproduce": Reproduce,
    "verify": Verify,
    "preflight": PreflightCommand,
    "audit": AuditCommand,
    "train": Train,
    "sweep": SweepCommand,
    "status": Status,
    "track": Track,
    "diagnose": Diagnose,
    "certify": Certify,
    "compare": Compare,
    "explore": Explore,
    "datasets": Datasets,
    "info": Info,
    "version": Version,
}


def main() -> None:
    """Run the command line: a user's error is one line and exit code 2."""
    try:
        sys.exit(dispatch(sys.argv[1:]))
    except (InputError, RunError) as error:
        print(f"vaescope: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("vaescope: interrupted; finished work is saved, run the same command to continue.", file=sys.stderr)
        sys.exit(130)


def dispatch(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    arguments = ["version"] if arguments == ["--version"] else arguments
    command = _parse(arguments or ["--help"])
    try:
        code: int = command.run()
    except SystemExit as ended:
        raise RunError(
            f"the command did not finish: a model or its imports ended the program with code {ended.code}; "
            "remove sys.exit from it."
        ) from None
    return code


def _parse(arguments: list[str]) -> Any:
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
