"""`vaescope sweep`, `vaescope status` and `vaescope track`: many settings at once, their status, and their export."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from vaescope.cli.output import console as new_console
from vaescope.cli.output import rows_table
from vaescope.cli.train import ExecutorOptions, check_track, track
from vaescope.core.errors import InputError
from vaescope.settings import CHECKPOINT_SECONDS

if TYPE_CHECKING:
    from vaescope.sweeps import Sweep

SHOWN_ROWS = 40


@dataclass(frozen=True)
class SweepCommand:
    """Train every combination of the settings in a YAML file.

    Finished members are kept: the same command again trains only the missing ones.
    """

    file: tyro.conf.Positional[Path]
    """fit: (or experiment: and settings:), sweep: with a list of values per setting, and out:; see docs/sweeps.md."""
    out: Path | None = None
    """Folder for the results [default: out: in the file]."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, ..."""
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    """Seconds between two checkpoints, at least."""
    track: str | None = None
    """Log members while they are trained, and when they have finished: the address of an MLflow server,
    tensorboard:FOLDER, or wandb:PROJECT."""
    dry_run: bool = False
    """Print what would be trained and exit."""
    executor: tyro.conf.OmitArgPrefixes[ExecutorOptions] = field(default_factory=ExecutorOptions)

    def run(self) -> int:
        from vaescope.core import validation
        from vaescope.sweeps import SweepOptions, read_sweep, run_sweep
        from vaescope.sweeps.run import free_bytes

        validation.device(self.device)
        self.executor.check()
        check_track(self.track)
        sweep = read_sweep(self.file)
        out = self.out or sweep.out
        if out is None:
            raise InputError(f"the folder for the results is missing: give --out, or out: in {self.file}.")
        if self.dry_run:
            return _print_plan(sweep)
        memory = free_bytes() // (self.executor.jobs if self.executor.executor == "local" else 1)
        options = SweepOptions(self.device, self.checkpoint_seconds, memory, self.track)
        try:
            rows = run_sweep(sweep, out, executor=self.executor.run, options=options)
        finally:
            track(self.track, [out])
        console = new_console()
        names = list(dict.fromkeys(["stack", *sweep.grid, "seed", "status", "elbo"]))
        shown = [{n: row.get(n) for n in names if any(n in r for r in rows)} for row in rows[:SHOWN_ROWS]]
        console.print(rows_table(shown))
        if len(rows) > SHOWN_ROWS:
            console.print(f"... and {len(rows) - SHOWN_ROWS} more")
        console.print(str((out / "results.parquet").resolve()), soft_wrap=True, markup=False)
        return 0


def _print_plan(sweep: Sweep) -> int:
    from vaescope.sweeps.run import check_jobs

    check_jobs(sweep)
    rows = []
    for stack in sweep.stacks:
        settings = ", ".join(f"{name}={value}" for name, value in stack.settings.items())
        rows.append({"stack": stack.name, "members": len(stack.members) or 1, "settings": settings})
    console = new_console()
    console.print(rows_table(rows[:SHOWN_ROWS]))
    console.print(f"{sweep.members} members in {len(sweep.stacks)} stacks.")
    return 0


@dataclass(frozen=True)
class Status:
    """Show the status of a sweep: every stack, its finished members, and what is running."""

    folder: tyro.conf.Positional[Path]
    """The folder of the sweep."""

    def run(self) -> int:
        from vaescope.sweeps import sweep_status

        rows = sweep_status(self.folder)
        console = new_console()
        console.print(rows_table(rows))
        states = [row["state"] for row in rows]
        counts = ", ".join(f"{states.count(s)} {s}" for s in dict.fromkeys(states))
        console.print(f"{len(rows)} stacks: {counts}.")
        return 0


@dataclass(frozen=True)
class Track:
    """Export the finished members of run folders to MLflow or TensorBoard; members that are there are skipped."""

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders."""
    to: str
    """The address of an MLflow server, or tensorboard:FOLDER."""

    def run(self) -> int:
        from vaescope.jobs.tracking import export_run

        for folder in self.folders:
            print(f"{folder}: {export_run(folder, self.to)} members exported")
        return 0
