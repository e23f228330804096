"""Which command, and what a mistake looks like."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import tyro

from vaescope.cli.datasets import Datasets
from vaescope.cli.diagnose import Diagnose
from vaescope.cli.explore import Explore
from vaescope.cli.reproduce import Reproduce
from vaescope.cli.sweep import Status, SweepCommand, Track
from vaescope.cli.train import Train
from vaescope.errors import InputError, RunError


@dataclass(frozen=True)
class Version:
    """Print the version."""

    def run(self) -> int:
        from vaescope import __version__

        print(__version__)
        return 0


COMMANDS: dict[str, Any] = {
    "reproduce": Reproduce,
    "train": Train,
    "sweep": SweepCommand,
    "status": Status,
    "track": Track,
    "diagnose": Diagnose,
    "explore": Explore,
    "datasets": Datasets,
    "version": Version,
}


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2."""
    try:
        sys.exit(dispatch(sys.argv[1:]))
    except (InputError, RunError) as error:
        print(f"vaescope: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("vaescope: interrupted; what was finished is kept, the same command goes on from there.", file=sys.stderr)
        sys.exit(130)


def dispatch(arguments: list[str]) -> int:
    """Run one command; its exit code."""
    command = tyro.extras.subcommand_cli_from_dict(
        COMMANDS,
        args=arguments or ["--help"],
        prog="vaescope",
        description="Why a VAE disentangles, whether yours does, and what to change.",
    )
    code: int = command.run()
    return code
