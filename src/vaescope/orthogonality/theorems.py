"""The theorems of Bhowal et al. 2024, measured on trained models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from vaescope.errors import InputError
from vaescope.validation import same_rows, tensor, whole_number

SAME_LENGTH = 1e-4  # columns whose log lengths differ by less have the same length


@dataclass(frozen=True)
class InverseSquare:
    """Theorem 1 (c), σ_j² ∝ 1/‖c_j‖²: the regression of log σ² on log ‖c‖² has slope -1."""

    slope: float
    low: float
    high: float
    """95 % interval, by bootstrap over samples."""
    r2: float


def inverse_square(variance: object, norms: object, *, resamples: int = 200, seed: int = 0) -> InverseSquare:
    """Regress log σ_j² on log ‖c_j‖² over active latents, with an intercept per sample.

    Args:
        variance: (N, d) posterior variances of active latents.
        norms: (N, d) lengths of the columns of the local decoder.
        resamples: bootstrap samples.
        seed: of the bootstrap.

    >>> norms = torch.rand(50, 4) + 0.1
    >>> round(inverse_square(3 / norms**2, norms).slope, 4)
    -1.0
    """
    spread, lengths = tensor(variance, "variance"), tensor(norms, "norms")
    if spread.shape != lengths.shape or spread.ndim != 2 or spread.shape[1] < 2:
        raise InputError(
            f"variance and norms must be (N, d) with at least two latents, got {tuple(spread.shape)} and "
            f"{tuple(lengths.shape)}; pass the active latents only."
        )
    if not bool((spread > 0).all() and (lengths > 0).all()):
        raise InputError("variance and norms must be > 0; exclude latents that the decoder ignores.")
    whole_number("resamples", resamples)
    y, x = np.log(spread.double().cpu().numpy()), 2 * np.log(lengths.double().cpu().numpy())
    y, x = (a - a.mean(1, keepdims=True) for a in (y, x))
    # slopes of bootstrap samples follow from sums per sample
    products, squares = (x * y).sum(1), (x * x).sum(1)
    if not squares.mean() > SAME_LENGTH**2:
        raise InputError("all columns have the same length, so the slope is undefined.")
    weights = np.random.default_rng(seed).multinomial(len(x), np.full(len(x), 1 / len(x)), size=resamples)
    slopes = (weights @ products) / np.maximum(weights @ squares, np.finfo(float).tiny)
    slope = products.sum() / squares.sum()
    residual, total = ((y - slope * x) ** 2).sum(), (y * y).sum()
    low, high = np.quantile(slopes, (0.025, 0.975))
    return InverseSquare(float(slope), float(low), float(high), float(1 - residual / total) if total > 0 else math.nan)


def neighbour_distance(x: object, codes: object, *, typical: bool = True) -> Float[Tensor, " N"]:
    """Latent distance between each sample and its nearest neighbour in data space.

    Theorem 2: it decreases with the KL.

    Args:
        x: (N, ...) samples, at least three.
        codes: (N, d) latents.
        typical: divide by the root mean square distance between codes, since a lower KL shrinks all distances; False
            gives the distance of the theorem.

    >>> neighbour_distance(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[0.0], [2.0], [4.0]])).tolist()[0] > 0
    True
    """
    samples, latents = tensor(x, "x", minimum=3), tensor(codes, "codes", minimum=3)
    same_rows({"x": len(samples), "codes": len(latents)})
    flat = samples.flatten(1).cpu().numpy()
    _, neighbours = NearestNeighbors(n_neighbors=2).fit(flat).kneighbors(flat)
    # a duplicate may be listed before the sample itself
    own = np.arange(len(flat))
    nearest = np.where(neighbours[:, 0] == own, neighbours[:, 1], neighbours[:, 0])
    distance = (latents - latents[torch.from_numpy(nearest)]).norm(dim=1)
    if not typical:
        return distance
    scale = (2 * latents.var(0, unbiased=False).sum()).sqrt()
    return distance / scale.clamp(min=torch.finfo(scale.dtype).tiny)
