"""`vaescope reproduce`: figures and tables of the papers, from nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tyro
from rich.console import Console

from vaescope.cli.executor import Executing
from vaescope.cli.tables import console as new_console
from vaescope.cli.tables import table
from vaescope.cli.tracking import check_track, track
from vaescope.errors import InputError, RunError
from vaescope.papers.catalogue import CATALOGUE, Entry, check_profile, find


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
    checkpoint: float = 60.0
    """Seconds, at least, between two states of unfinished training."""
    track: str | None = None
    """Log what is finished: an MLflow server's address, or tensorboard:FOLDER."""
    on: tyro.conf.OmitArgPrefixes[Executing] = field(default_factory=Executing)

    def run(self) -> int:
        check_profile(self.profile)
        if self.list:
            _print_list()
            return 0
        entries = list(CATALOGUE) if self.all else [find(name) for name in dict.fromkeys(self.names)]
        if not entries:
            raise InputError("nothing to reproduce: name experiments, or use --all; --list shows them.")
        if self.seeds is not None and self.seeds < 1:
            raise InputError(f"--seeds must be at least 1, got {self.seeds}.")
        self.on.check()
        check_track(self.track)
        out = self.out or Path("runs") / self.profile
        console = new_console()

        from vaescope.papers.run import reproduce, write_index
        from vaescope.training import ProgressBar

        index = write_index(out, self.profile)
        if self.on.executor != "local" or (self.on.jobs > 1 and len(entries) > 1):
            try:
                _reproduce_side_by_side(self, entries, out, console)
            finally:
                track(self.track, [out / entry.name for entry in entries])
            entries = []
        for entry in entries:
            with ProgressBar(entry.name) as monitor:
                claims = reproduce(
                    entry.load(),
                    profile=self.profile,
                    out=out,
                    monitor=monitor,
                    seeds=self.seeds,
                    device=self.device,
                    checkpoint_seconds=self.checkpoint,
                )
            track(self.track, [out / entry.name])
            index = write_index(out, self.profile)
            _print_claims(console, entry.name, [claim.as_data() for claim in claims])
        console.print(str(index.resolve()), soft_wrap=True, markup=False)
        return 0


def _reproduce_side_by_side(command: Reproduce, entries: Sequence[Entry], out: Path, console: Console) -> None:
    from vaescope.papers.jobs import tasks
    from vaescope.papers.run import check_device, write_index

    check_device(command.device)
    failed = []
    told = {
        "profile": command.profile,
        "seeds": command.seeds,
        "device": command.device,
        "checkpoint_seconds": command.checkpoint,
    }
    for name, claims, error in command.on.run(tasks(entries, out, told)):
        write_index(out, command.profile)
        if error is not None:
            failed.append(f"{name} ({error})")
        else:
            _print_claims(console, name, claims)
    if failed:
        raise RunError(f"{len(failed)} of {len(entries)} did not finish: {'; '.join(failed)}")


def _print_list() -> None:
    listed = table("experiment", "what it shows", "source")
    for entry in CATALOGUE:
        listed.add_row(entry.name, entry.title, entry.source)
    new_console().print(listed)


def _print_claims(console: Console, name: str, claims: list[dict[str, object]]) -> None:
    listed = table("", "claim", "demanded", "measured", title=name)
    for claim in claims:
        mark = "[green]holds[/]" if claim["holds"] else "[red]fails[/]"
        listed.add_row(mark, str(claim["sentence"]), str(claim["demand"]), str(claim["measured"]))
    console.print(listed)
