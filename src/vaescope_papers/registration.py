"""The protocol of a run, its settings and claims, stored with a hash when it starts, so that later changes are visible.

`protocol.json` has the protocol, the time at which it was first stored, whether there were results by then, and every
change of it after that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from vaescope.core.serialization import Plain, plain_fields, to_plain
from vaescope.runs.files import json_data, malformed_as_run_error, read_json, write_json
from vaescope_papers.claims import ClaimSpec, ClaimSpecs, D, R, S

FILE = "protocol.json"


def protocol_of(specs: ClaimSpecs[R, S], settings: S) -> dict[str, Plain]:
    """Settings and claims as plain data: everything that is decided before results are known."""
    return {"settings": plain_fields(settings), "claims": [_declared(spec) for spec in specs]}


def _declared(spec: ClaimSpec[R, S, D]) -> dict[str, Plain]:
    names = ("sentence", "source", "scale", "family", "looks", "robust_over", "published_runs")
    return {name: to_plain(getattr(spec, name)) for name in names} | {
        "kind": str(spec.kind),
        "demand": spec.criterion.demand,
        "requires": [condition_name(condition) for condition in spec.requires],
    }


def condition_name(condition: object) -> str:
    """What a condition is called: the function that made it.

    >>> from vaescope_papers.claims import members_converged
    >>> condition_name(members_converged())
    'members_converged'
    """
    return str(getattr(condition, "__qualname__", type(condition).__name__)).partition(".<locals>")[0]


def fingerprint(data: object) -> str:
    """SHA-256 of plain data in canonical JSON.

    >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    True
    """
    text = json.dumps(json_data(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Change:
    """A protocol that replaced an earlier one."""

    date: str
    what: tuple[str, ...]
    after_results: bool
    hash: str


@dataclass(frozen=True)
class Registration:
    """When a protocol was stored first, and what was changed since."""

    date: str
    after_results: bool
    hash: str
    """Of the current protocol."""
    protocol: Mapping[str, Plain]
    changes: tuple[Change, ...] = ()

    @property
    def words(self) -> str:
        """For the page."""
        if self.after_results:
            return "The claims were written after the results were known."
        lines = [f"Settings and claims were registered on {self.date}, before there were results."]
        for change in self.changes:
            known = "after results were known" if change.after_results else "before there were results"
            lines.append(f"Changed on {change.date}, {known}: {'; '.join(change.what).rstrip('.')}.")
        return " ".join(lines)

    def changed(self, protocol: Mapping[str, Plain], *, date: str, after_results: bool) -> Registration:
        """With another protocol, and what is different in it."""
        found = fingerprint(protocol)
        if found == self.hash:
            return self
        change = Change(date, tuple(differences(self.protocol, protocol)), after_results, found)
        return replace(self, hash=found, protocol=protocol, changes=(*self.changes, change))


def register(
    folder: Path, protocol: Mapping[str, Plain], *, after_results: bool, now: datetime | None = None
) -> Registration:
    """Store the protocol of a run folder, or its change if it has another one.

    Args:
        folder: of the run.
        protocol: of the run that starts.
        after_results: whether the folder has results already.
        now: the time to write down.
    """
    date = (now or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    known = read_registration(folder)
    found = Registration(date, after_results, fingerprint(protocol), protocol)
    if known is not None:
        found = known.changed(protocol, date=date, after_results=after_results)
    if found != known:
        write_json(folder / FILE, json_data(to_plain(found)))
    return found


def read_registration(folder: Path) -> Registration | None:
    """What `register` stored; None if it stored nothing."""
    file = folder / FILE
    if not file.exists():
        return None
    data = read_json(file)
    with malformed_as_run_error(file):
        changes = tuple(
            Change(str(c["date"]), tuple(map(str, c["what"])), bool(c["after_results"]), str(c["hash"]))
            for c in data["changes"]
        )
        return Registration(
            str(data["date"]), bool(data["after_results"]), str(data["hash"]), dict(data["protocol"]), changes
        )


def differences(before: Mapping[str, Plain], after: Mapping[str, Plain]) -> list[str]:
    """What two protocols differ in, in words."""
    old, new = json_data(before), json_data(after)
    assert isinstance(old, dict)
    assert isinstance(new, dict)
    lines = [
        f"{name} {old['settings'].get(name)} → {value}"
        for name, value in new["settings"].items()
        if old["settings"].get(name) != value
    ]
    first, second = ({claim["sentence"]: claim for claim in own["claims"]} for own in (old, new))
    lines += [f"claim left out: {sentence}" for sentence in first if sentence not in second]
    lines += [f"claim added: {sentence}" for sentence in second if sentence not in first]
    lines += [
        f"{', '.join(_other_fields(first[sentence], second[sentence]))} of: {sentence}"
        for sentence in second
        if sentence in first and first[sentence] != second[sentence]
    ]
    return lines or ["the order of claims"]


def _other_fields(before: Mapping[str, Plain], after: Mapping[str, Plain]) -> Sequence[str]:
    return [name for name in after if before.get(name) != after[name]]
