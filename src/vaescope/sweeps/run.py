"""From a sweep to tasks, and through an executor to results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vaescope.data import Dataset
from vaescope.distributions import Prior
from vaescope.distributions.priors import PRIORS
from vaescope.errors import InputError, RunError
from vaescope.fitting import Plan, planned
from vaescope.jobs import Outcome, Task, run_inside
from vaescope.papers import jobs
from vaescope.runs.files import Row, read_json, remove_leftovers, write_json
from vaescope.runs.lock import locked
from vaescope.runs.store import CHECKPOINT_SECONDS
from vaescope.sweeps.memory import free_bytes, largest_stack
from vaescope.sweeps.sweep import DATA, TRAINING, Stack, Sweep
from vaescope.sweeps.table import write_results
from vaescope.training import MemberSpec, Monitor, TrainSettings

PLAN = "sweep.json"
STACKS = "stacks"
FILES = ("data", "auxiliary")
Run = Callable[[Sequence[Task]], Iterable[Outcome]]


def sweep(
    what: Sweep,
    out: str | Path,
    *,
    run: Run | None = None,
    device: str = "cpu",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    memory: int | None = None,
) -> list[Row]:
    """Train every cell that is not in the folder yet; a row per member, with the settings that it differs in.

    `run` carries tasks out: by default one after another in this process; `vs.jobs.run_here` in processes of their
    own, a few at a time (for scripts with an `if __name__ == "__main__":`). `memory` (bytes) is what one stack may
    take; it is written down, so that a resumed sweep has the same stacks.
    """
    folder = Path(out)
    check_plans(what)
    with locked(folder):
        remove_leftovers(folder)
        limit = _tied(folder, what, memory)
        tasks = [_task(stack, folder, device, checkpoint_seconds, limit) for stack in what.stacks]
        execute = run or run_inside
        failed = [f"{found.name} ({found.error})" for found in execute(tasks) if found.error is not None]
        rows = write_results(what, folder)
    if failed:
        raise RunError(f"{len(failed)} of {len(tasks)} stacks did not finish: {'; '.join(failed[:5])}")
    return rows


def _tied(folder: Path, what: Sweep, memory: int | None) -> int:
    """Refuse a folder of another sweep; what a stack may take, as it was when the sweep began."""
    file = folder / PLAN
    if file.exists():
        known = read_json(file)
        begun = any(folder.glob(f"{STACKS}/*"))
        if begun and (not isinstance(known, dict) or known.get("sweep") != what.as_data()):
            raise RunError(f"{folder} holds another sweep; choose another --out or remove it.")
        if begun:
            return known["memory"] if isinstance(known.get("memory"), int) else free_bytes()
    elif (folder / "config.json").exists():
        raise RunError(f"{folder} holds a run; choose another --out.")
    limit = free_bytes() if memory is None else memory
    if not file.exists() and any(folder.glob(f"{STACKS}/*")):
        raise RunError(f"{folder} has stacks but no {PLAN}; choose another --out or remove it.")
    write_json(file, {"sweep": what.as_data(), "memory": limit, "stacks": {s.name: _about(s) for s in what.stacks}})
    return limit


def check_plans(what: Sweep) -> None:
    """Every stack's settings, before anything is trained; data are opened once."""
    if what.experiment is not None:
        return
    opened: dict[str, Dataset] = {}
    for stack in what.stacks:
        key = repr([stack.settings.get(name) for name in DATA])
        opened[key] = opened.get(key) or _opened(stack.settings)
        plan_of(stack.settings, stack.members, data=opened[key])


def _about(stack: Stack) -> dict[str, Any]:
    return {"settings": dict(stack.settings), "members": len(stack.members) or None}


@dataclass(frozen=True)
class FitWork:
    """A stack of `fit`, as a worker is told of it."""

    settings: Mapping[str, Any]
    members: tuple[Mapping[str, Any], ...]
    device: str
    checkpoint_seconds: float
    memory: int


def _task(stack: Stack, folder: Path, device: str, checkpoint_seconds: float, memory: int) -> Task:
    own = folder.resolve() / STACKS / stack.name
    if "experiment" not in stack.settings:
        settings = {name: _resolved(value) if name in FILES else value for name, value in stack.settings.items()}
        return Task(stack.name, fit_stack, FitWork(settings, stack.members, device, checkpoint_seconds, memory), own)
    changed = {k: v for k, v in stack.settings.items() if k not in ("experiment", "profile")}
    name, profile = stack.settings["experiment"], stack.settings["profile"]
    job = jobs.Job(name, profile, device=device, checkpoint_seconds=checkpoint_seconds, changed=changed)
    return Task(stack.name, jobs.work, job, own)


def fit_stack(work: FitWork, out: Path, monitor: Monitor) -> int:
    """In a worker: train what is missing of a stack; how many members it has."""
    plan = plan_of(work.settings, work.members, work.device)
    most = largest_stack(plan, work.memory)
    plan.carried_out(monitor, out, checkpoint_seconds=work.checkpoint_seconds, most=most, load=False)
    return len(plan.specs)


def _resolved(value: Any) -> Any:
    """A file by its whole name: workers may stand elsewhere."""
    return str(Path(value).resolve()) if isinstance(value, str) and Path(value).exists() else value


def _opened(settings: Mapping[str, Any]) -> Dataset:
    from vaescope.data.catalogue import open_dataset

    chosen: dict[str, Any] = {name: settings[name] for name in DATA if name in settings and name != "data"}
    return open_dataset(str(settings["data"]), **chosen)


def plan_of(
    settings: Mapping[str, Any],
    members: Sequence[Mapping[str, Any]],
    device: str = "cpu",
    *,
    data: Dataset | None = None,
) -> Plan:
    """What `fit` would do with these settings, for these members."""
    data = _opened(settings) if data is None else data
    training = {name: settings[name] for name in TRAINING if name in settings} | {"device": device}
    rest = {name: value for name, value in settings.items() if name not in (*DATA, *TRAINING)}
    if "hidden" in rest:
        rest["hidden"] = tuple(rest["hidden"]) if isinstance(rest["hidden"], list) else (rest["hidden"],)
    if "prior" in rest:
        rest["prior"] = prior_of(rest["prior"])
    if "auxiliary" in rest:
        rest["auxiliary"] = _auxiliary(rest["auxiliary"], data, settings.get("rows"))
        rest.setdefault("model", "ivae")
    numbered = [member for member in members if "precision" in member]
    if numbered:
        rest["precision"] = float(numbered[0]["precision"])
    try:
        plan = planned(data, settings=TrainSettings(**training), **rest)
    except TypeError as error:
        raise InputError(f"a setting of this sweep is of the wrong kind: {error}.") from None
    specs = [MemberSpec(m["seed"], precision=m.get("precision", 1.0), beta=m["beta"]) for m in members]
    return replace(plan, specs=specs)


def prior_of(given: Any) -> Prior:
    """By its name, or with numbers of its own: {kind: uniform, low: -1, high: 1}."""
    about = {"kind": given} if isinstance(given, str) else given
    if not isinstance(about, dict) or about.get("kind") not in PRIORS:
        raise InputError(f"prior must be one of {', '.join(PRIORS)}, or {{kind: ..., and its numbers}}, got {given!r}.")
    numbers = {name: value for name, value in about.items() if name != "kind"}
    try:
        return PRIORS[about["kind"]](**{name: float(value) for name, value in numbers.items()})
    except (TypeError, ValueError):
        raise InputError(f"prior {about['kind']} does not take {numbers!r}.") from None


def _auxiliary(given: Any, data: Any, rows: int | None) -> torch.Tensor:
    from vaescope.data.auxiliary import load_auxiliary

    found = load_auxiliary(str(given), data, rows)
    assert found is not None
    return found
