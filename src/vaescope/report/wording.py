"""Numbers in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from vaescope.products.diagnose.data import Trial
from vaescope.report.findings import Finding

LARGEST = 1000.0  # factors beyond are not given as numbers


def explained(trial: Trial) -> str:
    """How well something is reconstructed.

    >>> explained(Trial("", 0.784, 0.01, 0.0)), explained(Trial("", -40.0, 0.1, 0.0))
    ('78 % of the variance of x explained', 'a squared error 41 times the variance of x')
    """
    if trial.explained >= 0:
        return f"{100 * trial.explained:.0f} % of the variance of x explained"
    return f"a squared error {times(1 - trial.explained, '')} the variance of x"


def times(factor: float, unit: str = "") -> str:
    """A factor with few digits; absurd ones as such.

    >>> times(0.02), times(1e40), times(3.21)
    ('1/50 times', 'more than 1000 times', '3.2 times')
    """
    if not math.isfinite(factor) or factor > LARGEST:
        return f"more than {LARGEST:.0f} times"
    if factor < 1 / LARGEST:
        return f"less than 1/{LARGEST:.0f} times"
    return f"{factor:.2g} times" if factor >= 0.5 else f"1/{1 / factor:.0f} times"


def amount(value: float) -> str:
    """A quantity with three digits; absurd ones as such.

    >>> amount(0.01234), amount(1473.2), amount(2e29)
    ('0.0123', '1,470', 'above a million')
    """
    if not math.isfinite(value) or value >= 1e6:
        return "above a million"
    if value < 1e-4:
        return "below 0.0001"
    return f"{value:.3g}" if value < 1000 else f"{float(f'{value:.3g}'):,.0f}"


def listed(latents: list[int]) -> str:
    """Some latents.

    >>> listed([3, 1])
    '1, 3'
    """
    return ", ".join(map(str, sorted(latents)[:8])) + (", …" if len(latents) > 8 else "")


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
