"""Any data as a table that is read in chunks: arrays, data frames, files, data sets. Missing values are allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.stats import f as f_distribution

from vaescope.core import validation
from vaescope.core.containers import frame_columns, is_data_frame
from vaescope.core.errors import InputError
from vaescope.core.validation import ImageShape, choice
from vaescope.data.catalogue import open_for_training
from vaescope.data.dataset import Dataset, channels_first
from vaescope.data.files.arrays import StoredArray, stored_array
from vaescope.data.files.loading import open_array
from vaescope.data.files.official import OFFICIAL_FILES
from vaescope.data.files.streaming import StoredDataset
from vaescope.inference.linear import Spectrum
from vaescope.products.preflight.spectrum import (
    FULL_COLUMNS,
    accumulate_moments,
    spectrum_of_covariance,
    wide_spectrum,
)
from vaescope.settings import LIKELIHOODS

Array = np.ndarray
MIN_ROWS = 10
LARGEST_VALUE = 1e30  # and one over the smallest standard deviation: fourth powers of both are in the range of float64


@dataclass(frozen=True, eq=False)
class Source:
    """Rows of numbers that can be read several times, a chunk at a time."""

    name: str
    rows: int
    columns: int
    stream: Callable[[], Iterator[Array]]
    """All rows as chunks (B, n) of float64."""
    names: tuple[str, ...] | None = None
    """Names of the columns, if they have any."""
    image_shape: ImageShape | None = None
    not_numeric: tuple[str, ...] = ()
    """Columns that were left out."""
    what_was_read: str = ""
    """Which part of which file this is, in one line."""

    def column(self, index: int) -> str:
        """What a column is called in sentences."""
        return repr(self.names[index]) if self.names and self.names[index] else f"column {index}"


def source_of(x: object, name: str | None = None) -> Source:
    """Read anything that `vs.fit` takes, and data frames and tables with text columns.

    >>> source_of(np.zeros((20, 3))).columns
    3
    """
    found = x if isinstance(x, Source) else _open(x)
    if found.rows < MIN_ROWS:
        raise InputError(f"x needs at least {MIN_ROWS} samples, got {found.rows}.")
    return found if name is None else replace(found, name=name)


def _open(x: object) -> Source:
    """x as chunks of 32 MB of float64; images are flattened with channels first, and rescaled as `vs.fit` does."""
    name, scale, image_shape = "x", 1.0, None
    names: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    if isinstance(x, str | Path):
        official = any(Path(x).name in dict(spec.files) for spec in OFFICIAL_FILES.values())
        x = open_array(Path(x)) if Path(x).exists() and not official else open_for_training(str(x))
    if isinstance(x, Dataset):
        stored, name, image_shape, scale = _in_memory(x.x.numpy()), x.name, x.image_shape, x.byte_scale
    elif isinstance(x, StoredDataset):
        stored, name, image_shape, scale = x.array, x.array.path.stem, x.image_shape, x.byte_scale
    elif isinstance(x, StoredArray):
        stored, name, names, others = x, x.path.stem, x.columns, x.left_out
    elif is_data_frame(x):
        found = frame_columns(x)
        numeric = {column: values for column, values in found.items() if values is not None}
        if not numeric:
            raise InputError("x has no numeric columns; encode categories as integers.")
        stored, names = _in_memory(np.column_stack(list(numeric.values())).astype(np.float64)), tuple(numeric)
        others = tuple(column for column in found if column not in numeric)
    else:
        stored = _in_memory(validation.rows(x, "x", finite=False))
    images = len(stored.shape) in (3, 4)
    if images and image_shape is None:
        sample = stored.rows(np.linspace(0, len(stored) - 1, min(256, len(stored)), dtype=np.int64))
        channels, height, width = (int(size) for size in channels_first(sample).shape[1:])
        image_shape = (channels, height, width)
        if sample.dtype.kind in "iu" and sample.max() > 1:
            scale = 255.0 if sample.max() <= 255 else 65535.0
    columns = int(np.prod(stored.shape[1:], dtype=np.int64))
    size = max(1, 2**22 // max(1, columns))

    def stream() -> Iterator[Array]:
        for chunk in stored.stream(size):
            rows = channels_first(chunk) if images else chunk
            flat = rows.reshape(len(rows), -1).astype(np.float64)
            yield flat if scale == 1.0 else flat / scale

    line = "" if stored.path == Path("x") else stored.what_was_read
    return Source(name, len(stored), columns, stream, names, image_shape, others, line)


def _in_memory(rows: Array) -> StoredArray:
    return stored_array(Path("x"), "x", rows)


@dataclass(frozen=True)
class Thresholds:
    """Thresholds of the rules about data. Conventions unless another source is named."""

    mostly_missing: float = 0.5  # share of missing values from which a column is left out
    few_complete: float = 0.2  # share of complete rows below which missing values are replaced by the column's mean
    scale_ratio: float = 10.0  # of standard deviations of two columns, above which columns are standardised
    excess_kurtosis: float = 10.0  # above which a column is heavy-tailed; 6 for an exponential distribution
    same_column: float = 1 - 1e-9  # correlation of columns that repeat each other: 1 up to rounding
    near: float = 0.01  # of the median distance to the nearest neighbour, below which samples are nearly the same
    few_near: float = 0.01  # share of samples with a near-duplicate that is not worth a finding
    samples_per_latent: int = 50
    share: float = 0.95  # of the variance that principal axes have to hold
    large_share: float = 0.99  # the same if a clear gap follows them
    gap: float = 10.0  # an eigenvalue over the mean of the smaller ones, from which the gap is clear
    margin: float = 1.25  # latents over those needed: a VAE switches off what it does not need
    found_kl: float = 0.15  # nats that a latent of curved data must carry to count; chosen in benchmarks/preflight.py


THRESHOLDS = Thresholds()
Report = Callable[[int, int], object]


@dataclass(eq=False)
class Ranges:
    """What values the columns have."""

    low: Array
    high: Array
    sums: Array
    missing: Array
    """Missing or infinite values per column."""
    integer: Array
    """Whether all values of a column are integers."""
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
        largest = max(self.high.max(), -self.low.min())
        if largest > LARGEST_VALUE:
            raise InputError(f"x must be between ±{LARGEST_VALUE:g}, got ±{largest:g}; divide it by a constant.")
        self.sums += chunk.sum(0, where=known)
        self.rows += len(chunk)
        if finite is not None:
            self.missing += (~finite).sum(0)
            self.incomplete_rows += int((~finite.all(1)).sum())
        columns = np.flatnonzero(self.integer)
        if len(columns):
            part = chunk[:, columns]
            with np.errstate(invalid="ignore"):
                integer = part == np.round(part)
            self.integer[columns] = (integer if finite is None else integer | ~finite[:, columns]).all(0)

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
    _spectra: dict[bytes, Spectrum] = field(default_factory=dict)

    @property
    def varying(self) -> Array:
        """Which columns are not constant, up to rounding."""
        scale = np.maximum(np.abs(self.mean), np.sqrt(self.variance))
        return self.variance > (1e-9 * np.maximum(scale, 1e-300)) ** 2

    def spectrum(self, scale: Array | None = None) -> Spectrum:
        """Eigenvalues of the covariance, with columns divided by `scale`; computed once per scale."""
        key = b"" if scale is None else scale.tobytes()
        if key not in self._spectra:
            if self.covariance is None:
                chunks = partial(_complete, self.source)
                found = wide_spectrum(chunks, self.mean, self.variance, self.rows, scale)
            else:
                scaled = self.covariance if scale is None else self.covariance / np.outer(scale, scale)
                found = spectrum_of_covariance(scaled, self.rows)
            self._spectra[key] = found
        return self._spectra[key]


def profile(source: Source, report: Report | None = None) -> Profile:
    """Read the data: once, and once more if many values are missing.

    Args:
        source: the data.
        report: called with the rows that were read so far, and all.
    """
    first = _read(source, report)
    kept = np.flatnonzero(first.ranges.missing <= THRESHOLDS.mostly_missing * source.rows)
    if not len(kept):
        raise InputError("x has no column with at least half of its values; most of them are NaN or infinite.")
    found = first if len(kept) == source.columns else _read(_selected(source, kept), report)
    if found.rows < max(MIN_ROWS, THRESHOLDS.few_complete * source.rows):
        means = first.ranges.means[kept]
        chosen = _selected(source, kept)
        filled = mapped(chosen, lambda chunk: np.where(np.isfinite(chunk), chunk, means))
        found = replace(_read(filled, report), imputed=True)
    varying = first.ranges.low[kept] < first.ranges.high[kept]
    variance = np.where(varying, found.variance, 0.0)  # of constant columns there are rounding errors
    covariance = None if found.covariance is None else found.covariance * np.outer(varying, varying)
    if varying.any() and variance.max() < LARGEST_VALUE**-2:
        raise InputError(
            f"a column of x must have a standard deviation of at least {1 / LARGEST_VALUE:g}, got columns that span at "
            f"most {(first.ranges.high - first.ranges.low)[kept].max():.3g}; multiply x by a constant."
        )
    found = replace(found, variance=variance, covariance=covariance)
    return replace(found, ranges=first.ranges, kept=kept, duplicates=first.duplicates)


def _read(source: Source, report: Report | None) -> Profile:
    reader = _Reader(source, report)
    moments = accumulate_moments(reader.complete(), source.columns, full=source.columns <= FULL_COLUMNS)
    covariance = moments.covariance if moments.covariance.ndim == 2 else None
    hashes, sample = np.concatenate(reader.hashes), np.concatenate(reader.sampled)
    return Profile(
        source,
        reader.ranges,
        np.arange(source.columns),
        moments.count,
        moments.mean,
        moments.covariance if covariance is None else np.diag(covariance).copy(),
        covariance,
        sample,
        len(hashes) - len(np.unique(hashes)),
    )


class _Reader:
    """A pass over the data: everything that needs every row, collected while moments are accumulated."""

    def __init__(self, source: Source, report: Report | None) -> None:
        self.source, self.report = source, report
        self.ranges = Ranges.empty(source.columns)
        self.sampled: list[Array] = []
        self.hashes: list[Array] = []
        rows, most = source.rows, 6000  # sampled
        self._chosen = np.arange(rows)
        if rows > most:
            self._chosen = np.unique(np.random.default_rng(0).integers(0, rows, most))

    def complete(self) -> Iterator[Array]:
        """Rows without missing values."""
        start = 0
        for chunk in self.source.stream():
            with np.errstate(over="ignore", invalid="ignore"):
                finite = None if np.isfinite(chunk.sum()) else np.isfinite(chunk)
            self.ranges.add(chunk, finite)
            low, high = np.searchsorted(self._chosen, [start, start + len(chunk)])
            picked = chunk[self._chosen[low:high] - start]
            self.sampled.append(picked[np.isfinite(picked).all(1)])
            if start < 5_000_000:  # rows among which exact duplicates are found
                self.hashes.append(row_hashes(chunk))
            start += len(chunk)
            if self.report is not None:
                self.report(start, self.source.rows)
            yield chunk if finite is None else chunk[finite.all(1)]


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


def mapped(source: Source, function: Callable[[Array], Array]) -> Source:
    """The same rows with every chunk changed."""
    return replace(source, stream=lambda: map(function, source.stream()))


def _selected(source: Source, kept: Array) -> Source:
    """Some of the columns."""
    if len(kept) == source.columns:
        return source
    names = None if source.names is None else tuple(source.names[k] for k in kept)
    fewer = mapped(source, lambda chunk: chunk[:, kept])
    return replace(fewer, columns=len(kept), names=names, image_shape=None)


def _complete(source: Source) -> Iterator[Array]:
    for chunk in source.stream():
        whole = np.isfinite(chunk).all(1)
        yield chunk if whole.all() else chunk[whole]


@dataclass(frozen=True)
class DataKind:
    """What the values are, and how to model them."""

    name: str
    """binary, unit interval, pixels, counts or continuous."""
    likelihood: str
    """gaussian or bernoulli."""
    scaling: str
    """none, standardise or log1p."""
    reason: str
    """Why this likelihood."""
    scaling_reason: str = ""


def judge_kind(profile: Profile, likelihood: str | None = None) -> DataKind:
    """The kind of data, with the likelihood that was asked for or the one that fits."""
    found = _by_values(profile)
    if likelihood is None:
        return found
    chosen = choice("likelihood", likelihood, LIKELIHOODS)
    scaling = "none" if chosen == "bernoulli" else found.scaling
    reason = found.reason if chosen == found.likelihood else f"the {chosen} likelihood was asked for."
    return DataKind(found.name, chosen, scaling, reason, found.scaling_reason if scaling != "none" else "")


def _by_values(profile: Profile) -> DataKind:
    kept = profile.kept
    low, high = profile.ranges.low[kept].min(), profile.ranges.high[kept].max()
    integer = bool(profile.ranges.integer[kept].all())
    images = profile.source.image_shape is not None
    if integer and low >= 0 and high <= 1:
        return DataKind("binary", "bernoulli", "none", "all values are 0 or 1.")
    deviations = np.sqrt(profile.variance[profile.varying])
    ratio = float(deviations.max() / deviations.min()) if len(deviations) else 1.0
    pixels = images or image_like(profile)
    same_scale = pixels or ratio <= THRESHOLDS.scale_ratio  # pixels share a unit, so one noise variance fits
    if low >= 0 and high <= 1 and same_scale:
        reason = "values are in [0, 1] and not binary: a Bernoulli likelihood would not be a density of them."
        return DataKind("unit interval", "gaussian", "none", reason)
    if integer and low >= 0 and not images and not same_scale:
        mean, variance = profile.mean[profile.varying], profile.variance[profile.varying]
        if len(mean) and float(np.median(variance / np.maximum(mean, 1e-300))) > 0.5:  # as of counts of events
            why = "Values are non-negative integers whose variance grows with their mean. "
            return DataKind("counts", "gaussian", "log1p", "of log(1 + x): there is no count likelihood here.", why)
    if pixels:
        return DataKind("pixels", "gaussian", "none", "columns share one range, like pixels, and are not in [0, 1].")
    spread = f"Standard deviations of columns differ {ratio:.3g}-fold"
    if same_scale:
        return DataKind("continuous", "gaussian", "none", "values are continuous.", f"{spread}. ")
    decides = f"{spread}: without scaling the largest column decides. "
    return DataKind("continuous", "gaussian", "standardise", "values are continuous.", decides)


def image_like(profile: Profile) -> bool:
    """Many columns with one common range, such as flattened pixels."""
    kept = profile.kept
    high = profile.ranges.high[kept][profile.varying]
    low = profile.ranges.low[kept][profile.varying]
    common = (high > 0.5 * high.max(initial=0.0)) & (low <= low.min(initial=np.inf) + 1e-9 + 0.5 * abs(high))
    integer = bool(profile.ranges.integer[kept].all())
    unit = bool((low >= 0).all() and (high <= 1).all())
    return len(high) >= 16 and (integer or unit) and bool(common.mean() > 0.6) and float(low.min(initial=0.0)) >= 0


def column_scales(profile: Profile) -> Array:
    """Standard deviation of every column; 1 for constant ones."""
    return np.where(profile.varying, np.sqrt(profile.variance), 1.0)


def bernoulli_scales(profile: Profile) -> Array:
    """√(p(1 - p)) of every column with mean p: the curvature of the Bernoulli log-likelihood in its logit.

    Columns that are constant carry no information; they get the scale 1.
    """
    p = profile.mean.clip(0.0, 1.0)
    return np.where(profile.varying, np.sqrt(np.maximum(p * (1 - p), 1e-12)), 1.0)


# columns --------------------------------------------------------------------------------------


def heavy_tailed(profile: Profile) -> list[int]:
    """Columns with a large excess kurtosis, by the sample."""
    sample = profile.sample - profile.sample.mean(0)
    largest = np.abs(sample).max(0, initial=0.0)
    sample = sample / np.where(largest > 0, largest, 1.0)
    second = (sample**2).mean(0)
    kurtosis = (sample**4).mean(0) / np.where(second > 0, second, 1.0) ** 2 - 3
    return np.flatnonzero(profile.varying & (kurtosis > THRESHOLDS.excess_kurtosis)).tolist()


def duplicated_columns(profile: Profile) -> list[tuple[int, int]]:
    """Pairs of columns that determine each other linearly."""
    if profile.covariance is None:
        return []
    scale = column_scales(profile)
    correlation = np.triu(np.abs(profile.covariance / np.outer(scale, scale)), 1)
    pairs = np.argwhere(correlation > THRESHOLDS.same_column)
    return [(int(a), int(b)) for a, b in pairs if profile.varying[a] and profile.varying[b]]


def identifiers(profile: Profile) -> list[int]:
    """Columns of a table that look like a row number: integers, nearly all different, evenly spread."""
    if profile.source.image_shape is not None:
        return []
    ranges, found = profile.ranges, []
    for own, column in enumerate(profile.kept):
        span = ranges.high[column] - ranges.low[column] + 1
        if ranges.integer[column] and 0.9 * ranges.rows <= span <= 1.2 * ranges.rows and ranges.rows >= 20:
            values = profile.sample[:, own]
            if len(np.unique(values)) > 0.9 * len(values):
                found.append(own)
    return found


@dataclass(frozen=True)
class IntegerCodes:
    """Columns of a table whose few consecutive integers may stand for categories."""

    columns: list[int]
    unordered: list[int]
    """Those of which it is certain: the means of another column are no linear function of the code."""


def integer_codes(profile: Profile, *, most: int = 30) -> IntegerCodes:
    """Columns of integers 0 to K - 1 or 1 to K beside columns that are not integers, K from 3 to `most`.

    Of an ordered number, means of other columns change with it about linearly. The mean square between codes that a
    line does not explain is compared with that within codes (F-test, at 0.001 over all pairs of columns); it has to be
    at least a fiftieth of the variance.
    """
    ranges, sample, none = profile.ranges, profile.sample, IntegerCodes([], [])
    if profile.source.image_shape is not None or bool(ranges.integer[profile.kept].all()):
        return none
    columns, unordered = [], []
    standard = (sample - sample.mean(0)) / np.maximum(sample.std(0), 1e-300)
    for own, column in enumerate(profile.kept):
        values, codes = np.unique(sample[:, own], return_inverse=True)
        count, low = len(values), ranges.low[column]
        dense = low in (0, 1) and ranges.high[column] - low == count - 1
        if not ranges.integer[column] or not dense or not 3 <= count <= most or len(sample) < 10 * count:
            continue
        columns.append(own)
        others = np.delete(standard, own, axis=1)
        sizes = np.bincount(codes)[:, None]
        means = np.stack([np.bincount(codes, weights=other) for other in others.T], axis=1) / sizes
        between = (sizes * means**2).sum(0)
        linear = (standard[:, own] @ others) ** 2 / len(sample)
        spare = np.maximum(between - linear, 0.0) / (count - 2)
        within = np.maximum(len(sample) - between, 1e-9) / (len(sample) - count)
        p_values = f_distribution.sf(spare / within, count - 2, len(sample) - count)
        curved = (between - linear) / len(sample) > 0.02
        if bool((curved & (p_values * others.shape[1] ** 2 < 0.001)).any()):
            unordered.append(own)
    return IntegerCodes(columns, unordered)
