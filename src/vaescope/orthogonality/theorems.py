"""What the theorems of Bhowal et al. 2024 say of a trained model, as numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from vaescope.errors import InputError


@dataclass(frozen=True)
class InverseSquare:
    """Theorem 1 (c), σ_j² ∝ 1/‖c_j‖²: a line of log σ² over log ‖c‖², its slope to be -1."""

    slope: float
    low: float
    high: float
    """95 % interval, by bootstrap over samples."""
    r2: float


def inverse_square(
    variance: Float[Tensor, "N d"], norms: Float[Tensor, "N d"], *, resamples: int = 200, seed: int = 0
) -> InverseSquare:
    """Regress log σ_j² on log ‖c_j‖² over the given (active) latents, every sample with a constant of its own.

    >>> norms = torch.rand(50, 4) + 0.1
    >>> round(inverse_square(3 / norms**2, norms).slope, 4)
    -1.0
    """
    if variance.shape != norms.shape or variance.ndim != 2 or variance.shape[1] < 2:
        raise InputError(
            f"variance and norms must be (N, d) with at least two latents, got {tuple(variance.shape)} and "
            f"{tuple(norms.shape)}; leave passive latents out, keep the rest."
        )
    if not bool((variance > 0).all() and (norms > 0).all()):
        raise InputError("variance and norms must be > 0; leave latents out that the decoder ignores.")
    y, x = (np.log(t.detach().double().cpu().numpy()) for t in (variance, norms**2))
    y, x = (a - a.mean(1, keepdims=True) for a in (y, x))
    # slopes of resampled samples from sums per sample: no regression is solved twice
    products, squares = (x * y).sum(1), (x * x).sum(1)
    if not squares.sum() > 0:
        raise InputError("all columns have one length, so no slope can be told.")
    weights = np.random.default_rng(seed).multinomial(len(x), np.full(len(x), 1 / len(x)), size=resamples)
    slopes = (weights @ products) / np.maximum(weights @ squares, np.finfo(float).tiny)
    slope = products.sum() / squares.sum()
    left = ((y - slope * x) ** 2).sum()
    low, high = np.quantile(slopes, (0.025, 0.975))
    return InverseSquare(float(slope), float(low), float(high), float(1 - left / max((y * y).sum(), 1e-300)))


def neighbour_distance(x: Float[Tensor, "N n"], codes: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
    """Latent distance of every sample to its nearest neighbour in data space, over the typical latent distance.

    Theorem 2: it falls as the KL falls. Relative to the root mean square distance between codes, since a lower KL
    shrinks all of them.

    >>> neighbour_distance(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[0.0], [2.0], [4.0]])).tolist()[0] > 0
    True
    """
    if len(x) != len(codes) or len(x) < 3:
        raise InputError(f"x and codes need a row per sample, at least three, got {len(x)} and {len(codes)}.")
    flat = x.detach().flatten(1).cpu().numpy()
    _, places = NearestNeighbors(n_neighbors=2).fit(flat).kneighbors(flat)
    # a repeated image may be found before the sample itself
    own = np.arange(len(flat))
    nearest = np.where(places[:, 0] == own, places[:, 1], places[:, 0])
    apart = (codes - codes[torch.from_numpy(nearest)]).norm(dim=1)
    typical = (2 * codes.var(0, unbiased=False).sum()).sqrt()
    return apart / typical.clamp(min=torch.finfo(codes.dtype).tiny)
