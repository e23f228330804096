r"""Which latents a linear VAE uses, in closed form, from the eigenvalues of the data's covariance.

The β-VAE with precision γ² has the optimum of the plain ELBO with decoder variance s = β/γ², which is that of
probabilistic PCA (Tipping & Bishop 1999; Lucas et al. 2019): latent i follows the i-th principal axis if λ_i > s and is
at its prior otherwise. Its posterior variance is s/λ_i and its column has the squared norm λ_i - s.

The collapsed solution of *any* decoder is locally stable exactly if s ≥ λ_1, so the collapse line is more general than
the rest: a small signal ε g(z) gains ε²γ²/2 · E[gᵀΣg/s - gᵀg], at most that of the first principal axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vaescope.products.preflight.spectrum import Spectrum

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


START_RATIO = 20.0  # λ_d / variance at the start: every latent carries at least ½ log 20 = 1.5 nats, and is found soon


def least_variance(spectrum: Spectrum, latents: int) -> float:
    """The largest decoder variance that `vs.fit` allows while it looks for the best one.

    That of PCA with as many latents: a VAE that is trained well is at least as good. Where there is nothing to tell
    signal from noise (no direction stands out, or there are as many latents as columns), it is a twentieth of λ_d.
    Eigenvalues below a millionth of the mean do not count.

    >>> import numpy as np
    >>> least_variance(Spectrum(np.array([10.0, 1.0, 1.0, 1.0]), 13.0, 4, 1000), 2)
    1.0
    >>> least_variance(Spectrum(np.ones(4), 4.0, 4, 1000), 2)
    0.05
    """
    if spectrum.total <= 0:
        return 1.0
    smallest = 1e-6 * spectrum.total / spectrum.rank
    latents = min(latents, int((spectrum.eigenvalues > smallest).sum()))
    if spectrum.flat or latents >= spectrum.rank:
        return float(spectrum.eigenvalues[latents - 1]) / START_RATIO
    return max(optimal_variance(spectrum.eigenvalues, latents, spectrum.rank, spectrum.total), smallest)


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
