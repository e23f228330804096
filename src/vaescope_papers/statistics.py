"""Statistics that claims are judged by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from scipy.stats import norm, rankdata, spearmanr
from scipy.stats import t as student

from vaescope.core.serialization import Plain, plain_fields


def median(values: Sequence[float]) -> float:
    return float(np.median(values))


def slope(x: Iterable[float], y: Iterable[float]) -> float:
    """Least-squares slope of log y on log x; NaN with fewer than two x, or values that have no logarithm.

    >>> round(slope([1.0, 10.0, 100.0], [5.0, 0.5, 0.05]), 9)
    -1.0
    """
    first, second = np.asarray(list(x), dtype=float), np.asarray(list(y), dtype=float)
    values = np.concatenate([first, second])
    if len(set(first.tolist())) < 2 or not (np.isfinite(values) & (values > 0)).all():
        return float("nan")
    return float(np.polyfit(np.log(first), np.log(second), 1)[0])


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rank correlation; NaN if x or y is constant."""
    return float(_rank_correlations(x[None], y[None])[0])


def _rank_correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation of every row."""
    first, second = (rankdata(values, axis=1) - (values.shape[1] + 1) / 2 for values in (x, y))
    with np.errstate(invalid="ignore"):
        return (first * second).sum(1) / np.sqrt((first**2).sum(1) * (second**2).sum(1))


def relative_ranks(values: Sequence[float]) -> list[float]:
    """Ranks between 0 and 1, so that groups of different sizes can be pooled without a correlation between groups.

    >>> relative_ranks([3.0, 7.0]), relative_ranks([5.0, 1.0, 9.0, 2.0])
    ([0.25, 0.75], [0.625, 0.125, 0.875, 0.375])
    """
    return ((rankdata(values) - 0.5) / max(1, len(values))).tolist()


def rank_test(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Spearman's rank correlation and its two-sided p-value, exact for at most 8 pairs.

    The usual approximation gives p = 0 for any monotone sequence, however short.

    >>> rank_test([1.0, 2.0, 3.0], [2.0, 4.0, 8.0])[1] == 2 / 6
    True
    """
    if len(x) > 8:
        found = spearmanr(x, y)
        return float(found.statistic), float(found.pvalue)
    orders = np.array(list(permutations(y)), dtype=float)
    values = _rank_correlations(np.tile(np.asarray(x, dtype=float), (len(orders), 1)), orders)
    return float(values[0]), float((np.abs(values) >= abs(values[0]) - 1e-9).mean())


def partial_rank_test(x: Sequence[float], y: Sequence[float], given: Sequence[float]) -> tuple[float, float]:
    r"""Spearman's rank correlation of x and y with the ranks of a third variable held fixed, and its two-sided p-value.

    .. math:: r_{xy.g} = (r_{xy} - r_{xg} r_{yg}) / \sqrt{(1 - r_{xg}^2)(1 - r_{yg}^2)}

    with a t-test of N - 3 degrees of freedom. NaN if it is not defined: fewer than 4 values, a constant variable, or x
    or y determined by the third.

    >>> round(partial_rank_test([1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 4.0, 3.0, 5.0], [1.0, 1.0, 1.0, 2.0, 1.0])[0], 3)
    0.855
    """
    value = float(_partial(*(np.asarray(values, dtype=float)[None] for values in (x, y, given)))[0])
    freedom = len(x) - 3
    if freedom < 1 or math.isnan(value):
        return float("nan"), float("nan")
    size = abs(value) * math.sqrt(freedom / (1 - value**2)) if abs(value) < 1 else math.inf
    return value, float(2 * student.sf(size, freedom))


def _partial(x: np.ndarray, y: np.ndarray, given: np.ndarray) -> np.ndarray:
    """The partial rank correlation of every row."""
    xy, xg, yg = _rank_correlations(x, y), _rank_correlations(x, given), _rank_correlations(y, given)
    rest = (1 - xg**2) * (1 - yg**2)
    with np.errstate(invalid="ignore"):
        found = (xy - xg * yg) / np.sqrt(np.where(rest > 1e-12, rest, np.nan))
    return np.clip(found, -1.0, 1.0)


def rank_interval(
    x: Sequence[float], y: Sequence[float], given: Sequence[float] | None = None, *, resamples: int = 1000
) -> tuple[float, float]:
    """95 % bootstrap interval of Spearman's rank correlation, or of the partial one given a third variable."""
    first, second = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    picks = np.random.default_rng(0).integers(0, len(first), (resamples, len(first)))
    if given is None:
        found = _rank_correlations(first[picks], second[picks])
    else:
        found = _partial(first[picks], second[picks], np.asarray(given, dtype=float)[picks])
    if np.isnan(found).all():
        return float("nan"), float("nan")
    low, high = np.nanquantile(found, (0.025, 0.975))
    return float(low), float(high)


def median_interval(values: Sequence[float], *, resamples: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of a median.

    >>> median_interval([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    low, high = np.quantile(_resampled_medians(values, resamples, seed=0), (0.025, 0.975))
    return float(low), float(high)


def median_difference_interval(
    first: Sequence[float], second: Sequence[float], *, resamples: int = 2000
) -> tuple[float, float]:
    """95 % bootstrap interval of the difference of two medians, of samples that are not paired."""
    differences = _resampled_medians(first, resamples, seed=0) - _resampled_medians(second, resamples, seed=1)
    low, high = np.quantile(differences, (0.025, 0.975))
    return float(low), float(high)


def _resampled_medians(values: Sequence[float], resamples: int, *, seed: int) -> np.ndarray:
    own = np.asarray(values, dtype=float)
    picks = np.random.default_rng(seed).integers(0, len(own), (resamples, len(own)))
    return np.median(own[picks], axis=1)


def members_needed(effect: float, p: float) -> int:
    """Sample size at which a rank correlation of this size has a p-value below `p` with a probability of 80 %.

    From Fisher's z-transformation, with the variance 1.06 / (n - 3) of Spearman's correlation (Bonett & Wright 2000).

    >>> members_needed(0.7, 0.01), members_needed(0.5, 0.01)
    (20, 45)
    """
    spread = float(norm.isf(p / 2) + norm.isf(1 - 0.8))
    return math.ceil(1.06 * (spread / math.atanh(effect)) ** 2 + 3)


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
