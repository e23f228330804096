"""Statistics that claims are judged by."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import permutations
from typing import Any

import numpy as np
from scipy.stats import binom, binomtest, rankdata, spearmanr
from scipy.stats import t as student

from vaescope.core.serialization import Plain, plain_fields

ALPHA = 0.01
"""Largest probability of a wrong verdict on each side of an interval: intervals have level 1 - 2 ALPHA."""


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


def median_interval(values: Sequence[float], *, resamples: int = 2000) -> tuple[float, float]:
    """95 % bootstrap interval of a median.

    >>> median_interval([1.0, 1.0, 1.0])
    (1.0, 1.0)
    """
    own = np.asarray(values, dtype=float)
    picks = np.random.default_rng(0).integers(0, len(own), (resamples, len(own)))
    low, high = np.quantile(np.median(own[picks], axis=1), (0.025, 0.975))
    return float(low), float(high)


# effects with intervals -----------------------------------------------------------------------


@dataclass(frozen=True)
class Estimate:
    """An effect with a confidence interval, from independent units; infinite ends where the units are too few."""

    value: float
    low: float
    high: float
    units: int


def estimate_median(values: Sequence[float], alpha: float = ALPHA) -> Estimate:
    r"""The median with an interval of order statistics, valid for every distribution.

    Each end is wrong with a probability of at most α: the k-th smallest of n values, with the largest k for which
    P(Binomial(n, 1/2) < k) ≤ α. With α = 1 % it needs n ≥ 7.

    >>> estimate_median([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    Estimate(value=4.0, low=1.0, high=7.0, units=7)
    """
    own = sorted(float(value) for value in values)
    k = _order(len(own), alpha)
    low, high = (own[k - 1], own[-k]) if k else (-math.inf, math.inf)
    return Estimate(median(own), low, high, len(own))


@cache
def _order(n: int, alpha: float) -> int:
    """The largest k with P(Binomial(n, 1/2) < k) ≤ α."""
    return int(np.searchsorted(binom.cdf(np.arange(n + 1), n, 0.5), alpha, side="right"))


@cache
def _student(alpha: float, freedom: int) -> float:
    return float(student.isf(alpha, freedom))


def estimate_mean(values: Sequence[float], alpha: float = ALPHA) -> Estimate:
    """The mean with Student's t interval, which assumes values that are roughly normal.

    >>> found = estimate_mean([1.0, 2.0, 3.0], 0.025)
    >>> round(found.low, 3), round(found.high, 3)
    (-0.484, 4.484)
    """
    own = np.asarray(values, dtype=float)
    middle = float(own.mean())
    if len(own) < 2:
        return Estimate(middle, -math.inf, math.inf, len(own))
    half = _student(alpha, len(own) - 1) * float(own.std(ddof=1)) / math.sqrt(len(own))
    return Estimate(middle, middle - half, middle + half, len(own))


def estimate_share(hits: int, units: int, alpha: float = ALPHA) -> Estimate:
    """A share with the exact interval of Clopper and Pearson.

    >>> round(estimate_share(20, 20).low, 3)
    0.794
    """
    found = binomtest(hits, units).proportion_ci(1 - 2 * alpha, method="exact")
    return Estimate(hits / units, float(found.low), float(found.high), units)


def estimate_rank_correlation(
    x: Sequence[float], y: Sequence[float], given: Sequence[float] | None = None, alpha: float = ALPHA
) -> Estimate:
    r"""Spearman's rank correlation, or the partial one, with an interval on Fisher's z scale.

    .. math:: \tanh\Bigl(\operatorname{artanh} r \pm t_{m-2,\,1-\alpha} \sqrt{(1 + r^2/2)/(m - 3)}\Bigr)

    with m = n units, one less for a partial correlation (variance: Bonett and Wright 2000; Student's t instead of the
    normal quantile keeps the size for few units). A perfect correlation counts as half a step of r less.

    Undefined (NaN) for a constant variable, and for x or y determined by the third.
    """
    first, second = np.asarray(x, dtype=float)[None], np.asarray(y, dtype=float)[None]
    third = None if given is None else np.asarray(given, dtype=float)[None]
    value = float((_rank_correlations(first, second) if third is None else _partial(first, second, third))[0])
    m = len(x) - (given is not None)
    if math.isnan(value) or m < 4:
        return Estimate(value, -math.inf, math.inf, len(x))
    step = 6 / (m**3 - m)
    clipped = min(max(value, -1 + step), 1 - step)
    half = _student(alpha, m - 2) * math.sqrt((1 + clipped**2 / 2) / (m - 3))
    z = math.atanh(clipped)
    return Estimate(value, math.tanh(z - half), math.tanh(z + half), len(x))


def estimate_shift(larger: Sequence[float], smaller: Sequence[float], alpha: float = ALPHA) -> Estimate:
    """How much larger one group is: the Hodges-Lehmann shift, whose interval inverts the exact Mann-Whitney test.

    It assumes that the groups differ by a shift; `units` is the size of the smaller group.

    >>> estimate_shift([5.0, 6.0, 7.0, 8.0, 9.0], [0.0, 1.0, 2.0, 3.0, 4.0])
    Estimate(value=5.0, low=2.0, high=8.0, units=5)
    """
    differences = np.sort(np.subtract.outer(np.asarray(larger, dtype=float), np.asarray(smaller, dtype=float)).ravel())
    k = int(np.searchsorted(np.cumsum(_mann_whitney(len(larger), len(smaller))), alpha, side="right"))
    low, high = (float(differences[k - 1]), float(differences[-k])) if k else (-math.inf, math.inf)
    return Estimate(float(np.median(differences)), low, high, min(len(larger), len(smaller)))


@cache
def _mann_whitney(m: int, n: int) -> np.ndarray:
    """P(U = 0, 1, ...) of the Mann-Whitney statistic without ties, from the Gaussian binomial coefficient."""
    counts = np.zeros(m * n + 1)
    counts[0] = 1.0
    for i in range(1, m + 1):  # times (1 - q^(n + i)) / (1 - q^i)
        grown = counts.copy()
        grown[n + i :] -= counts[: max(0, len(counts) - n - i)]
        for first in range(i):
            grown[first::i] = np.cumsum(grown[first::i])
        counts = grown
    return counts / counts.sum()


def by_unit(values: Sequence[float], units: Sequence[Hashable]) -> list[float]:
    """The median of every unit, in the order in which units first appear.

    Values of one unit (images of a member, epochs of a run) are not independent of each other; its median is one value.

    >>> by_unit([1.0, 2.0, 3.0, 10.0], ["a", "a", "a", "b"])
    [2.0, 10.0]
    """
    groups: dict[Hashable, list[float]] = {}
    for value, unit in zip(values, units, strict=True):
        groups.setdefault(unit, []).append(float(value))
    return [median(own) for own in groups.values()]


# ours beside the published values ---------------------------------------------------------------


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


# published numbers: one `published.toml` per paper, in the folder of its experiments ------------


def published(paper: str) -> dict[str, Any]:
    """The published numbers of a paper by experiment; `paper` is the name of its folder.

    >>> published("embrace_the_gap")["elbo-gap"]["contrast"]
    7.072
    """
    return tomllib.loads(files("vaescope_papers").joinpath(paper, "published.toml").read_text(encoding="utf-8"))


def column(table: Mapping[str, Sequence[float]], name: str, *, key: str = "precision") -> dict[float, float]:
    """A column of published numbers by the values of another column, such as the decoder precision.

    >>> column({"precision": [10.0, 100.0], "mcc": [0.2, 0.9]}, "mcc")
    {10.0: 0.2, 100.0: 0.9}
    """
    return dict(zip(table[key], table[name], strict=True))
