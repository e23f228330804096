"""`vaescope reproduce`: run the experiments of the papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import tyro
from rich.console import Console

from vaescope.cli.output import console as new_console
from vaescope.cli.output import table
from vaescope.cli.train import ExecutorOptions, check_track, track
from vaescope.core.checks import choice, integer
from vaescope.core.errors import InputError, RunError
from vaescope.settings import CHECKPOINT_SECONDS
from vaescope_papers.catalogue import PROFILES, ExperimentInfo, experiments, find_experiment

if TYPE_CHECKING:
    from vaescope.jobs import Task


@dataclass(frozen=True)
class Reproduce:
    """Run the experiments of the papers again and judge their claims.

    Finished members are kept: the same command again trains nothing, and more seeds train only the new ones.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Experiments to run; see --list."""
    all: bool = False
    """Run every experiment, fast ones first."""
    list: bool = False
    """List the experiments and exit."""
    profile: str = "quick"
    """quick: minutes on a laptop. paper: the published settings."""
    out: Path | None = None
    """Folder for the results [default: runs/PROFILE]."""
    seeds: int | None = None
    """How many seeds [default: the profile's]."""
    redraw: bool = False
    """Judge stored results again and write their pages again, without training anything."""
    split: bool = False
    """With --jobs: divide every experiment among the processes, instead of giving each process whole experiments. A
    single experiment is divided without it."""
    device: str = "cpu"
    """Where to compute: cpu, cuda, ..."""
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    """Seconds between two checkpoints, at least."""
    track: str | None = None
    """Log members while they are trained, and when they have finished: the address of an MLflow server,
    tensorboard:FOLDER, or wandb:PROJECT."""
    executor: tyro.conf.OmitArgPrefixes[ExecutorOptions] = field(default_factory=ExecutorOptions)

    def run(self) -> int:
        choice("--profile", self.profile, PROFILES)
        if self.list:
            _print_list()
            return 0
        infos = experiments() if self.all else [find_experiment(name) for name in dict.fromkeys(self.names)]
        if not infos:
            raise InputError("nothing to reproduce: name experiments, or use --all; --list shows them.")
        if self.seeds is not None:
            integer("--seeds", self.seeds)
        self.executor.check()
        if self.split and self.executor.jobs == 1 and self.executor.executor == "local":
            raise InputError("--split divides experiments among processes: add --jobs 2.")
        if self.split and self.executor.executor != "local":
            raise InputError("--split divides experiments among processes of this machine: leave out --executor.")
        check_track(self.track)
        out = self.out or Path("runs") / self.profile
        if self.redraw:
            self._redraw(infos, out)
            return 0
        try:
            self._run_all(infos, out)
        finally:
            track(self.track, [out / info.name for info in infos])
        return 0

    def _redraw(self, infos: Sequence[ExperimentInfo], out: Path) -> None:
        from vaescope_papers.run import redraw, write_index

        console = new_console()
        for info in infos:
            if self.all and not (out / info.name / "results.parquet").exists():
                continue
            _print_claims(console, info.name, [claim.to_data() for claim in redraw(out / info.name)])
        console.print(str(write_index(out, self.profile).resolve()), soft_wrap=True, markup=False)

    def _run_all(self, infos: Sequence[ExperimentInfo], out: Path) -> None:
        from vaescope.core import validation
        from vaescope.jobs import run_in_this_process
        from vaescope_papers.experiment import RunOptions
        from vaescope_papers.run import experiment_tasks, part_tasks, write_index

        validation.device(self.device)
        options = RunOptions(
            self.profile,
            self.seeds,
            device=self.device,
            checkpoint_seconds=self.checkpoint_seconds,
            track=self.track,
        )
        tasks = experiment_tasks(infos, out, options)
        console = new_console()
        failed: dict[str, Exception] = {}
        if self.executor.executor == "local" and self.executor.jobs == 1:
            outcomes = run_in_this_process(tasks)
        elif self.executor.executor == "local" and (self.split or len(tasks) == 1):
            failed = self._solve_parts(part_tasks(infos, out, options, self.executor.jobs))
            outcomes = run_in_this_process([task for task in tasks if task.name not in failed])
        else:
            outcomes = self.executor.run(tasks)
        for name, claims, error in outcomes:
            index = write_index(out, self.profile)  # after every experiment: the page grows as they finish
            if error is not None:
                failed[name] = error
            elif isinstance(claims, list_type):
                _print_claims(console, name, claims)
        if failed:
            _raise_failures(failed, len(tasks))
        console.print(str(index.resolve()), soft_wrap=True, markup=False)

    def _solve_parts(self, parts: Sequence[Task]) -> dict[str, Exception]:
        """Solve the parts of all experiments; the errors of those that failed, by name."""
        failed: dict[str, Exception] = {}
        lost: dict[str, Exception] = {}
        for part, errors, error in self.executor.run(parts):
            if error is not None:
                lost[part] = error
            elif isinstance(errors, dict):
                failed |= errors
        if lost:
            _raise_failures(lost, len(parts))
        return failed


@dataclass(frozen=True)
class Verify:
    """Judge all claims of stored experiments again, from their tables, and compare with the stored verdicts."""

    folder: tyro.conf.Positional[Path]
    """A folder with results of experiments, or one above it, such as results."""

    def run(self) -> int:
        from vaescope_papers.verify import verify

        found = verify(self.folder)
        console = new_console()
        for line in found.differences:
            console.print(line, soft_wrap=True, markup=False)
        if found.differences:
            return 1
        console.print(f"{found.claims} claims of {found.experiments} experiments: identical.", markup=False)
        return 0


list_type = list  # the option `list` hides the built-in name in the class


def _raise_failures(failed: Mapping[str, Exception], total: int) -> None:
    if total == 1:
        raise next(iter(failed.values()))
    listed = "; ".join(f"{name} ({error})" for name, error in failed.items())
    raise RunError(f"{len(failed)} of {total} did not finish: {listed}")


def _print_list() -> None:
    listed = table("experiment", "what it shows", "source")
    for info in experiments():
        listed.add_row(info.name, info.title, info.source)
    new_console().print(listed)


def _print_claims(console: Console, name: str, claims: Sequence[Mapping[str, object]]) -> None:
    listed = table("", "claim", "criterion", "measured", title=name)
    colours = {"holds": "green", "refuted": "red", "not reproduced": "red", "undecided": "yellow"}
    for claim in claims:
        verdict = str(claim["verdict"])
        mark = f"[{colours[verdict]}]{verdict}[/]"
        reason = f"{claim['sentence']} ({claim['reason']})" if verdict == "undecided" else str(claim["sentence"])
        listed.add_row(mark, reason, str(claim["demand"]), str(claim["measured"]))
    console.print(listed)
