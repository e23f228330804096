"""Our values next to the published ones, figure by figure, and why they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vaescope.papers.statistics import median
from vaescope.plain import Plain, plain_fields


@dataclass(frozen=True)
class ComparisonRow:
    """One setting of a published panel: our median and range, the published value, and their ratio."""

    setting: str
    ours: float | None
    lowest: float | None
    highest: float | None
    published: float | str | None

    @property
    def ratio(self) -> float | None:
        """Ours / published; None unless both are numbers of the same sign."""
        if self.ours is None or not isinstance(self.published, float) or self.published * self.ours <= 0:
            return None
        return self.ours / self.published

    def to_data(self) -> dict[str, Plain]:
        return plain_fields(self) | {"ours / published": self.ratio}


def compare(setting: str, ours: Sequence[float], published: float | str | None) -> ComparisonRow:
    """A row from the values of all members.

    >>> compare("γ² = 10", [1.0, 2.0, 4.0], 4.0).ratio
    0.5
    """
    if not len(ours):
        return ComparisonRow(setting, None, None, None, published)
    return ComparisonRow(setting, median(ours), float(min(ours)), float(max(ours)), published)


def compare_precisions(ours: Mapping[float, Sequence[float]], published: Mapping[float, float]) -> list[ComparisonRow]:
    """A row for every published γ².

    >>> [row.setting for row in compare_precisions({10.0: [1.0]}, {10.0: 2.0, 100.0: 3.0})]
    ['γ² = 10', 'γ² = 100']
    """
    return [compare(f"γ² = {p:g}", ours.get(p, ()), published[p]) for p in sorted(published)]


@dataclass(frozen=True)
class Comparison:
    """One panel of a published figure or table."""

    figure: str
    quantity: str
    rows: Sequence[ComparisonRow]
    why: str
    """What differs and why, or that nothing does."""

    def to_data(self) -> dict[str, Plain]:
        return {
            "figure": self.figure,
            "quantity": self.quantity,
            "entries": [row.to_data() for row in self.rows],
            "why": self.why,
        }
