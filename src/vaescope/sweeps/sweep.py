"""A sweep as data: what is common to all cells, what differs, and which cells can share a stack."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from vaescope.errors import InputError
from vaescope.papers.catalogue import check_profile, find
from vaescope.training import TrainSettings

WITHIN = ("precision", "beta", "seed")  # settings in which members of one stack may differ
TRAINING = tuple(f.name for f in fields(TrainSettings) if f.name != "device")
DATA = ("data", "array", "factors", "rows")
MODEL = (
    "model",
    "latent_dim",
    "precision",
    "beta",
    "objective",
    "prior",
    "auxiliary",
    "prior_mean",
    "seeds",
    "seed",
    "network",
    "architecture",
    "hidden",
    "activation",
    "posterior",
    "likelihood",
)
KNOWN = (*DATA, *MODEL, *TRAINING)
TOP = ("fit", "experiment", "profile", "settings", "sweep", "most", "out")
LARGEST_FILE = 2**20
MOST_CELLS = 100_000


@dataclass(frozen=True)
class Stack:
    """Cells that are carried out together: one task."""

    settings: Mapping[str, Any]
    members: tuple[Mapping[str, Any], ...] = ()
    """Of a fit: precision, beta and seed of every member."""
    part: int = 0
    """Which part of the members with these settings, where they are too many for one stack."""

    @property
    def name(self) -> str:
        """A name for its folder that depends on its settings alone, and on its part."""
        about = json.dumps(_normal(self.settings), sort_keys=True)
        return "stack-" + hashlib.sha256(about.encode()).hexdigest()[:12] + (f"-{self.part}" if self.part else "")


def _normal(value: Any) -> Any:
    """1 and 1.0 are the same setting."""
    if isinstance(value, Mapping):
        return {name: _normal(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_normal(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else value


@dataclass(frozen=True)
class Sweep:
    """Settings of `fit` or of an experiment, some of them lists: every combination is a cell."""

    common: Mapping[str, Any]
    grid: Mapping[str, Any]
    experiment: str | None = None
    profile: str = "quick"
    out: Path | None = None
    most: int | None = None
    """Members of a stack, at most: more become several stacks, for several processes."""
    stacks: list[Stack] = field(init=False)

    def __post_init__(self) -> None:
        _check_grid(self.common, self.grid)
        if self.most is not None and (_whole("most", self.most) < 1 or self.experiment is not None):
            raise InputError(f"most is the number of members of a stack of fit, at least 1, got {self.most}.")
        if self.experiment is None:
            _check_names("fit", {**self.common, **self.grid}, KNOWN)
            if "data" not in {**self.common, **self.grid} or "latent_dim" not in {**self.common, **self.grid}:
                raise InputError("a sweep of fit needs data and latent_dim, in fit: or in sweep:.")
        else:
            check_profile(self.profile)
            _check_experiment(self.experiment, self.profile, self.common, self.grid)
        object.__setattr__(self, "stacks", _stacks(self))

    @property
    def members(self) -> int:
        """Cells of all stacks."""
        return sum(max(1, len(stack.members)) for stack in self.stacks)

    def as_data(self) -> dict[str, Any]:
        """What a folder is tied to."""
        found = {
            "experiment": self.experiment,
            "profile": self.profile,
            "common": dict(self.common),
            "grid": dict(self.grid),
        } | ({} if self.most is None else {"most": self.most})
        plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
        return plain


def read_sweep(file: str | Path) -> Sweep:
    """A sweep from YAML: `fit:` or `experiment:` with `settings:`, `sweep:` with a list per setting, and `out:`."""
    path = Path(file)
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is larger than {LARGEST_FILE >> 20} MB, which no sweep is.")
        found = yaml.load(path.read_text(encoding="utf-8"), _Plain)
    except OSError as error:
        raise InputError(f"cannot read {path}: {(error.strerror or str(error)).lower()}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is not YAML that can be read: {reason}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise InputError(f"{path} must have fit: or experiment:, and sweep: with a list per setting.")
    _check_names(str(path), found, TOP)
    if ("fit" in found) == ("experiment" in found):
        raise InputError(f"{path} must have either fit: or experiment:.")
    parts = {name: found.get(name) or {} for name in ("fit", "settings", "sweep")}
    for name, part in parts.items():
        if not isinstance(part, dict) or not all(isinstance(key, str) for key in part):
            raise InputError(f"{name}: in {path} must be settings with their values.")
    for name in ("experiment", "profile", "out"):
        if not isinstance(found.get(name, ""), str):
            raise InputError(f"{name}: in {path} must be a text.")
    if "fit" in found and "settings" in found:
        raise InputError(f"settings: in {path} belongs to experiment:; settings of fit stand under fit: themselves.")
    return Sweep(
        common=parts["fit"] or parts["settings"],
        grid=parts["sweep"],
        experiment=found.get("experiment"),
        profile=found.get("profile", "quick"),
        out=Path(found["out"]) if found.get("out") else None,
        most=_whole("most", found["most"]) if "most" in found else None,
    )


class _Plain(yaml.SafeLoader):
    """Data only, and no aliases: a few of them can stand for more than a memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*) are not taken; write the value again")
        return super().compose_node(parent, index)


_Plain.add_implicit_resolver(  # 1e-3 is a text to YAML 1.1
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _check_names(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        raise InputError(f"{where} has no setting {unknown[0]!r}; it has {', '.join(known)}.")


def _check_grid(common: Mapping[str, Any], grid: Mapping[str, Any]) -> None:
    for name, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InputError(f"{name} under sweep must be a list of values, got {_shown(values)}.")
        if name in common:
            raise InputError(f"{name} is given once and swept as well; leave one of both out.")
    _check_plain([*common.values(), *grid.values()])
    cells = math.prod(len(values) for values in grid.values())
    if cells > MOST_CELLS:
        raise InputError(f"this sweep has {cells} combinations; at most {MOST_CELLS} are taken.")


def _check_plain(value: Any) -> None:
    """Numbers, texts, and lists and settings of such: what JSON knows too."""
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            _check_plain(one)
    elif value is not None and not isinstance(value, str | int | float | bool):
        raise InputError(f"values must be numbers, texts or lists of such, got {_shown(value)}.")


def _check_experiment(name: str, profile: str, common: Mapping[str, Any], grid: Mapping[str, list[Any]]) -> None:
    from vaescope.papers.run import changed_settings

    experiment = find(name).load()
    for changed in (common, *({key: value} for key, values in grid.items() for value in values)):
        changed_settings(experiment, profile, changed)


def _stacks(sweep: Sweep) -> list[Stack]:
    combinations = [
        dict(sweep.common) | dict(zip(sweep.grid, values, strict=True))
        for values in itertools.product(*sweep.grid.values())
    ]
    if sweep.experiment is not None:
        about = {"experiment": sweep.experiment, "profile": sweep.profile}
        return list({stack.name: stack for stack in (Stack(about | one) for one in combinations)}.values())
    groups: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {}
    for one in combinations:
        shared, members = _parted(one)
        known = groups.setdefault(Stack(shared).name, (shared, []))[1]
        known += [member for member in members if member not in known]
    found = []
    for shared, members in groups.values():
        size = sweep.most or len(members)
        found += [Stack(shared, tuple(members[k : k + size]), k // size) for k in range(0, len(members), size)]
    return found


def _parted(settings: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a stack shares, and its members: precision (where it is a number), beta and seed."""
    rest = dict(settings)
    if "seed" in rest and "seeds" in rest:
        raise InputError("seed and seeds are both given: a list of them, or how many; leave one of both out.")
    seeds = [rest.pop("seed")] if "seed" in rest else list(range(_count(rest.pop("seeds", 1))))
    own: dict[str, Any] = {"beta": _number("beta", rest.pop("beta", 1.0))}
    if not isinstance(rest.get("precision", "optimal"), str):
        own["precision"] = _number("precision", rest.pop("precision"))
    members = [own | {"seed": _whole("seed", seed)} for seed in seeds]
    return rest, members


def _count(value: Any) -> int:
    if not 1 <= _whole("seeds", value) <= MOST_CELLS:
        raise InputError(f"seeds must be at least 1 and at most {MOST_CELLS}, got {value}.")
    return int(value)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be a whole number, got {_shown(value)}.")
    if abs(value) >= 2**63:
        raise InputError(f"{name} must be below 2^63, got {value}.")
    return value


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} must be a number, got {_shown(value)}.")
    return float(value)


def _shown(value: Any) -> str:
    return repr(value)[:60]
