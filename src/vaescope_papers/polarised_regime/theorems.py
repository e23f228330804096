"""Theorem 1 of Bonheme & Grzes 2023 in its limit: posterior variances of a decoder as its noise vanishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, Prior
from vaescope.inference.derivatives import Decoder
from vaescope.inference.geometry import contrast_of_matrix, optimal_covariance
from vaescope.inference.linear_ivae import linear_ivae
from vaescope.inference.projection import project


@dataclass(frozen=True, eq=False)
class VarianceLimit:
    """Exponents p in σ² ∝ (γ²)^p over the given precisions, medians over points: -1 for active, 0 for passive."""

    diagonal: Float[np.ndarray, " d"]
    """Of the variances of the best diagonal posterior, the paper's q, per latent."""
    full: Float[np.ndarray, " d"]
    """Of the eigenvalues of Σ*, the covariance of the paper's Eq. 11, most determined direction first."""

    @property
    def active(self) -> int:
        """Latents whose variance vanishes with the noise: their exponent is nearer to -1 than to 0."""
        return int((self.diagonal < -0.5).sum())

    @property
    def directions(self) -> int:
        """Directions that the decoder uses: the rank r in the proof."""
        return int((self.full < -0.5).sum())

    @property
    def aligned(self) -> bool:
        """Whether unused directions are latents. If not, no latent is passive, however many are superfluous."""
        return self.active == self.directions


def variance_limit(
    decoder: Decoder,
    z: Float[Tensor, "N d"],
    *,
    precisions: Sequence[float] = (1e3, 1e4, 1e5),
    prior: Prior | None = None,
) -> VarianceLimit:
    """How posterior variances fall as the decoder's variance goes to zero, by the exact projection.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...), such as that of a trained model.
        z: latents, such as posterior means; the observations are f(z).
        precisions: γ² = 1 / decoder variance, rising, at least two.
        prior: N(0, I) by default.
    """
    prior = Normal() if prior is None else prior
    if len(precisions) < 2 or list(precisions) != sorted(set(precisions)):
        raise InputError(f"precisions must be at least two rising numbers, got {list(precisions)}.")
    x = decoder(z).detach()
    variances, spectra = [], []
    for precision in precisions:
        best = project(decoder, x, precision=precision, prior=prior, start=z)
        variances.append(torch.where(best.converged[:, None], best.variance, torch.nan))
        covariance = optimal_covariance(decoder, z, precision=precision, prior=prior)
        spectra.append(torch.linalg.eigvalsh(covariance))
    return VarianceLimit(_exponents(precisions, variances), _exponents(precisions, spectra))


def _exponents(precisions: Sequence[float], values: list[Float[Tensor, "N d"]]) -> Float[np.ndarray, " d"]:
    level = np.log(np.asarray(precisions))
    logs = torch.stack(values).log().cpu().numpy()
    centred = level - level.mean()
    slopes = np.tensordot(centred, logs, axes=1) / (centred**2).sum()
    usable = slopes[np.isfinite(slopes).all(1)]
    if not len(usable):
        raise InputError(
            "the projection converged at no point; pass z in float64, to a decoder that computes in float64."
        )
    return np.median(usable, axis=0)


@dataclass(frozen=True, eq=False)
class TwoOptima:
    """The two optima that the proof of Theorem 1 confuses, at each point."""

    diagonal: Float[Tensor, "N d"]
    """1/(1/σ†_k² + γ² ‖J_k‖²), the optimum of the diagonal q that the paper defines in Eq. 1, in ascending order."""
    full: Float[Tensor, "N d"]
    """Eigenvalues of Eq. 11, the optimum of a full covariance, in ascending order; Eq. 12 bounds these."""
    loss: Float[Tensor, " N"]
    """ELBO lost by the diagonal optimum, in nats; zero, and both equal, for orthogonal columns."""


def two_optima(J: Float[Tensor, "N n d"], *, precision: float, prior_variance: Float[Tensor, "N d"]) -> TwoOptima:
    """Eq. 11 of Bonheme & Grzes 2023 beside the optimum of the posterior family that the paper uses.

    >>> J = torch.tensor([[[1.0, 1.0], [0.0, 0.1]]], dtype=torch.float64)
    >>> found = two_optima(J, precision=100.0, prior_variance=torch.ones(1, 2, dtype=torch.float64))
    >>> [round(v, 4) for v in found.diagonal[0].tolist()], [round(v, 3) for v in found.full[0].tolist()]
    ([0.0098, 0.0099], [0.005, 0.667])
    """
    augmented = torch.cat([validation.precision(precision) ** 0.5 * J, torch.diag_embed(prior_variance.rsqrt())], dim=1)
    diagonal = 1 / augmented.square().sum(1)
    full = 1 / torch.linalg.svdvals(augmented).square()
    return TwoOptima(diagonal.sort(dim=1).values, full, contrast_of_matrix(augmented))


# counter-examples -----------------------------------------------------------------------------


def two_optima_misfit() -> float:
    """The largest factor by which variances of the best diagonal q miss the bounds of Eq. 12, for two latents.

    With a standard prior both bounds are the eigenvalues of Eq. 11.

    >>> round(two_optima_misfit(), 1)
    67.4
    """
    J = torch.tensor([[[1.0, 1.0], [0.0, 0.1]]], dtype=torch.float64)
    found = two_optima(J, precision=100.0, prior_variance=torch.ones(1, 2, dtype=torch.float64))
    return float((found.diagonal / found.full).log().abs().max().exp())


def vanishing_but_unused() -> int:
    """Variances of a diagonal q that vanish with the noise, less directions in use, for a decoder of z₁ + z₂.

    >>> vanishing_but_unused()
    1
    """
    J, prior_variance = torch.ones(1, 1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    before, after = (two_optima(J, precision=p, prior_variance=prior_variance) for p in (1e4, 1e6))
    diagonal, full = (after.diagonal < 0.1 * before.diagonal), (after.full < 0.1 * before.full)
    return int(diagonal.sum()) - int(full.sum())


def used_where_u_determines_x(prior_mean: str) -> int:
    """Latents that the best linear iVAE uses, of two, for x = (±2, 0) with one value for each of two u.

    >>> used_where_u_determines_x("learned"), used_where_u_determines_x("fixed")
    (0, 1)
    """
    mean = torch.tensor([[2.0, 0.0], [-2.0, 0.0]], dtype=torch.float64)
    found = linear_ivae(mean, torch.zeros(2, 2, 2).to(mean), precision=1.0, latent_dim=2, prior_mean=prior_mean)
    return sum(kind != "passive" for kind in found.kind)


def equal_moments_distance() -> float:
    r"""Wasserstein distance of z ~ N(0, 1) and z† = ±1: the same mean and variance, and σ² = σ†² → 0.

    .. math:: E\bigl||Z| - 1\bigr| = \sqrt{2/\pi} - 1 + 2\int_0^1 (2 \Phi(y) - 1)\,dy

    >>> round(equal_moments_distance(), 3)
    0.535
    """
    area = norm.cdf(1) + norm.pdf(1) - norm.pdf(0)  # of Φ from 0 to 1
    return float(2 * norm.pdf(0) - 1 + 2 * (2 * area - 1))


def printed_mixture_error(share: float = 0.5) -> float:
    """Kolmogorov distance of z from Theorem 2 (iii) as printed; passive samples have the mean 0, others N(0, 1).

    The printed mixture counts passive samples twice: as z†, and as an atom of c (1 - c) at 0, half of it on each side.

    >>> printed_mixture_error()
    0.125
    """
    return share * (1 - share) / 2
