"""A sweep as data: settings that all cells share, settings that differ, and which cells form one stack."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from vaescope.core.checks import choice, integer, number, shown
from vaescope.core.errors import InputError, require
from vaescope.core.serialization import Plain
from vaescope.runs.files import Row, is_locked, malformed_as_run_error, read_json, write_rows
from vaescope.runs.store import read_table
from vaescope.settings import MAX_SEEDS, flat_settings, schedule_from
from vaescope_papers.catalogue import PROFILES, find_experiment

MAX_FILE_BYTES = 2**20


def read_yaml(path: Path) -> Mapping[str, Plain]:
    """The settings in a sweep file by name.

    Args:
        path: a YAML file.
    """
    yaml = require("yaml", "reading sweep files")
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MB; it is not a sweep file.")
        found = yaml.load(path.read_text(encoding="utf-8"), _safe_loader())
    except OSError as error:
        raise InputError(f"cannot read {path}: {(error.strerror or str(error)).lower()}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"cannot read {path} as YAML: {reason}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise InputError(f"{path} must have fit: or experiment:, and sweep: with a list of values per setting.")
    return found


@cache
def _safe_loader() -> type:
    """A loader of plain data without aliases: a few nested aliases can expand to more than memory holds."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("aliases (*) are not supported; write the value again")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            repeated = next((name for name in names if names.count(name) > 1), None)
            if repeated is not None:
                raise yaml.YAMLError(f"{repeated} occurs twice; write each setting once")
            found: dict[object, object] = super().construct_mapping(node, deep)
            return found

    Loader.add_implicit_resolver(  # YAML 1.1 reads 1e-3 as text
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )
    return Loader


DATA_SETTINGS = ("data", "array", "factors", "rows", "auxiliary")
MAX_CELLS = 100_000


@dataclass(frozen=True)
class MemberCell:
    """What one member of a stack differs in; no precision where it is found in training."""

    beta: float
    seed: int
    precision: float | None = None
    kl_schedule: str = "constant"


@dataclass(frozen=True)
class StackPlan:
    """Cells that are trained together: one task."""

    settings: Mapping[str, Plain]
    members: tuple[MemberCell, ...] = ()
    """The members of a stack of `fit`; none for an experiment."""
    part: int = 0
    """Which part of the members with these settings, where they are split into several stacks."""

    @property
    def name(self) -> str:
        """The name of its folder, which depends on its settings and its part alone."""
        text = json.dumps(_with_floats(self.settings), sort_keys=True)
        return "stack-" + hashlib.sha256(text.encode()).hexdigest()[:12] + (f"-{self.part}" if self.part else "")


def _with_floats(value: Plain) -> Plain:
    """The same settings with integers as floats: 1 and 1.0 are the same setting."""
    if isinstance(value, Mapping):
        return {name: _with_floats(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_floats(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else value


@dataclass(frozen=True)
class Sweep:
    """Settings of `fit` or of an experiment; every combination of the values in `grid` is a cell."""

    common: Mapping[str, Plain]
    """Settings that all cells share, by name. A sweep of `fit` needs `data` and `latent_dim`, here or in `grid`."""
    grid: Mapping[str, Sequence[Plain]]
    """A list of values per setting; no setting may be in `common` too."""
    experiment: str | None = None
    """Name of an experiment, as for `vaescope reproduce`; None for a sweep of `fit`."""
    profile: str = "quick"
    """Size of the experiment: quick, laptop or paper; not used by a sweep of `fit`."""
    out: Path | None = None
    """Folder for the results, as in the file; `run_sweep` takes its own."""
    max_members: int | None = None
    """Members of a stack, at most: more are split into several stacks, for several processes."""
    stacks: list[StackPlan] = field(init=False)
    """Cells that are trained together, each stack as one task."""

    def __post_init__(self) -> None:
        _check_grid(self.common, self.grid)
        if self.max_members is not None:
            integer("max_members", self.max_members)
            if self.experiment is not None:
                raise InputError("max_members applies to sweeps of fit, not of an experiment.")
        if self.experiment is None:
            given = {**self.common, **self.grid}
            # the settings that a sweep of `fit` may have
            not_trained = ("out", "checkpoint_seconds", "device")  # where and how a sweep runs
            _check_names(
                "fit", given, (*DATA_SETTINGS, *(name for name in flat_settings() if name not in not_trained), "seed")
            )
            if "data" not in given or "latent_dim" not in given:
                raise InputError("a sweep of fit needs data and latent_dim, under fit: or under sweep:.")
        else:
            choice("profile", self.profile, PROFILES)
            from vaescope_papers.experiment import RunOptions

            experiment = find_experiment(self.experiment).load()
            for changes in (self.common, *({key: value} for key, values in self.grid.items() for value in values)):
                experiment.settings(RunOptions(self.profile, changes=changes))
        object.__setattr__(self, "stacks", _stacks(self))

    @property
    def members(self) -> int:
        """Cells of all stacks."""
        return sum(max(1, len(stack.members)) for stack in self.stacks)

    def to_data(self) -> dict[str, Plain]:
        """What a sweep folder belongs to."""
        data = {
            "experiment": self.experiment,
            "profile": self.profile,
            "common": dict(self.common),
            "grid": dict(self.grid),
        } | ({} if self.max_members is None else {"max_members": self.max_members})
        plain: dict[str, Plain] = json.loads(json.dumps(data, default=str))
        return plain


# reading a file -------------------------------------------------------------------------------


def read_sweep(file: str | Path) -> Sweep:
    """A sweep from a YAML file.

    The file has `fit:` with settings, or `experiment:` with its name and `settings:`; `sweep:` with a list of values
    per setting; and `out:`.

    Args:
        file: path of the file.
    """
    path = Path(file)
    found = read_yaml(path)
    _check_names(str(path), found, ("fit", "experiment", "profile", "settings", "sweep", "max_members", "out"))
    if ("fit" in found) == ("experiment" in found):
        raise InputError(f"{path} must have either fit: or experiment:.")
    if "fit" in found and "settings" in found:
        raise InputError(f"{path} has both fit: and settings:; write the settings of fit under fit: itself.")
    common = _settings_of(path, found, "fit" if "fit" in found else "settings")
    for name in ("experiment", "profile", "out"):
        if not isinstance(found.get(name, ""), str):
            raise InputError(f"{name}: in {path} must be text, got {shown(found[name])}.")
    grid = _settings_of(path, found, "sweep")
    for name, values in grid.items():
        if not isinstance(values, list):
            raise InputError(f"{name} under sweep must be a list of values, got {shown(values)}.")
    return Sweep(
        common=common,
        grid={name: list(values) for name, values in grid.items() if isinstance(values, list)},
        experiment=None if "experiment" not in found else str(found["experiment"]),
        profile=str(found.get("profile", "quick")),
        out=Path(str(found["out"])) if found.get("out") else None,
        max_members=integer("max_members", found["max_members"]) if "max_members" in found else None,
    )


def _settings_of(path: Path, found: Mapping[str, Plain], key: str) -> Mapping[str, Plain]:
    part = found.get(key) or {}
    if not isinstance(part, dict) or not all(isinstance(name, str) for name in part):
        raise InputError(f"{key}: in {path} must be settings with their values.")
    return part


# checks ---------------------------------------------------------------------------------------


def _check_names(name: str, given: Mapping[str, object], known: Sequence[str]) -> None:
    unknown = [key for key in given if key not in known]
    if unknown:
        raise InputError(f"{name} has no setting {unknown[0]!r}; it has {', '.join(known)}.")


def _check_grid(common: Mapping[str, Plain], grid: Mapping[str, Sequence[Plain]]) -> None:
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{name} under sweep must be a list of values, got {shown(values)}.")
        if name in common:
            raise InputError(f"{name} is both fixed and swept; specify only one.")
    for value in (*common.values(), *grid.values()):
        _check_plain(value)
    cells = math.prod(len(values) for values in grid.values())
    if cells > MAX_CELLS:
        raise InputError(f"this sweep has {cells} combinations; the limit is {MAX_CELLS}.")


def _check_plain(value: object) -> None:
    """Numbers, text, and lists and mappings of them, as in JSON."""
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _check_plain(item)
    elif value is not None and not isinstance(value, str | int | float | bool):
        raise InputError(f"values must be numbers, text or lists of them, got {shown(value)}.")


# stacks ---------------------------------------------------------------------------------------


def _stacks(sweep: Sweep) -> list[StackPlan]:
    combinations = [
        dict(sweep.common) | dict(zip(sweep.grid, values, strict=True))
        for values in itertools.product(*sweep.grid.values())
    ]
    if sweep.experiment is not None:
        info: dict[str, Plain] = {"experiment": sweep.experiment, "profile": sweep.profile}
        plans = [StackPlan(info | settings) for settings in combinations]
        return list({plan.name: plan for plan in plans}.values())
    groups: dict[str, tuple[dict[str, Plain], list[MemberCell]]] = {}
    for settings in combinations:
        shared, members = _split_members(settings)
        known = groups.setdefault(StackPlan(shared).name, (shared, []))[1]
        known += [member for member in members if member not in known]
    found = []
    for shared, members in groups.values():
        size = sweep.max_members or len(members)
        found += [StackPlan(shared, tuple(members[k : k + size]), k // size) for k in range(0, len(members), size)]
    return found


def _split_members(settings: Mapping[str, Plain]) -> tuple[dict[str, Plain], list[MemberCell]]:
    """What a stack shares, and its members: precision (where it is a number), beta, schedule and seed."""
    rest = dict(settings)
    if "seed" in rest and "seeds" in rest:
        raise InputError("seed (a seed) and seeds (how many) are both given; specify only one.")
    seeds = [rest.pop("seed")] if "seed" in rest else list(range(_seed_count(rest.pop("seeds", 1))))
    beta = number("beta", rest.pop("beta", 1.0), minimum=0.0)
    # one schedule or a list of them, in their text form
    value = rest.pop("kl_schedule", "constant")
    given = value if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in given):
        raise InputError(f"kl_schedule must be text such as linear(steps=1000), got {shown(value)}.")
    schedules = [str(schedule_from(str(text))) for text in given]
    precision = None
    if not isinstance(rest.get("precision", "optimal"), str):
        precision = number("precision", rest.pop("precision"), above=0.0, hint="it is 1 / decoder variance")
    return rest, [
        MemberCell(beta, integer("seed", seed, minimum=0), precision, text) for text in schedules for seed in seeds
    ]


def _seed_count(value: Plain) -> int:
    if not 1 <= (count := integer("seeds", value)) <= MAX_SEEDS:
        raise InputError(f"seeds must be 1 to {MAX_SEEDS}, got {value}.")
    return count


def sweep_results(sweep: Sweep, folder: Path) -> list[Row]:
    """A row per finished member: the settings that were swept, then what was measured."""
    rows: list[Row] = []
    for plan in sweep.stacks:
        swept = {name: _table_value(plan.settings[name]) for name in sweep.grid if name in plan.settings}
        stack = folder / "stacks" / plan.name
        run = stack / str(plan.settings["experiment"]) if "experiment" in plan.settings else stack
        found = read_table(run, "results")
        rows += [{"stack": plan.name} | swept | {k: v for k, v in row.items() if k not in swept} for row in found]
    mixed = [name for name in sweep.grid if len({_column_kind(row[name]) for row in rows if name in row}) > 1]
    return [{k: str(v) if k in mixed else v for k, v in row.items()} for row in rows]


def _column_kind(value: Plain) -> str:
    """The kind of value that a column holds: Parquet cannot mix kinds."""
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def write_results(sweep: Sweep, folder: Path) -> list[Row]:
    rows = sweep_results(sweep, folder)
    if rows:
        write_rows(folder / "results.parquet", rows)
    return rows


def _table_value(value: Plain) -> Plain:
    """A setting as a table column can hold it."""
    return value if isinstance(value, str | int | float | bool) else str(value)


def sweep_status(folder: str | Path) -> list[Row]:
    """A row per stack: its settings, how many members are finished, and its state.

    Args:
        folder: the folder of a sweep, finished or not.
    """
    path = Path(folder)
    if not (path / "sweep.json").exists():
        raise InputError(f"{path} is not the folder of a sweep: it has no sweep.json.")
    known = read_json(path / "sweep.json")
    stacks = known.get("stacks") if isinstance(known, dict) else None
    if not isinstance(stacks, dict):
        raise InputError(f"{path / 'sweep.json'} does not describe a sweep.")
    with malformed_as_run_error(path / "sweep.json"):
        common = known.get("sweep", {}).get("common", {})
        return [_status_row(path / "stacks" / name, name, plan, common) for name, plan in stacks.items()]


def _status_row(folder: Path, name: str, plan: Mapping[str, Plain], common: Mapping[str, Plain]) -> Row:
    settings = plan.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    run = folder / str(settings["experiment"]) if "experiment" in settings else folder
    trained = len(list((run / "weights").glob("*.safetensors")))
    measured = len(read_table(run, "results"))
    members = plan.get("members")
    total = members if isinstance(members, int) else None
    differs = {k: v for k, v in settings.items() if common.get(k) != v and k not in ("experiment", "profile")}
    done = max(trained, measured)
    return {
        "stack": name,
        "settings": ", ".join(f"{k}={v}" for k, v in differs.items()) or "–",
        "members": f"{done} of {total}" if total is not None else str(done),
        "state": _state(run, total, trained, measured),
    }


def _state(run: Path, total: int | None, trained: int, measured: int) -> str:
    if is_locked(run):
        return "running"
    if (total is not None and measured >= total) or (total is None and (run / "report.html").exists()):
        return "finished"
    return "interrupted" if (run / "unfinished.json").exists() or trained or measured else "waiting"
