"""`vaescope sweep` and `vaescope status`: many settings at once, and how far they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tyro

from vaescope.cli.executor import Executing
from vaescope.cli.tables import console as new_console
from vaescope.cli.tables import rows_table
from vaescope.cli.tracking import check_track, track
from vaescope.errors import InputError

SHOWN = 40  # rows on the terminal


@dataclass(frozen=True)
class SweepCommand:
    """Train every combination of settings that a YAML file lists.

    Finished members are kept: the same command again trains only what is missing.
    """

    file: tyro.conf.Positional[Path]
    """fit: (or experiment: and settings:), sweep: with a list per setting, and out:; see docs/sweeps.md."""
    out: Path | None = None
    """Folder for the results [default: the file's out:]."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, ..."""
    checkpoint: float = 60.0
    """Seconds, at least, between two states of unfinished training."""
    track: str | None = None
    """Log what is finished: an MLflow server's address, or tensorboard:FOLDER."""
    dry_run: bool = False
    """Say what would be trained, and stop."""
    on: tyro.conf.OmitArgPrefixes[Executing] = field(default_factory=Executing)

    def run(self) -> int:
        from vaescope.sweeps import read_sweep, sweep
        from vaescope.sweeps.memory import free_bytes
        from vaescope.sweeps.run import check_plans

        self.on.check()
        check_track(self.track)
        what = read_sweep(self.file)
        out = self.out or what.out
        if out is None:
            raise InputError(f"say where results go: --out, or out: in {self.file}.")
        console = new_console()
        if self.dry_run:
            check_plans(what)
            shown = [
                {"stack": s.name, "members": len(s.members) or 1, "settings": _words(s.settings)} for s in what.stacks
            ]
            console.print(rows_table(shown[:SHOWN]))
            console.print(f"{what.members} members in {len(what.stacks)} stacks.")
            return 0
        memory = free_bytes() // (self.on.jobs if self.on.executor == "local" else 1)
        try:
            rows = sweep(
                what, out, run=self.on.run, device=self.device, checkpoint_seconds=self.checkpoint, memory=memory
            )
        finally:
            track(self.track, [out])
        names = list(dict.fromkeys(["stack", *what.grid, "seed", "status", "elbo"]))
        console.print(rows_table([{n: row.get(n) for n in names if any(n in r for r in rows)} for row in rows[:SHOWN]]))
        if len(rows) > SHOWN:
            console.print(f"... and {len(rows) - SHOWN} more")
        console.print(str((out / "results.parquet").resolve()), soft_wrap=True, markup=False)
        return 0


def _words(settings: object) -> str:
    return ", ".join(f"{k}={v}" for k, v in dict(settings).items())  # type: ignore[call-overload]


@dataclass(frozen=True)
class Status:
    """Say how far a sweep is: every stack, its members, and what is running."""

    folder: tyro.conf.Positional[Path]
    """The sweep's folder."""

    def run(self) -> int:
        from vaescope.sweeps import status

        rows = status(self.folder)
        console = new_console()
        console.print(rows_table(rows))
        states = [row["state"] for row in rows]
        told = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
        console.print(f"{len(rows)} stacks: {told}.")
        return 0


@dataclass(frozen=True)
class Track:
    """Log what is finished in run folders to MLflow or TensorBoard; what is there already is not logged twice."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    to: str
    """An MLflow server's address, or tensorboard:FOLDER."""

    def run(self) -> int:
        from vaescope.jobs.tracking import log

        for folder in self.folders:
            print(f"{folder}: {log(folder, self.to)} members logged")
        return 0
