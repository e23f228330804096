"""Which latents a trained model is expected to use, and what common ways to write the loss do to these data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vaescope.inference.linear import explained_share, total_kl, used_count

Array = np.ndarray
FOUND_KL = 0.15  # nats that a latent of curved data must carry to count; chosen in benchmarks/preflight.py


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


@dataclass(frozen=True)
class Convention:
    """A way to write the loss, and what it does to these data."""

    name: str
    code: str
    variance: float
    """β/γ²."""
    used: int
    """Latents that a linear VAE uses."""
    kl: float
    explained: float
    meaning: str

    @property
    def collapses(self) -> bool:
        return self.used == 0


def gaussian_variances(columns: int, latents: int) -> list[tuple[str, str, float]]:
    """Name, code and β/γ² of losses with squared errors.

    >>> [(name, variance) for name, _, variance in gaussian_variances(10, 2)][:2]
    [('half the sum of squares + KL', 1.0), ('sum of squares + KL', 0.5)]
    """
    return [
        ("half the sum of squares + KL", "0.5 * ((x - y) ** 2).sum(1) + kl.sum(1)", 1.0),
        ("sum of squares + KL", "F.mse_loss(y, x, reduction='sum') / len(x) + kl.sum(1).mean()", 0.5),
        ("mean squared error + KL", "F.mse_loss(y, x) + kl.sum(1).mean()", columns / 2),
        ("mean squared error + mean KL", "F.mse_loss(y, x) + kl.mean()", columns / (2 * latents)),
    ]


def bernoulli_variances(columns: int, latents: int) -> list[tuple[str, str, float]]:
    """Name, code and the weight of the KL relative to the log-likelihood, of losses with a cross-entropy.

    >>> [variance for _, _, variance in bernoulli_variances(784, 20)]
    [1.0, 784.0, 39.2]
    """
    return [
        (
            "sum of cross-entropies + KL",
            "F.binary_cross_entropy(y, x, reduction='sum') / len(x) + kl.sum(1).mean()",
            1.0,
        ),
        ("mean cross-entropy + KL", "F.binary_cross_entropy(y, x) + kl.sum(1).mean()", float(columns)),
        ("mean cross-entropy + mean KL", "F.binary_cross_entropy(y, x) + kl.mean()", columns / latents),
    ]


def conventions(eigenvalues: Array, likelihood: str, columns: int, latents: int) -> list[Convention]:
    """Every convention, with what a linear VAE does under it.

    Args:
        eigenvalues: of the covariance (Bernoulli: of the scaled one, see `kinds.bernoulli_scales`).
        likelihood: gaussian or bernoulli.
        columns: n.
        latents: d, of the model.
    """
    listed = bernoulli_variances if likelihood == "bernoulli" else gaussian_variances
    return [
        Convention(
            name,
            code,
            variance,
            used_count(eigenvalues, variance, latents),
            total_kl(eigenvalues, variance, latents),
            explained_share(eigenvalues, variance, latents),
            _meaning(variance, float(eigenvalues.max(initial=0.0)), columns, name, likelihood),
        )
        for name, code, variance in listed(columns, latents)
    ]


def _meaning(variance: float, largest: float, columns: int, name: str, likelihood: str) -> str:
    scale = "" if likelihood == "bernoulli" else " at precision 1"
    averaged = f"it averages over n = {columns} columns: " if name.startswith("mean") else ""
    verdict = "all latents collapse" if variance >= largest else "the first latents are used"
    return f"{averaged}β = {variance:.4g}{scale}; these data collapse from β = {largest:.3g} on: {verdict}."
