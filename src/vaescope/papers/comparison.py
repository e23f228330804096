"""Ours beside the authors' published values, figure by figure, and why they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vaescope.papers.columns import column
from vaescope.runs.files import Row


@dataclass(frozen=True)
class Comparison:
    """One panel of a published figure: a value per setting, ours with its range over members, theirs."""

    figure: str
    quantity: str
    entries: Sequence[Row]
    why: str
    """What differs and why; or that nothing does."""

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def entry(setting: str, ours: Sequence[float], theirs: float | str | None) -> Row:
    """A line of a comparison; ratio only between numbers of one sign.

    >>> entry("γ² = 10", [1.0, 2.0, 4.0], 4.0)["ours / theirs"]
    0.5
    """
    middle = float(np.median(ours)) if len(ours) else None
    comparable = middle is not None and isinstance(theirs, float) and theirs * middle > 0
    return {
        "setting": setting,
        "ours": middle,
        "lowest": float(min(ours)) if len(ours) else None,
        "highest": float(max(ours)) if len(ours) else None,
        "published": theirs,
        "ours / theirs": middle / theirs if comparable else None,  # type: ignore[operator]
    }


def by_precision(rows: Sequence[Row], name: str, theirs: Mapping[float, float | None]) -> list[Row]:
    """A line per γ² that was published."""
    return [entry(f"γ² = {p:g}", column(rows, name, precision=p), value) for p, value in sorted(theirs.items())]
