r"""MIG from posteriors instead of bins: the estimator of Chen et al. 2018, based on the aggregated posterior.

I(z_j; v_k) = E log q(z_j|v_k) − E log q(z_j), where q(z_j) is the mixture of all posteriors and q(z_j|v_k) that of the
posteriors of samples with the same value of the factor. Both mixtures are exact for the given samples; only the
expectation over z is sampled. On a full grid of factors this is the published estimator. On a small random subset every
mixture has few components, and information is overestimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vaescope import validation
from vaescope.errors import InputError
from vaescope.metrics.information import PairwiseInformation, factor_classes
from vaescope.metrics.inputs import read_inputs
from vaescope.metrics.mig import top_gap

DEFAULT_DRAWS = 2000
DENSITIES_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class AggregatedMIG:
    """MIG and MIG-sup of posteriors, and the information they are computed from."""

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
    draws: int = DEFAULT_DRAWS,
    discrete: bool | Sequence[bool] | None = None,
    seed: int = 0,
) -> AggregatedMIG:
    """Mutual information gaps of sampled codes, from the mean and variance of every posterior.

    A latent whose mean moves less than its posterior is wide has no information here.

    Args:
        mean: (N, d).
        variance: (N, d), > 0.
        factors: (N, k); continuous factors are binned.
        active: which latents to average over for MIG-sup; by default all.
        draws: number of samples z.
        discrete: which factors are classes; by default those with few distinct values.
        seed: seed of the samples z.

    >>> v = np.repeat([0.0, 1.0], 50)[:, None]
    >>> found = aggregated_mig(np.hstack([v, 0 * v]), np.full((100, 2), 1e-4), v)
    >>> round(found.score, 3)
    1.0
    """
    centre, spread = validation.matrix(mean, "mean"), validation.matrix(variance, "variance")
    if spread.shape != centre.shape:
        raise InputError(f"mean and variance must have the same shape, got {centre.shape} and {spread.shape}.")
    d = centre.shape[1]
    inputs = read_inputs(np.hstack([centre, spread]), factors, discrete=discrete)  # shuffles both alike
    centre, spread = inputs.codes[:, :d], inputs.codes[:, d:]
    if not (spread > 0).all():
        raise InputError("variance must be > 0; pass variances, not log-variances.")
    validation.whole_number("draws", draws, minimum=2)
    mask = np.ones(d, dtype=bool) if active is None else validation.latent_mask(active, d)
    found = _information(centre, spread, factor_classes(inputs), draws, seed)
    per_latent = top_gap(found.normalised.T)
    per_factor = top_gap(found.normalised)
    sup = float(per_latent[mask].mean()) if mask.any() else 0.0
    return AggregatedMIG(float(per_factor.mean()), per_factor, sup, found.mutual, found.entropy)


def _information(
    mean: np.ndarray, variance: np.ndarray, labels: np.ndarray, draws: int, seed: int
) -> PairwiseInformation:
    """Every latent against every factor; one matrix of densities serves all factors of a latent."""
    rng = np.random.default_rng(seed)
    N, d = mean.shape
    chosen = np.arange(N) if draws >= N else rng.choice(N, draws, replace=False)
    z = mean[chosen] + np.sqrt(variance[chosen]) * rng.standard_normal((len(chosen), d))
    values = [np.bincount(column) for column in labels.T]
    offsets = np.concatenate([[0], np.cumsum([len(v) for v in values])])
    same_value = np.zeros((N, offsets[-1]))  # indicators of all values of all factors
    columns = labels + offsets[:-1]
    np.put_along_axis(same_value, columns, 1.0, axis=1)
    counts = same_value.sum(0)
    mutual = np.zeros((d, labels.shape[1]))
    for part in np.array_split(np.arange(len(chosen)), max(1, len(chosen) * N // DENSITIES_AT_ONCE)):
        drawn_columns = columns[chosen[part]]
        for j in range(d):
            density = -0.5 * ((z[part, j, None] - mean[:, j]) ** 2 / variance[:, j] + np.log(variance[:, j]))
            density = np.exp(density - density.max(1, keepdims=True))
            conditional = np.take_along_axis(density @ same_value, drawn_columns, axis=1) / counts[drawn_columns]
            tiny = np.finfo(float).tiny
            log_ratio = np.log(np.maximum(conditional, tiny)) - np.log(density.mean(1, keepdims=True))
            mutual[j] += log_ratio.sum(0)
    shares = [v / N for v in values]
    entropy = np.array([-(p[p > 0] * np.log(p[p > 0])).sum() for p in shares])
    return PairwiseInformation(np.clip(mutual / len(chosen), 0, entropy), entropy)
