"""A diagnosis as text, for `print`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vaescope.findings import Finding


def as_text(name: str, findings: Sequence[Finding], skipped: Mapping[str, str]) -> str:
    """Findings with their evidence, and what was left out.

    >>> print(as_text("model", [Finding("a", "note", "Title.", "Evidence.", "Advice.", "x = 1")], {"gap": "no time"}))
    Diagnosis of model: 1 finding
      note: Title. (a)
        Evidence.
        What to do: Advice.
            x = 1
      left out: gap (no time)
    """
    count = len(findings)
    lines = [f"Diagnosis of {name}: {count or 'no'} finding{'s' * (count != 1)}"]
    for f in findings:
        lines += [f"  {f.severity}: {f.title} ({f.code})", f"    {f.evidence}", f"    What to do: {f.advice}"]
        lines += [f"        {line}" for line in f.line.splitlines()]
    return "\n".join(lines + [f"  left out: {what} ({why})" for what, why in skipped.items()])
