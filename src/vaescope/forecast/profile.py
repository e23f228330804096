"""One pass over the data: ranges, missing values, duplicates, mean, covariance and a random sample of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from vaescope.errors import InputError
from vaescope.forecast.source import MIN_ROWS, Source
from vaescope.forecast.spectrum import (
    FULL_COLUMNS,
    Spectrum,
    accumulate_column_moments,
    accumulate_moments,
    spectrum_of_covariance,
    wide_spectrum,
)

Array = np.ndarray
SAMPLED_ROWS = 6000
HASHED_ROWS = 5_000_000  # among which exact duplicates are found
MOSTLY_MISSING = 0.5  # share of missing values from which a column is left out
FEW_COMPLETE = 0.2  # share of complete rows below which missing values are replaced by the mean of their column
Report = Callable[[int, int], object]


@dataclass(eq=False)
class Ranges:
    """What values the columns have."""

    low: Array
    high: Array
    sums: Array
    missing: Array
    """Missing or infinite values per column."""
    whole: Array
    """Whether all values of a column are whole numbers."""
    rows: int = 0
    incomplete_rows: int = 0

    @classmethod
    def empty(cls, columns: int) -> Ranges:
        inf = np.full(columns, np.inf)
        return cls(inf, -inf, np.zeros(columns), np.zeros(columns, np.int64), np.ones(columns, bool))

    def add(self, chunk: Array, finite: Array | None) -> None:
        """Another chunk; `finite` is None if all of it is."""
        known = np.ones(1, bool) if finite is None else finite
        self.low = np.minimum(self.low, chunk.min(0, where=known, initial=np.inf))
        self.high = np.maximum(self.high, chunk.max(0, where=known, initial=-np.inf))
        self.sums += chunk.sum(0, where=known)
        self.rows += len(chunk)
        if finite is not None:
            self.missing += (~finite).sum(0)
            self.incomplete_rows += int((~finite.all(1)).sum())
        columns = np.flatnonzero(self.whole)
        if len(columns):
            part = chunk[:, columns]
            with np.errstate(invalid="ignore"):
                whole = part == np.round(part)
            self.whole[columns] = (whole if finite is None else whole | ~finite[:, columns]).all(0)

    @property
    def means(self) -> Array:
        """Means of the values that are there."""
        return self.sums / np.maximum(1, self.rows - self.missing)


@dataclass(frozen=True, eq=False)
class Profile:
    """What the passes over the data found."""

    source: Source
    """The columns that were analysed: without those that are mostly missing."""
    ranges: Ranges
    """Of all columns."""
    kept: Array
    """Indices of the columns that were analysed."""
    rows: int
    """Rows that were analysed: complete ones, or all if missing values were replaced."""
    mean: Array
    variance: Array
    covariance: Array | None
    """None for wide data."""
    sample: Array
    """Random rows that were analysed."""
    duplicates: int
    """Rows that are equal to an earlier row."""
    imputed: bool = False
    """Whether missing values were replaced by the mean of their column."""
    _spectra: dict[str, Spectrum] = field(default_factory=dict)

    @property
    def varying(self) -> Array:
        """Which columns are not constant, up to rounding."""
        scale = np.maximum(np.abs(self.mean), np.sqrt(self.variance))
        return self.variance > (1e-9 * np.maximum(scale, 1e-300)) ** 2

    def spectrum(self, scale: Array | None = None, key: str = "raw") -> Spectrum:
        """Eigenvalues of the covariance, with columns divided by `scale`; computed once per key."""
        if key not in self._spectra:
            self._spectra[key] = self._compute(scale)
        return self._spectra[key]

    def _compute(self, scale: Array | None) -> Spectrum:
        if self.covariance is None:
            return wide_spectrum(lambda: _complete(self.source), self.mean, self.variance, self.rows, scale)
        if scale is None:
            return spectrum_of_covariance(self.covariance, self.rows)
        return spectrum_of_covariance(self.covariance / np.outer(scale, scale), self.rows)


def profile(source: Source, report: Report | None = None) -> Profile:
    """Read the data: once, and once more if many values are missing.

    Args:
        source: the data.
        report: called with the rows that were read so far, and all.
    """
    first = _read(source, report)
    kept = np.flatnonzero(first.ranges.missing <= MOSTLY_MISSING * source.rows)
    if not len(kept):
        raise InputError("x has no column with at least half of its values; most of them are NaN or infinite.")
    found = first if len(kept) == source.columns else _read(_selected(source, kept), report)
    if found.rows < max(MIN_ROWS, FEW_COMPLETE * source.rows):
        found = replace(_read(_imputed(_selected(source, kept), first.ranges.means[kept]), report), imputed=True)
    return replace(found, ranges=first.ranges, kept=kept, duplicates=first.duplicates)


def _read(source: Source, report: Report | None) -> Profile:
    reader = _Reader(source, report)
    if source.columns > FULL_COLUMNS:
        mean, variance, rows = accumulate_column_moments(reader.complete(), source.columns)
        covariance = None
    else:
        moments = accumulate_moments(reader.complete(), source.columns)
        mean, covariance, rows = moments.mean, moments.covariance, moments.count
        variance = np.diag(covariance).copy()
    columns = np.arange(source.columns)
    sample = np.concatenate(reader.sampled)
    return Profile(source, reader.ranges, columns, rows, mean, variance, covariance, sample, reader.duplicates)


class _Reader:
    """A pass over the data: everything that needs every row, collected while moments are accumulated."""

    def __init__(self, source: Source, report: Report | None) -> None:
        self.source, self.report = source, report
        self.ranges = Ranges.empty(source.columns)
        self.sampled: list[Array] = []
        self.hashes: list[Array] = []
        self._chosen = _chosen_rows(source.rows)

    def complete(self) -> Iterator[Array]:
        """Rows without missing values."""
        start = 0
        for chunk in self.source.stream():
            finite = None if np.isfinite(chunk.sum()) else np.isfinite(chunk)
            self.ranges.add(chunk, finite)
            low, high = np.searchsorted(self._chosen, [start, start + len(chunk)])
            picked = chunk[self._chosen[low:high] - start]
            self.sampled.append(picked[np.isfinite(picked).all(1)])
            if start < HASHED_ROWS:
                self.hashes.append(row_hashes(chunk))
            start += len(chunk)
            if self.report is not None:
                self.report(start, self.source.rows)
            yield chunk if finite is None else chunk[finite.all(1)]

    @property
    def duplicates(self) -> int:
        hashes = np.concatenate(self.hashes)
        return len(hashes) - len(np.unique(hashes))


def row_hashes(rows: Array) -> Array:
    """A 64-bit hash of every row, in exact integer arithmetic.

    >>> a, b, c = row_hashes(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
    >>> bool(a == c), bool(a == b)
    (True, False)
    """
    factors = np.random.default_rng(0).integers(1, 2**63, size=rows.shape[1], dtype=np.uint64) | np.uint64(1)
    bits = np.ascontiguousarray(rows + 0.0).view(np.uint64)  # + 0.0: minus zero is zero
    mixed = bits * factors
    mixed ^= mixed >> np.uint64(32)
    return mixed.sum(1, dtype=np.uint64)


def _selected(source: Source, kept: Array) -> Source:
    """Some of the columns."""
    names = None if source.names is None else tuple(source.names[k] for k in kept)
    whole = len(kept) == source.columns

    def stream() -> Iterator[Array]:
        for chunk in source.stream():
            yield chunk if whole else chunk[:, kept]

    shape = source.image_shape if whole else None
    return replace(source, columns=len(kept), names=names, stream=stream, image_shape=shape)


def _imputed(source: Source, means: Array) -> Source:
    """The same with missing values replaced by the mean of their column."""

    def stream() -> Iterator[Array]:
        for chunk in source.stream():
            yield np.where(np.isfinite(chunk), chunk, means)

    return replace(source, stream=stream)


def _complete(source: Source) -> Iterator[Array]:
    for chunk in source.stream():
        whole = np.isfinite(chunk).all(1)
        yield chunk if whole.all() else chunk[whole]


def _chosen_rows(rows: int) -> Array:
    if rows <= SAMPLED_ROWS:
        return np.arange(rows)
    return np.unique(np.random.default_rng(0).integers(0, rows, SAMPLED_ROWS))
