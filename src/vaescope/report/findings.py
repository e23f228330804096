"""A finding: what is wrong, how severe it is, the evidence, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

SEVERITIES = ("note", "warning", "error")
RENAMED_CODES = {
    "over-wide": "too-many-latents",
    "repeats-prior": "uninformative",
    "amortisation": "amortization",
    "log-variance": "negative-variance",  # of `vs.diagnose`; `vs.Watch` has a finding of this name
}
"""Former codes of findings, accepted for one release by `Report.find`."""


@dataclass(frozen=True)
class Finding:
    code: str
    """A stable name for scripts, such as `collapsed`."""
    severity: str
    title: str
    evidence: str
    advice: str
    line: str = ""
    """The changed line of code, if there is one."""

    def to_data(self) -> dict[str, str]:
        return asdict(self)


def worst_severity(findings: Sequence[Finding]) -> str | None:
    """The highest severity; None without findings.

    >>> worst_severity([Finding("a", "note", "", "", ""), Finding("b", "warning", "", "", "")])
    'warning'
    """
    return max((f.severity for f in findings), key=SEVERITIES.index, default=None)


def by_severity(findings: Sequence[Finding]) -> list[Finding]:
    """Most severe first; otherwise in the given order."""
    return sorted(findings, key=lambda f: -SEVERITIES.index(f.severity))
