r"""MIG from posteriors instead of bins: the estimator of Chen et al. 2018, by the aggregated posterior.

I(z_j; v_k) = E log q(z_j|v_k) − E log q(z_j), with q(z_j) the mixture of all posteriors and q(z_j|v_k) that of the
samples with the same value of the factor. Both mixtures are exact for the given samples; draws of z are the only
chance. On a full grid of factors this is the published estimator. On a small part of it, every mixture has few
components and each draw knows its own: information is overstated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vaescope.errors import InputError
from vaescope.metrics.information import Information, factor_classes
from vaescope.metrics.inputs import data, matrix
from vaescope.metrics.mig import top_gap

DRAWS = 2000
NUMBERS_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class AggregatedMIG:
    """MIG and MIG-sup of posteriors, with what they are made of."""

    score: float
    per_factor: np.ndarray
    sup: float
    """MIG-sup over active latents."""
    mutual_information: np.ndarray
    """(d, k), in nats."""
    factor_entropy: np.ndarray


def aggregated_mig(
    mean: object,
    variance: object,
    factors: object,
    *,
    active: Sequence[bool] | np.ndarray | None = None,
    draws: int = DRAWS,
    discrete: bool | Sequence[bool] | None = None,
    seed: int = 0,
) -> AggregatedMIG:
    """Mutual information gaps of the codes themselves, noise included, from mean and variance of every posterior.

    Latents that a decoder cannot read because their noise drowns them have no information here, whatever their means
    do. `active` says which latents count for MIG-sup; by default all. Continuous factors are binned.

    >>> v = np.repeat([0.0, 1.0], 50)[:, None]
    >>> found = aggregated_mig(np.hstack([v, 0 * v]), np.full((100, 2), 1e-4), v)
    >>> round(found.score, 3)
    1.0
    """
    centre, spread = matrix(mean, "means"), matrix(variance, "variances")
    if spread.shape != centre.shape:
        raise InputError(f"mean and variance must have one shape, got {centre.shape} and {spread.shape}.")
    d = centre.shape[1]
    arrays = data(np.hstack([centre, spread]), factors, discrete=discrete)  # one order for both
    centre, spread = arrays.codes[:, :d], arrays.codes[:, d:]
    if not (spread > 0).all():
        raise InputError("variance must be > 0; pass variances, not log-variances.")
    if draws < 2:
        raise InputError(f"draws must be at least 2, got {draws}.")
    counted = np.ones(d, dtype=bool) if active is None else np.asarray(active)
    if counted.shape != (d,) or counted.dtype != bool:
        raise InputError(f"active must hold True or False for each of {d} latents, got {active!r}.")
    found = _information(centre, spread, factor_classes(arrays), draws, seed)
    per_latent = top_gap(found.normalised.T)
    per_factor = top_gap(found.normalised)
    sup = float(per_latent[counted].mean()) if counted.any() else 0.0
    return AggregatedMIG(float(per_factor.mean()), per_factor, sup, found.mutual, found.entropy)


def _information(mean: np.ndarray, variance: np.ndarray, labels: np.ndarray, draws: int, seed: int) -> Information:
    """Every latent against every factor; one matrix of densities serves all factors of a latent."""
    rng = np.random.default_rng(seed)
    N, d = mean.shape
    own = np.arange(N) if draws >= N else rng.choice(N, draws, replace=False)
    z = mean[own] + np.sqrt(variance[own]) * rng.standard_normal((len(own), d))
    values = [np.bincount(column) for column in labels.T]
    first = np.concatenate([[0], np.cumsum([len(v) for v in values])])
    member = np.zeros((N, first[-1]))  # which samples share a value, all factors side by side
    places = labels + first[:-1]
    np.put_along_axis(member, places, 1.0, axis=1)
    counts = member.sum(0)
    mutual = np.zeros((d, labels.shape[1]))
    for some in np.array_split(np.arange(len(own)), max(1, len(own) * N // NUMBERS_AT_ONCE)):
        for j in range(d):
            density = -0.5 * ((z[some, j, None] - mean[:, j]) ** 2 / variance[:, j] + np.log(variance[:, j]))
            density = np.exp(density - density.max(1, keepdims=True))
            mixtures = np.take_along_axis(density @ member, places[own[some]], axis=1) / counts[places[own[some]]]
            tiny = np.finfo(float).tiny
            gained = np.log(np.maximum(mixtures, tiny)) - np.log(density.mean(1, keepdims=True))
            mutual[j] += gained.sum(0)
    shares = [v / N for v in values]
    entropy = np.array([-(p[p > 0] * np.log(p[p > 0])).sum() for p in shares])
    return Information(np.clip(mutual / len(own), 0, entropy), entropy)
