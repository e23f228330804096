"""The command line. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console
from rich.table import Table

from vaescope.errors import InputError, RunError
from vaescope.experiments.catalogue import CATALOGUE, check_profile, find


@dataclass(frozen=True)
class Reproduce:
    """Re-run figures and tables of the papers and check their claims.

    Finished members are kept: the same command again trains nothing, more seeds train only the new ones.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Experiments to run; see --list."""
    all: bool = False
    """Run every experiment, the fast ones first."""
    list: bool = False
    """List the experiments and stop."""
    profile: str = "quick"
    """quick: minutes on a laptop. paper: the published settings."""
    out: Path | None = None
    """Folder for the results [default: runs/PROFILE]."""
    seeds: int | None = None
    """How many seeds [default: the profile's]."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, ..."""


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2."""
    try:
        sys.exit(_dispatch(sys.argv[1:]))
    except (InputError, RunError) as error:
        print(f"vaescope: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("vaescope: interrupted; what was finished is kept, the same command goes on from there.", file=sys.stderr)
        sys.exit(130)


def _dispatch(arguments: list[str]) -> int:
    command = tyro.extras.subcommand_cli_from_dict(
        {"reproduce": Reproduce, "version": _Version},
        args=arguments or ["--help"],
        prog="vaescope",
        description="Why a VAE disentangles, whether yours does, and what to change.",
    )
    return _reproduce(command) if isinstance(command, Reproduce) else 0


@dataclass(frozen=True)
class _Version:
    """Print the version."""

    def __post_init__(self) -> None:
        from vaescope import __version__

        print(__version__)


def _reproduce(command: Reproduce) -> int:
    check_profile(command.profile)
    if command.list:
        _print_list()
        return 0
    entries = list(CATALOGUE) if command.all else [find(name) for name in command.names]
    if not entries:
        raise InputError("nothing to reproduce: name experiments, or use --all; --list shows them.")
    if command.seeds is not None and command.seeds < 1:
        raise InputError(f"--seeds must be at least 1, got {command.seeds}.")
    out = command.out or Path("runs") / command.profile
    console = Console(highlight=False)

    from vaescope.experiments.run import reproduce, write_index
    from vaescope.training import Live

    index = write_index(out, command.profile)
    for entry in entries:
        with Live(entry.name) as monitor:
            claims = reproduce(
                entry.load(),
                profile=command.profile,
                out=out,
                monitor=monitor,
                seeds=command.seeds,
                device=command.device,
            )
        index = write_index(out, command.profile)
        _print_claims(console, entry.name, [claim.as_data() for claim in claims])
    console.print(str(index.resolve()), soft_wrap=True, markup=False)
    return 0


def _print_list() -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("experiment", "what it shows", "source"):
        table.add_column(heading)
    for entry in CATALOGUE:
        table.add_row(entry.name, entry.title, entry.source)
    Console(highlight=False).print(table)


def _print_claims(console: Console, name: str, claims: list[dict[str, object]]) -> None:
    table = Table(title=name, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("", "claim", "demanded", "measured"):
        table.add_column(heading)
    for claim in claims:
        mark = "[green]holds[/]" if claim["holds"] else "[red]fails[/]"
        table.add_row(mark, str(claim["sentence"]), str(claim["demand"]), str(claim["measured"]))
    console.print(table)
