"""What the theorems of Bhowal et al. 2024 say of a trained model, as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from vaescope.errors import InputError
from vaescope.orthogonality.inputs import count, numbers

ALIKE = 1e-4  # columns whose lengths differ by less have one length


@dataclass(frozen=True)
class InverseSquare:
    """Theorem 1 (c), σ_j² ∝ 1/‖c_j‖²: a line of log σ² over log ‖c‖², its slope to be -1."""

    slope: float
    low: float
    high: float
    """95 % interval, by bootstrap over samples."""
    r2: float


def inverse_square(variance: object, norms: object, *, resamples: int = 200, seed: int = 0) -> InverseSquare:
    """Regress log σ_j² on log ‖c_j‖² over the given (active) latents, every sample with a constant of its own.

    >>> norms = torch.rand(50, 4) + 0.1
    >>> round(inverse_square(3 / norms**2, norms).slope, 4)
    -1.0
    """
    spread, lengths = numbers(variance, "variance"), numbers(norms, "norms")
    if spread.shape != lengths.shape or spread.ndim != 2 or spread.shape[1] < 2:
        raise InputError(
            f"variance and norms must be (N, d) with at least two latents, got {tuple(spread.shape)} and "
            f"{tuple(lengths.shape)}; leave passive latents out, keep the rest."
        )
    if not bool((spread > 0).all() and (lengths > 0).all()):
        raise InputError("variance and norms must be > 0; leave latents out that the decoder ignores.")
    count(resamples, "resamples", 1)
    y, x = np.log(spread.double().cpu().numpy()), 2 * np.log(lengths.double().cpu().numpy())
    y, x = (a - a.mean(1, keepdims=True) for a in (y, x))
    # slopes of resampled samples from sums per sample: no regression is solved twice
    products, squares = (x * y).sum(1), (x * x).sum(1)
    if not squares.mean() > ALIKE**2:
        raise InputError("all columns have one length, so no slope can be told.")
    weights = np.random.default_rng(seed).multinomial(len(x), np.full(len(x), 1 / len(x)), size=resamples)
    slopes = (weights @ products) / np.maximum(weights @ squares, np.finfo(float).tiny)
    slope = products.sum() / squares.sum()
    left = ((y - slope * x) ** 2).sum()
    low, high = np.quantile(slopes, (0.025, 0.975))
    whole = (y * y).sum()
    return InverseSquare(float(slope), float(low), float(high), float(1 - left / whole) if whole > 0 else math.nan)


def neighbour_distance(x: object, codes: object, *, typical: bool = True) -> Float[Tensor, " N"]:
    """Latent distance of every sample to its nearest neighbour in data space, over the typical latent distance.

    Theorem 2: it falls as the KL falls. Relative to the root mean square distance between codes, since a lower KL
    shrinks all of them; `typical=False` leaves it as it is, as the theorem has it.

    >>> neighbour_distance(torch.tensor([[0.0], [1.0], [5.0]]), torch.tensor([[0.0], [2.0], [4.0]])).tolist()[0] > 0
    True
    """
    rows, places_of = numbers(x, "x"), numbers(codes, "codes")
    if len(rows) != len(places_of) or len(rows) < 3:
        raise InputError(f"x and codes need a row per sample, at least three, got {len(rows)} and {len(places_of)}.")
    flat = rows.flatten(1).cpu().numpy()
    _, places = NearestNeighbors(n_neighbors=2).fit(flat).kneighbors(flat)
    # a repeated image may be found before the sample itself
    own = np.arange(len(flat))
    nearest = np.where(places[:, 0] == own, places[:, 1], places[:, 0])
    apart = (places_of - places_of[torch.from_numpy(nearest)]).norm(dim=1)
    if not typical:
        return apart
    scale = (2 * places_of.var(0, unbiased=False).sum()).sqrt()
    return apart / scale.clamp(min=torch.finfo(scale.dtype).tiny)
