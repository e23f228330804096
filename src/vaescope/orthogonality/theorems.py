"""The theorems of Bhowal et al. 2024, measured on trained models."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.stats import spearmanr
from torch import Tensor

from vaescope.distributions import Normal, kl_per_latent
from vaescope.errors import InputError
from vaescope.validation import matrices, posterior, same_rows, tensor, whole_number

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

    >>> import torch
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


@dataclass(frozen=True, eq=False)
class LatentAxes:
    """§3.5: column lengths, variances and KL of every latent, over samples."""

    length: Float[Tensor, " d"]
    """Root mean square of ‖c_j‖."""
    variance: Float[Tensor, " d"]
    """E_i σ_j²."""
    kl: Float[Tensor, " d"]
    inverse_square: Float[Tensor, " d"]
    """E_i 1/‖c_j‖², which the paper equates with 1/‖c_j‖²; larger than 1/length² wherever lengths vary (Jensen)."""
    length_variance: float
    """Rank correlation of length and variance over latents; -1 in theory."""
    length_kl: float
    """Rank correlation of length and KL over latents; +1 in theory: long columns contribute most to the KL."""


def latent_axes(columns: object, mean: object, variance: object) -> LatentAxes:
    """How σ² and KL relate to the lengths of the local decoder's columns (Bhowal et al. 2024, §3.5).

    Args:
        columns: (N, n, d) local decoders or Jacobians of active latents.
        mean: (N, d) posterior means.
        variance: (N, d) posterior variances.
    """
    M = matrices(columns, "columns")
    means, variances = posterior(mean, variance)
    if M.ndim != 3 or M.shape[2] != means.shape[1] or M.shape[2] < 3:
        raise InputError(f"columns must be (N, n, d) with at least three latents, got {tuple(M.shape)}.")
    same_rows({"columns": len(M), "mean": len(means)})
    squares = M.square().sum(1)
    if not bool((squares > 0).all()):
        raise InputError("columns must not be zero; exclude latents that the decoder ignores.")
    length, kl = squares.mean(0).sqrt(), kl_per_latent(means.double(), variances.double(), Normal()).mean(0)
    spread = variances.double().mean(0)
    ranks = [float(spearmanr(length.cpu().numpy(), other.cpu().numpy()).statistic) for other in (spread, kl)]
    return LatentAxes(length, spread, kl, (1 / squares).mean(0), ranks[0], ranks[1])
