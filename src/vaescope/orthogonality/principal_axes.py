r"""Images reconstructed from sets of principal axes (Bhowal et al. 2024, Tab. 7 and Fig. 5), in either order.

Axes are orthogonal, so a set S leaves exactly the variance of the other axes unexplained:

.. math:: E\|x - x_S\|^2 = \sum_{j \notin S} λ_j

No image has to be reconstructed to compute it. λ is sorted, so the variance explained per axis decreases with each step
in descending order, and increases in ascending order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError
from vaescope.validation import choice

ORDERS = ("descending", "ascending")


@dataclass(frozen=True, eq=False)
class PrincipalAxes:
    """Mean, axes and variances of a data set, in descending order of variance."""

    mean: Float[Tensor, " n"]
    axes: Float[Tensor, "r n"]
    """Orthonormal rows: the r <= n axes with non-zero variance."""
    variances: Float[Tensor, " n"]
    """Of all n axes; zero beyond r."""

    @classmethod
    def of(cls, x: Float[Tensor, "N n"]) -> PrincipalAxes:
        """Exact principal axes: from the covariance, or from the SVD of x if it has fewer rows than columns."""
        if x.ndim != 2 or len(x) < 2 or not bool(x.isfinite().all()):
            raise InputError(f"principal axes need finite rows (N, n), at least two, got {tuple(x.shape)}.")
        mean = x.double().mean(0)
        centred = x.double() - mean
        if len(x) < x.shape[1]:
            _, singular, axes = torch.linalg.svd(centred, full_matrices=False)
            found = singular.square() / len(x)
        else:
            found, vectors = torch.linalg.eigh(centred.mT @ centred / len(x))
            found, axes = found.flip(0), vectors.mT.flip(0)
        nonzero = found > found.max() * max(x.shape) * torch.finfo(torch.float64).eps
        variances = torch.zeros(x.shape[1], dtype=torch.float64)
        variances[: int(nonzero.sum())] = found[nonzero]
        return cls(mean, axes[nonzero], variances)

    def error(self, first: int, last: int, order: str = "descending") -> float:
        """Mean squared error, summed over pixels, of images reconstructed from axes `first` to `last` of this order.

        Args:
            first: number of the first axis, from 0.
            last: number after the last axis.
            order: `descending` or `ascending` variance.

        >>> axes = PrincipalAxes.of(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]))
        >>> axes.error(0, 1), axes.error(0, 1, "ascending")
        (0.5, 4.5)
        """
        low, high = self._range(first, last, order)
        return float(self.variances.sum() - self.variances[low:high].sum())

    def reconstruct(
        self, x: Float[Tensor, "N n"], first: int, last: int, order: str = "descending"
    ) -> Float[Tensor, "N n"]:
        """Images from these axes alone; axes with zero variance contribute nothing."""
        low, high = self._range(first, last, order)
        used = self.axes[low : min(high, len(self.axes))]
        return ((x.double() - self.mean) @ used.mT @ used + self.mean).to(x.dtype)

    def _range(self, first: int, last: int, order: str) -> tuple[int, int]:
        """The same axes, numbered in descending order of variance."""
        n = len(self.variances)
        choice("order", order, ORDERS)
        if not 0 <= first < last <= n:
            raise InputError(f"axes must satisfy 0 <= first < last <= {n}, got {first} to {last}.")
        return (first, last) if order == "descending" else (n - last, n - first)


def explained_per_axis(errors: Mapping[int, float], total: float) -> list[tuple[int, int, float]]:
    """Variance explained per axis in each step, from the errors of the first k axes: (from, to, variance per axis).

    >>> explained_per_axis({1: 6.0, 3: 2.0}, 10.0)
    [(0, 1, 4.0), (1, 3, 2.0)]
    """
    counts = [0, *sorted(errors)]
    left = {0: total, **errors}
    return [(a, b, (left[a] - left[b]) / (b - a)) for a, b in pairwise(counts)]


def order_of(explained: Sequence[float]) -> str:
    """The order of axes that these steps are consistent with: descending, ascending, or neither.

    >>> order_of([3.0, 2.0, 1.0]), order_of([0.1, 0.4]), order_of([0.1, 0.4, 0.2])
    ('descending', 'ascending', 'neither')
    """
    steps = np.diff(explained)
    return "descending" if (steps <= 0).all() else "ascending" if (steps >= 0).all() else "neither"
