"""Eigenvalues of the covariance of data that are read once, in chunks, with float64 sums.

Up to `FULL_COLUMNS` columns the covariance is accumulated and diagonalised. Wider data with few rows use the Gram
matrix, whose non-zero eigenvalues are the same; wide and long data a randomised range finder with power iterations
(Halko et al. 2011), which reads the data once per iteration. Memory is bounded by a chunk and n x min(n, 320) numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from vaescope.inference.linear import Spectrum

Array = np.ndarray
Chunks = Callable[[], Iterable[Array]]

FULL_COLUMNS = 2048  # up to which the covariance matrix is formed


@dataclass(frozen=True, eq=False)
class Moments:
    """Mean and (co)variance of columns, from one pass."""

    count: int
    mean: Array
    covariance: Array
    """(n, n), or (n,) of the variances alone."""


def accumulate_moments(chunks: Iterable[Array], columns: int, *, full: bool = True) -> Moments:
    """Moments of all rows; chunks are merged without cancellation (Chan et al. 1983).

    Args:
        chunks: of rows.
        columns: how many there are.
        full: whether the covariance is computed, or for wide data variances alone.
    """
    count, mean = 0, np.zeros(columns)
    scatter = np.zeros((columns, columns) if full else columns)
    for chunk in chunks:
        rows = np.asarray(chunk, np.float64)
        if not len(rows):
            continue
        own_mean = rows.mean(0)
        rows = rows - own_mean
        shift, merged = own_mean - mean, count + len(rows)
        scatter += rows.T @ rows if full else (rows**2).sum(0)
        scatter += (np.outer(shift, shift) if full else shift**2) * (count * len(rows) / merged)
        mean = mean + shift * (len(rows) / merged)
        count = merged
    return Moments(count, mean, scatter / max(1, count))


def spectrum_of_covariance(covariance: Array, rows: int) -> Spectrum:
    """The spectrum of an accumulated covariance."""
    eigenvalues = np.linalg.eigvalsh(covariance)[::-1].clip(min=0.0)
    return Spectrum(eigenvalues, float(np.trace(covariance)), len(covariance), rows)


def wide_spectrum(
    chunks: Chunks,
    mean: Array,
    variance: Array,
    rows: int,
    scale: Array | None = None,
    *,
    gram_rows: int = 2048,
    leading: int = 300,
) -> Spectrum:
    """The leading eigenvalues of data with too many columns for their covariance.

    Args:
        chunks: call it to read all rows once more.
        mean: of every column.
        variance: of every column.
        rows: how many there are.
        scale: what columns are divided by, if anything.
        gram_rows: up to which the matrix of inner products of rows is formed.
        leading: eigenvalues that the randomised method computes.
    """
    divisor = np.where(variance > 0, 1.0 if scale is None else scale, np.inf)  # constant columns become 0
    total, columns = float((variance / divisor**2).sum()), len(mean)

    def centred() -> Iterator[Array]:
        for chunk in chunks():
            yield (np.asarray(chunk, np.float64) - mean) / divisor

    if rows <= gram_rows:
        data = np.concatenate(list(centred()))
        found = np.linalg.eigvalsh(data @ data.T / len(data))[::-1].clip(min=0.0)
        return Spectrum(found[: min(len(found), columns)], total, columns, rows)
    # the Rayleigh-Ritz method on a randomised subspace, with 20 more vectors than eigenvalues and two power iterations
    basis = np.random.default_rng(0).standard_normal((columns, leading + 20))
    for _ in range(3):
        product = np.zeros_like(basis)
        for chunk in centred():
            product += chunk.T @ (chunk @ basis)
        basis = np.linalg.qr(product / rows)[0]
    small = np.zeros((basis.shape[1], basis.shape[1]))
    for chunk in centred():
        projected = chunk @ basis
        small += projected.T @ projected
    found = np.linalg.eigvalsh(small / rows)[::-1].clip(min=0.0)
    return Spectrum(found[:leading], total, columns, rows, exact=False)


SMALLEST_SAMPLE = 50  # rows of which a dimension is estimated


@dataclass(frozen=True)
class Estimate:
    """An estimate with the range over its own choices."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class IntrinsicDimension:
    """Two estimates, and the same of Gaussian data with the same covariance."""

    two_nn: Estimate
    levina_bickel: Estimate
    two_nn_linear: Estimate
    levina_bickel_linear: Estimate
    samples: int

    @property
    def value(self) -> float:
        """The mean of the two estimates."""
        return (self.two_nn.value + self.levina_bickel.value) / 2

    @property
    def linear_value(self) -> float:
        """The mean of the two estimates on Gaussian data with the same covariance."""
        return (self.two_nn_linear.value + self.levina_bickel_linear.value) / 2

    @property
    def low(self) -> float:
        """The smallest estimate."""
        return min(self.two_nn.low, self.levina_bickel.low)

    @property
    def high(self) -> float:
        """The largest estimate."""
        return max(self.two_nn.high, self.levina_bickel.high)

    @property
    def limit(self) -> int | None:
        """Most latents that curved data are expected to use: the dimension at the largest scale; None if linear."""
        return max(1, math.ceil(self.low - 0.25)) if self.curved else None

    @property
    def curved(self) -> bool:
        """Whether both estimates, with two standard errors, are below 0.8 times those of linear data.

        The factor is a convention: linear data with a few samples stay above it.
        """
        error = 1 + 2 / self.samples**0.5
        pairs = ((self.two_nn, self.two_nn_linear), (self.levina_bickel, self.levina_bickel_linear))
        return all(error * own.value < 0.8 * linear.value for own, linear in pairs)


def two_nn(distances: Array) -> float:
    r"""TwoNN (Facco et al. 2017): d from the ratios μ = r₂/r₁, which follow 1 - μ^{-d}.

    A line through the origin is fitted to -log(1 - F(μ)) over log μ, without the largest tenth of the ratios.

    Args:
        distances: (N, at least 2) to the nearest neighbours of every sample, ascending.
    """
    ratios = np.sort(np.log(distances[:, 1] / distances[:, 0]))
    kept = max(2, int(len(ratios) * 0.9))
    log_ratio = ratios[:kept]
    height = -np.log1p(-np.arange(kept) / len(ratios))
    return float((log_ratio @ height) / max(log_ratio @ log_ratio, 1e-300))


def levina_bickel(distances: Array, neighbours: int) -> float:
    """The maximum-likelihood estimator (Levina & Bickel 2004), with inverses averaged (MacKay & Ghahramani 2005)."""
    logs = np.log(distances[:, neighbours - 1 : neighbours] / distances[:, : neighbours - 1])
    return float(1 / max(logs.mean(), 1e-300))


def neighbour_distances(x: Array, count: int) -> Array:
    """(N, count) distances of every row to its nearest different rows."""
    from sklearn.neighbors import NearestNeighbors

    found = NearestNeighbors(n_neighbors=count + 1).fit(x).kneighbors(x)[0][:, 1:]
    return np.maximum(found, 1e-12 * max(float(found.max(initial=0.0)), 1e-300))


def intrinsic_dimension(x: Array, eigenvalues: Array) -> IntrinsicDimension | None:
    """Estimates for rows without duplicates; None for fewer than 50 different rows.

    Args:
        x: a random sample of rows.
        eigenvalues: of the covariance, for the comparison with linear data.

    >>> z = np.random.default_rng(0).normal(size=(1000, 2))
    >>> found = intrinsic_dimension(z @ np.ones((2, 5)) + np.pad(z, ((0, 0), (0, 3))), np.array([7.0, 1.0]))
    >>> round(found.value), found.curved
    (2, False)
    """
    distinct = np.unique(np.asarray(x, np.float64), axis=0)
    if len(distinct) < SMALLEST_SAMPLE:
        return None
    rng = np.random.default_rng(0)
    rows = rng.permutation(distinct)[:3000]
    positive = eigenvalues[eigenvalues > 0]
    linear = rng.standard_normal((len(rows), len(positive))) * np.sqrt(positive)
    return IntrinsicDimension(*_estimates(rows), *_estimates(linear), samples=len(rows))


def _estimates(x: Array) -> tuple[Estimate, Estimate]:
    """TwoNN on all, a half and a quarter of the sample, at growing distances; Levina-Bickel with 5, 10 and 20."""
    counts = [k for k in (5, 10, 20) if k < len(x) // 2]
    distances = neighbour_distances(x, max(counts))
    bickel = [levina_bickel(distances, k) for k in counts]
    halves = [x[: len(x) // part] for part in (2, 4) if len(x) // part >= SMALLEST_SAMPLE]
    twos = [two_nn(distances), *(two_nn(neighbour_distances(half, 2)) for half in halves)]
    middle = bickel[min(1, len(bickel) - 1)]
    return Estimate(twos[0], min(twos), max(twos)), Estimate(middle, min(bickel), max(bickel))
