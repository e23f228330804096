r"""Which latents a linear VAE uses, in closed form, from the eigenvalues of the data's covariance.

The β-VAE with precision γ² has the optimum of the plain ELBO with decoder variance s = β/γ², which is that of
probabilistic PCA (Tipping & Bishop 1999; Lucas et al. 2019): latent i follows the i-th principal axis if λ_i > s and is
at its prior otherwise. Its posterior variance is s/λ_i and its column has the squared norm λ_i - s.

The collapsed solution of *any* decoder is locally stable exactly if s ≥ λ_1, so the collapse line is more general than
the rest: a small signal ε g(z) gains ε²γ²/2 · E[gᵀΣg/s - gᵀg], at most that of the first principal axis.
"""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray
FOUND_KL = 0.15  # nats that a latent of curved data must carry to count; chosen in benchmarks/preflight.py


def used_count(eigenvalues: Array, variance: float, latents: int | None = None) -> int:
    """How many latents are used: those with λ_i > β/γ².

    Args:
        eigenvalues: of the covariance, in any order.
        variance: β/γ², the variance of the decoder times β.
        latents: how many the model has; as many as there are eigenvalues if not given.

    >>> used_count(np.array([4.0, 1.0, 0.1]), 0.5), used_count(np.array([4.0, 1.0, 0.1]), 4.0)
    (2, 0)
    """
    used = int((eigenvalues > variance).sum())
    return used if latents is None else min(used, latents)


def expected_count(
    eigenvalues: Array,
    variance: float,
    latents: int | None = None,
    *,
    limit: int | None = None,
    least_kl: float | None = None,
) -> int:
    """How many latents a trained model is expected to use: `used_count`, corrected for curved data.

    With little KL a latent gains less than training resolves. One latent always counts below the collapse line, which
    holds for any decoder.

    Args:
        eigenvalues: of the covariance, in any order.
        variance: β/γ².
        latents: how many the model has; as many as there are eigenvalues if not given.
        limit: dimension of curved data (`IntrinsicDimension.limit`); None for linear ones.
        least_kl: nats that a latent must carry to count; `FOUND_KL` with a limit and 0 without, if not given.

    >>> expected_count(np.array([4.0, 1.0, 0.6]), 0.5), expected_count(np.array([4.0, 1.0, 0.6]), 0.5, limit=3)
    (3, 2)
    """
    if least_kl is not None:
        used = used_count(eigenvalues, variance * math.exp(2 * least_kl), latents)
    elif limit is None:
        used = used_count(eigenvalues, variance, latents)
    else:
        found = used_count(eigenvalues, variance * math.exp(2 * FOUND_KL), latents)
        used = max(found, used_count(eigenvalues, variance, 1))
    return used if limit is None else min(used, limit)


def latent_kl(eigenvalues: Array, variance: float) -> Array:
    """Mean KL of every latent, ½ log(λ_i γ²/β), in nats; 0 for those that are not used.

    >>> latent_kl(np.array([np.e**2, 0.5]), 1.0)
    array([1., 0.])
    """
    return 0.5 * np.log(np.maximum(eigenvalues / variance, 1.0))


def total_kl(eigenvalues: Array, variance: float, latents: int | None = None) -> float:
    """KL of the whole code, in nats per sample."""
    return float(latent_kl(_leading(eigenvalues, latents), variance).sum())


def explained_share(eigenvalues: Array, variance: float, latents: int | None = None) -> float:
    """Share of the variance of x that reconstructions from posterior means explain: Σ_used (λ_i - s²/λ_i) / Σ λ_i.

    >>> explained_share(np.array([1.0, 1.0]), 0.5, latents=1)
    0.375
    """
    leading = _leading(eigenvalues, latents)
    used = leading[leading > variance]
    total = float(eigenvalues.sum())
    return float((used - variance**2 / used).sum()) / total if total > 0 else 0.0


def collapse_variance(eigenvalues: Array) -> float:
    """λ_1: every latent is at its prior if β/γ² is at least this.

    >>> collapse_variance(np.array([0.1, 4.0]))
    4.0
    """
    return float(eigenvalues.max(initial=0.0))


def optimal_variance(eigenvalues: Array, latents: int, columns: int, total: float) -> float:
    """Maximum-likelihood decoder variance with so many latents at β = 1: the mean of the variances left out.

    Args:
        eigenvalues: the leading ones, or all.
        latents: d; at most one less than the number of columns counts.
        columns: n, the number of eigenvalues including zeros.
        total: the sum of all eigenvalues.

    >>> optimal_variance(np.array([4.0, 1.0, 0.5, 0.5]), 2, 4, 6.0)
    0.5
    """
    kept = min(latents, columns - 1)
    left = total - float(_leading(eigenvalues, kept).sum())
    return max(left, 0.0) / (columns - kept)


def variance_for(eigenvalues: Array, latents: int) -> float:
    """A β/γ² at which exactly so many latents are used: between two eigenvalues, half-way on a logarithmic scale.

    Below the last eigenvalue it is a quarter of it.

    >>> variance_for(np.array([4.0, 1.0, 0.25]), 1), variance_for(np.array([4.0, 1.0]), 2)
    (2.0, 0.25)
    """
    ordered = _leading(eigenvalues, None)
    positive = ordered[ordered > 0]
    latents = min(latents, len(positive))
    if latents == 0:
        return 2 * collapse_variance(eigenvalues)
    if latents == len(positive):
        return float(positive[-1]) / 4
    return math.sqrt(float(positive[latents - 1]) * float(positive[latents]))


def _leading(eigenvalues: Array, latents: int | None) -> Array:
    """The largest eigenvalues, in descending order."""
    return np.sort(eigenvalues)[::-1][:latents]
