"""The linear VAE in closed form: for a given decoder, and at the optimum from the eigenvalues of the data's covariance.

A decoder W: x = W z + noise of precision γ², z ~ N(0, I). Reizinger et al. 2022, appendix 10.1. The marginal is
N(0, W Wᵀ + I/γ²). The posterior's precision is γ² M with M = WᵀW + I/γ², the Gram matrix of W with I/γ appended below
it. Formulas in terms of this augmented matrix avoid cancellation.

The optimum: a β-VAE with precision γ² has that of the plain ELBO with decoder variance s = β/γ², which is probabilistic
PCA (Tipping & Bishop 1999; Lucas et al. 2019): latent i follows the i-th principal axis if λ_i > s and is at its prior
otherwise. Its posterior variance is s/λ_i and its column has the squared norm λ_i - s. The collapsed solution of *any*
decoder is locally stable exactly if s ≥ λ_1, so the collapse line is more general than the rest: a small signal ε g(z)
gains ε²γ²/2 · E[gᵀΣg/s - gᵀg], at most that of the first principal axis.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.inference.geometry import contrast_of_matrix

__all__ = ["elbo", "gap", "limit", "log_likelihood", "optimal_variance", "posterior"]


def _augmented(W: Float[Tensor, "n d"], precision: float) -> tuple[Float[Tensor, "m d"], float]:
    gamma2 = validation.precision(precision)
    if not isinstance(W, Tensor) or W.ndim != 2 or not bool(W.isfinite().all()):
        raise InputError("W must be a finite matrix (n, d).")
    noise = torch.eye(W.shape[1], dtype=W.dtype, device=W.device) / math.sqrt(gamma2)
    return torch.cat([W, noise]), gamma2


def _check_x(x: Float[Tensor, "N n"], W: Float[Tensor, "n d"]) -> None:
    if x.ndim != 2 or x.shape[1] != W.shape[0]:
        raise InputError(f"x must have shape (N, {W.shape[0]}) to match W, got {tuple(x.shape)}.")


def posterior(
    x: Float[Tensor, "N n"], W: Float[Tensor, "n d"], precision: float
) -> tuple[Float[Tensor, "N d"], Float[Tensor, "d d"]]:
    """Exact posterior mean of each x, and the covariance, which does not depend on x.

    Args:
        x: observations.
        W: weights of the decoder, x = W z + noise.
        precision: γ² = 1 / decoder variance.
    """
    _check_x(x, W)
    A, gamma2 = _augmented(W, precision)
    Q, R = torch.linalg.qr(A)
    mean = torch.linalg.solve_triangular(R, Q[: len(W)].mT @ x.mT, upper=True).mT
    inverse = torch.linalg.solve_triangular(R, torch.eye(len(R), dtype=R.dtype, device=R.device), upper=True)
    return mean, inverse @ inverse.mT / gamma2


def optimal_variance(W: Float[Tensor, "n d"], precision: float) -> Float[Tensor, " d"]:
    """D* = (1/γ²) (diag(WᵀW) + I/γ²)⁻¹, the variances of the best diagonal posterior.

    Args:
        W: weights of the decoder, x = W z + noise.
        precision: γ² = 1 / decoder variance.

    >>> optimal_variance(torch.eye(2), 3.0)
    tensor([0.2500, 0.2500])
    """
    A, gamma2 = _augmented(W, precision)
    return 1 / (gamma2 * A.square().sum(0))


def gap(W: Float[Tensor, "n d"], precision: float) -> Float[Tensor, ""]:
    """log p(x) - ELBO*(x) = ½ [log det diag M - log det M], the same for every x.

    Equal to the IMA contrast of W with I/γ appended below it. Eq. 55 of the paper lacks the ½.

    Args:
        W: weights of the decoder, x = W z + noise.
        precision: γ² = 1 / decoder variance.

    >>> gap(torch.eye(3), 10.0)
    tensor(0.)
    """
    A, _ = _augmented(W, precision)
    return contrast_of_matrix(A)


def limit(W: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """The gap as γ → ∞: the IMA contrast of W.

    Args:
        W: weights of the decoder, x = W z + noise.
    """
    return contrast_of_matrix(W)


def log_likelihood(x: Float[Tensor, "N n"], W: Float[Tensor, "n d"], precision: float) -> Float[Tensor, " N"]:
    """log N(x; 0, W Wᵀ + I/γ²), from the singular values of W.

    Args:
        x: observations.
        W: weights of the decoder, x = W z + noise.
        precision: γ² = 1 / decoder variance.
    """
    _check_x(x, W)
    _, gamma2 = _augmented(W, precision)
    U, S, _ = torch.linalg.svd(W, full_matrices=False)
    inside = x @ U
    outside = x - inside @ U.mT  # explicit: ‖x‖² - ‖Uᵀx‖² would cancel
    variances = S.square() + 1 / gamma2
    log_det = variances.log().sum() - (len(W) - len(S)) * math.log(gamma2)
    quadratic = gamma2 * outside.square().sum(-1) + (inside.square() / variances).sum(-1)
    return -0.5 * (len(W) * math.log(2 * math.pi) + log_det + quadratic)


def elbo(x: Float[Tensor, "N n"], W: Float[Tensor, "n d"], precision: float) -> Float[Tensor, " N"]:
    """ELBO*(x): the log-likelihood minus the gap.

    Args:
        x: observations.
        W: weights of the decoder, x = W z + noise.
        precision: γ² = 1 / decoder variance.
    """
    return log_likelihood(x, W, precision) - gap(W, precision)


Array = np.ndarray


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
    return float((used - variance * (variance / used)).sum()) / total if total > 0 else 0.0


def collapse_variance(eigenvalues: Array) -> float:
    """λ_1: every latent is at its prior if β/γ² is at least this.

    >>> collapse_variance(np.array([0.1, 4.0]))
    4.0
    """
    return float(eigenvalues.max(initial=0.0))


def noise_variance(
    eigenvalues: Array, latents: int, *, columns: int, total: float | None = None, beta: float = 1.0
) -> float:
    """The decoder variance σ² that a linear VAE learns, with as many latents in use as β allows.

    Every direction in use leaves an error of βσ², every other one its variance, so σ² = Σ_{i>k} λ_i / (n - kβ) with k
    latents in use, which needs λ_k > βσ². At β = 1 it is the mean of the variances left out.

    Args:
        eigenvalues: the leading ones, or all, largest first.
        latents: d; at β = 1, at most one less than the number of columns counts.
        columns: n, the number of eigenvalues including zeros.
        total: the sum of all eigenvalues; that of the given ones by default.
        beta: weight of the KL.

    >>> noise_variance(np.array([4.0, 1.0, 0.5, 0.5]), 2, columns=4)
    0.5
    """
    left_out = float(eigenvalues.sum()) if total is None else total
    for used in range(min(latents, len(eigenvalues)), 0, -1):
        kept = columns - used * beta
        rest = float(eigenvalues[used:].sum()) if total is None else left_out - float(eigenvalues[:used].sum())
        noise = max(rest, 0.0) / kept if kept > 0 else math.inf
        if float(eigenvalues[used - 1]) > beta * noise:
            return noise
    return left_out / columns


def _leading(eigenvalues: Array, latents: int | None) -> Array:
    """The largest eigenvalues, in descending order."""
    return np.sort(eigenvalues)[::-1][:latents]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of the covariance, largest first, and which of them stand out of the noise."""

    eigenvalues: Array
    """All of them, or the leading ones of wide data."""
    total: float
    """Sum of all eigenvalues: the variance of a sample, summed over columns."""
    columns: int
    rows: int
    exact: bool = True
    """False where leading eigenvalues come from a randomised method."""

    @property
    def noise(self) -> float:
        """Noise floor: mean of the eigenvalues that do not stand out."""
        return self._split[1]

    @property
    def signal(self) -> int:
        """Number of eigenvalues that stand out of the noise."""
        return self._split[0]

    @property
    def flat(self) -> bool:
        """Whether no direction stands out: isotropic or whitened data."""
        top = float(self.eigenvalues.max(initial=0.0))
        return self.total > 0 and (self.signal == 0 or top * self.rank < 1.5 * self.total)

    @property
    def rank(self) -> int:
        """Largest number of non-zero eigenvalues."""
        return max(1, min(self.columns, self.rows - 1))

    def latents_for(self, share: float) -> int:
        """The number of principal axes that hold this share of the variance."""
        held = np.cumsum(self.eigenvalues) / self.total if self.total > 0 else np.ones(1)
        return min(int(np.searchsorted(held, share - 1e-12)) + 1, len(self.eigenvalues))

    @cached_property
    def _split(self) -> tuple[int, float]:
        return split_noise(self.eigenvalues, self.total, self.rank, self.rows)


def split_noise(eigenvalues: Array, total: float, rank: int, rows: int) -> tuple[int, float]:
    """How many eigenvalues stand out, and the mean of the others.

    The next eigenvalue stands out if it is above what the largest of the remaining ones would be if all were equal: the
    99.5 % quantile of the Tracy-Widom law (Johnstone 2001), with the noise estimated from the remaining ones.

    >>> split_noise(np.array([5.0, 1.01, 1.0, 0.99]), 8.0, 4, 10_000)
    (1, 1.0)
    """
    left = total
    floor = total / rank * 1e-12
    for signal in range(min(len(eigenvalues), rank - 1)):
        noise = max(left, 0.0) / (rank - signal)
        if eigenvalues[signal] <= max(floor, noise * largest_noise_ratio(rank - signal, rows)):
            return signal, noise
        left -= float(eigenvalues[signal])
    kept = min(len(eigenvalues), rank - 1)
    return kept, max(left, 0.0) / (rank - kept)


def largest_noise_ratio(columns: int, rows: int) -> float:
    """Largest eigenvalue of the sample covariance of white noise of variance 1, at its 99.5 % quantile.

    >>> round(largest_noise_ratio(100, 10_000), 3)
    1.223
    """
    a, b = math.sqrt(max(1, rows - 1)), math.sqrt(columns)
    centre = (a + b) ** 2  # 2.42: the 99.5 % quantile of the Tracy-Widom law for real numbers
    width = (a + b) * (1 / a + 1 / b) ** (1 / 3)
    return (centre + 2.42 * width) / max(1, rows)


# accumulation ---------------------------------------------------------------------------------


def spectrum_of_rows(rows: Array) -> Spectrum:
    """The spectrum of a few rows in memory.

    >>> spectrum_of_rows(np.array([[1.0, 0.0], [-1.0, 0.0]])).eigenvalues
    array([1., 0.])
    """
    centred = rows - rows.mean(0)
    count, columns = centred.shape
    product = centred.T @ centred if columns <= count else centred @ centred.T
    eigenvalues = np.linalg.eigvalsh(product / count)[::-1].clip(min=0.0)
    return Spectrum(eigenvalues, float((centred**2).sum()) / count, columns, count)


def least_variance(spectrum: Spectrum, latents: int) -> float:
    """The largest decoder variance that `vs.fit` allows while it looks for the best one.

    That of PCA with as many latents: a VAE that is trained well is at least as good. Where there is nothing to tell
    signal from noise (no direction stands out, or there are as many latents as columns), it is a twentieth of λ_d.
    Eigenvalues below a millionth of the mean do not count.

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
        return (
            float(spectrum.eigenvalues[latents - 1]) / 20
        )  # every latent starts with at least ½ log 20 = 1.5 nats, and is found soon
    best = noise_variance(spectrum.eigenvalues, latents, columns=spectrum.rank, total=spectrum.total)
    return max(best, smallest)
