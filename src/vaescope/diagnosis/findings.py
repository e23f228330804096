"""A finding: what was seen, how bad it is, the numbers behind it, and one sentence of advice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SEVERITIES = ("note", "warning", "error")


@dataclass(frozen=True)
class Finding:
    code: str
    """A name that scripts can rely on, such as `collapsed`."""
    severity: str
    title: str
    evidence: str
    advice: str

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def worst(findings: Sequence[Finding]) -> str | None:
    """The highest severity among them.

    >>> worst([Finding("a", "note", "", "", ""), Finding("b", "warning", "", "", "")])
    'warning'
    """
    return max((f.severity for f in findings), key=SEVERITIES.index, default=None)


def by_severity(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first; otherwise as they came."""
    return sorted(findings, key=lambda f: -SEVERITIES.index(f.severity))
