"""Claims: a sentence of a paper, what it demands, what was measured, and whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata, spearmanr

SIGNIFICANT = 0.01


@dataclass(frozen=True)
class Claim:
    """One checked statement. `low` and `high` are the spread over seeds, where there are seeds."""

    sentence: str
    source: str
    demand: str
    value: float
    holds: bool
    low: float | None = None
    high: float | None = None
    published: str | None = None
    note: str = ""

    @property
    def measured(self) -> str:
        """The value with its spread, for people."""
        text = show(self.value)
        return text if self.low is None or self.high is None else f"{text} ({show(self.low)} to {show(self.high)})"

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "measured": self.measured}


def show(value: float) -> str:
    """Three significant digits, without needless zeros.

    >>> show(0.000123456), show(-1.0312), show(41234.0)
    ('1.23e-04', '-1.03', '4.12e+04')
    """
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    return f"{value:.3g}" if 1e-3 <= abs(value) < 1e4 else f"{value:.2e}"


def median(values: Sequence[float | int]) -> float:
    return float(np.median(values))


def claim_over(
    values: Sequence[float],
    *,
    holds: Callable[[float], bool],
    pick: Callable[[Sequence[float]], float] = median,
    sentence: str,
    source: str,
    demand: str,
    published: str | None = None,
    note: str = "",
) -> Claim:
    """A claim about values over members: one of them (the median, unless `pick` says otherwise) is judged.

    Without any finished member nothing is claimed to hold.

    >>> claim_over([1.0, 3.0], holds=lambda v: v > 1, sentence="S.", source="s", demand="d").measured
    '2 (1 to 3)'
    """
    texts: Any = {"sentence": sentence, "source": source, "demand": demand, "published": published}
    if not values:
        return Claim(**texts, value=float("nan"), holds=False, note="No finished member speaks for it.")
    value = pick(values)
    return Claim(**texts, value=value, low=min(values), high=max(values), holds=holds(value), note=note)


def rank_claim(
    x: Sequence[float], y: Sequence[float], *, sign: int, sentence: str, source: str, over: str = "members"
) -> Claim:
    """A claim that y rises (`sign` 1) or falls (-1) with x: Spearman's rank correlation over members, or epochs.

    >>> rank_claim([1.0, 2.0, 3.0, 4.0, 5.0], [9.0, 7.0, 5.0, 3.0, 2.0], sign=-1, sentence="S.", source="s").measured
    '-1 (-1 to -1)'
    """
    direction = "positive" if sign > 0 else "negative"
    texts: Any = {
        "sentence": sentence,
        "source": source,
        "demand": f"{direction} rank correlation over {over}, two-sided p < {SIGNIFICANT:g}",
    }
    if len(x) < 3 or len(set(x)) == 1 or len(set(y)) == 1:
        return claim_over([], holds=lambda _: False, **texts)
    result = spearmanr(x, y)
    interval = _rank_interval(np.asarray(x), np.asarray(y))
    return Claim(
        **texts,
        value=float(result.statistic),
        low=interval[0],
        high=interval[1],
        holds=bool(sign * result.statistic > 0 and result.pvalue < SIGNIFICANT),
        note=f"Spearman's ρ over {len(x)} {over} with its 95 % bootstrap interval; p = {result.pvalue:.2g}.",
    )


def _rank_interval(x: np.ndarray, y: np.ndarray, resamples: int = 1000) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    values = [_rank_correlation(x[pick], y[pick]) for pick in rng.integers(0, len(x), (resamples, len(x)))]
    low, high = np.nanquantile(values, (0.025, 0.975))
    return float(low), float(high)


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])


def slope(x: Iterable[float], y: Iterable[float]) -> float:
    """Least-squares slope of log y on log x.

    >>> round(slope([1.0, 10.0, 100.0], [5.0, 0.5, 0.05]), 9)
    -1.0
    """
    return float(np.polyfit(np.log(list(x)), np.log(list(y)), 1)[0])
