"""Intrinsic dimension from distances to nearest neighbours: TwoNN and the estimator of Levina & Bickel, with spread.

Both estimate the dimension of a manifold at the scale of the distances between neighbours, and both are too low in high
dimension with few samples. So the same estimators are applied to Gaussian data with the same covariance: what the
dimension would look like if the data were linear. Where the data are clearly below that, they are curved (or
clustered), and a non-linear VAE needs fewer latents than PCA.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from sklearn.neighbors import NearestNeighbors

Array = np.ndarray

NEIGHBOURS = (5, 10, 20)  # of the Levina-Bickel estimator; the range of its results is its spread
TRIMMED = 0.1  # largest ratios of distances that TwoNN leaves out
HALVINGS = (1, 2, 4)  # parts of the sample on which TwoNN is repeated, at growing distances
SAMPLE = 3000  # rows on which the estimators run
CURVED_RATIO = 0.8  # of the dimension of linear data, below which data are curved
SMALLEST_SAMPLE = 50


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
        return min(self.two_nn.low, self.levina_bickel.low)

    @property
    def high(self) -> float:
        return max(self.two_nn.high, self.levina_bickel.high)

    @property
    def limit(self) -> int | None:
        """Most latents that curved data are expected to use: the dimension at the largest scale; None if linear."""
        return max(1, math.ceil(self.low - 0.25)) if self.curved else None

    @property
    def curved(self) -> bool:
        """Whether both estimates, with two standard errors, are clearly below those of linear data."""
        error = 1 + 2 / self.samples**0.5
        pairs = ((self.two_nn, self.two_nn_linear), (self.levina_bickel, self.levina_bickel_linear))
        return all(error * own.value < CURVED_RATIO * linear.value for own, linear in pairs)


def two_nn(distances: Array) -> float:
    r"""TwoNN (Facco et al. 2017): d from the ratios μ = r₂/r₁, which follow 1 - μ^{-d}.

    A line through the origin is fitted to -log(1 - F(μ)) over log μ, without the largest ratios.

    Args:
        distances: (N, at least 2) to the nearest neighbours of every sample, ascending.
    """
    ratios = np.sort(np.log(distances[:, 1] / distances[:, 0]))
    kept = max(2, int(len(ratios) * (1 - TRIMMED)))
    log_ratio = ratios[:kept]
    height = -np.log1p(-np.arange(kept) / len(ratios))
    return float((log_ratio @ height) / max(log_ratio @ log_ratio, 1e-300))


def levina_bickel(distances: Array, neighbours: int) -> float:
    """The maximum-likelihood estimator (Levina & Bickel 2004), with inverses averaged (MacKay & Ghahramani 2005)."""
    logs = np.log(distances[:, neighbours - 1 : neighbours] / distances[:, : neighbours - 1])
    return float(1 / max(logs.mean(), 1e-300))


def neighbour_distances(x: Array, count: int) -> Array:
    """(N, count) distances of every row to its nearest different rows."""
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
    rows = rng.permutation(distinct)[:SAMPLE]
    positive = eigenvalues[eigenvalues > 0]
    linear = rng.standard_normal((len(rows), len(positive))) * np.sqrt(positive)
    return IntrinsicDimension(*_estimates(rows), *_estimates(linear), samples=len(rows))


def _estimates(x: Array) -> tuple[Estimate, Estimate]:
    counts = [k for k in NEIGHBOURS if k < len(x) // 2]
    distances = neighbour_distances(x, max(counts))
    bickel = [levina_bickel(distances, k) for k in counts]
    parts = [len(x) // part for part in HALVINGS if len(x) // part >= SMALLEST_SAMPLE]
    twos = [two_nn(distances)] + [two_nn(neighbour_distances(x[:part], 2)) for part in parts[1:]]
    return _estimate(twos[0], twos), _estimate(bickel[min(1, len(bickel) - 1)], bickel)


def _estimate(value: float, values: list[float]) -> Estimate:
    return Estimate(value, min(values), max(values))
