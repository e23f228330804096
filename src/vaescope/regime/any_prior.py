"""Active, passive and mixed latents of any factorised prior, by KL per latent through quadrature.

Bonheme & Grzes 2023 leave priors other than Gaussians to future work. A Gaussian posterior cannot equal such a prior.
What a decoder that ignores a latent leaves behind is the Gaussian *closest* to the prior, whose KL is a floor above
zero: 0.048 nats for a Laplace prior, log K for K separate modes of equal weight, of which the posterior then covers
one. A latent is therefore judged relative to that Gaussian. If samples are in different modes, the latent carries
information, although every posterior is at the floor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core.validation import posterior
from vaescope.distributions import Normal, Prior, kl_per_latent
from vaescope.inference.expansion import along
from vaescope.regime.classify import Regime, classify

SAME = 1e-2  # standard deviations between means, and distance of log variances, of solutions that count as one
Gaussian = tuple[float, float, float]
"""Mean, variance, and KL from the prior."""


@dataclass(frozen=True, eq=False)
class PassiveLevel:
    """The Gaussian (in u) that a latent without information has, for each latent."""

    mean: Float[Tensor, " d"]
    variance: Float[Tensor, " d"]
    kl: Float[Tensor, " d"]
    """Its KL from the prior in nats, the floor of the KL of every posterior near it."""


@dataclass(frozen=True, eq=False)
class RegimeOfPrior:
    """The regime relative to the closest Gaussian, and the KL from the prior itself."""

    regime: Regime
    passive_level: PassiveLevel
    kl: Float[Tensor, " d"]
    """Mean KL from the prior in nats, by quadrature."""

    @property
    def kind(self) -> list[str]:
        return self.regime.kind

    @property
    def excess(self) -> Float[Tensor, " d"]:
        """KL above the floor: what the latent pays for its information."""
        return self.kl - self.passive_level.kl


def classify_any(
    mean: object,
    variance: object,
    prior: Prior,
    *,
    passive_kl: float = 0.05,
    active_ratio: float = 0.5,
    mixed_share: float = 0.05,
) -> RegimeOfPrior:
    """Judge each latent relative to the Gaussian that is closest to its prior.

    Args:
        mean: (N, d) posterior means in u, the unbounded coordinate.
        variance: (N, d) posterior variances in u.
        prior: any factorised prior, shared by the latents or with parameters per latent.
        passive_kl: see `classify`.
        active_ratio: see `classify`.
        mixed_share: see `classify`.

    >>> from vaescope.distributions import Laplace
    >>> rng = torch.Generator().manual_seed(0)
    >>> mean = torch.randn(500, 2, generator=rng, dtype=torch.float64) * torch.tensor([1.4, 0.01])
    >>> classify_any(mean, torch.tensor([0.05, 1.57]).double().expand(500, 2), Laplace()).kind
    ['active', 'passive']
    """
    means, variances = posterior(mean, variance)
    means, variances = means.double(), variances.double()
    level = passive_level(prior, means, variances)
    regime = classify(
        means.numpy(),
        variances.numpy(),
        prior_mean=level.mean.numpy(),
        prior_variance=level.variance.numpy(),
        passive_kl=passive_kl,
        active_ratio=active_ratio,
        mixed_share=mixed_share,
    )
    return RegimeOfPrior(regime, level, kl_per_latent(means, variances, prior).mean(0))


def passive_level(prior: Prior, mean: Float[Tensor, "N d"], variance: Float[Tensor, "N d"]) -> PassiveLevel:
    """For each latent, the closest Gaussian that most posteriors are nearest to, where the prior has several modes."""
    chosen = []
    for k, found in enumerate(closest_gaussians(prior, mean.shape[1])):
        own = [kl_per_latent(mean[:, k, None], variance[:, k, None], Normal(m, s))[:, 0] for m, s, _ in found]
        votes = torch.stack(own).argmin(0).bincount(minlength=len(found))
        chosen.append(found[int(votes.argmax())])
    level = torch.tensor(chosen, dtype=torch.float64)
    return PassiveLevel(level[:, 0], level[:, 1], level[:, 2])


def closest_gaussians(prior: Prior, latents: int) -> list[list[Gaussian]]:
    """Every Gaussian at a local minimum of its KL from the prior, lowest first, per latent."""
    draws = prior.from_support(prior.sample(4000, latents, generator=torch.Generator().manual_seed(0)))
    quantiles = torch.quantile(draws, torch.linspace(0.02, 0.98, 7, dtype=torch.float64), dim=0)
    spread = draws.std(0, correction=0)
    mean = quantiles.repeat(2, 1)  # wide starts, and narrow ones, which stay in their mode
    log_sd = torch.cat([spread.log().expand_as(quantiles) - width for width in (1.0, 2.5)])
    for _ in range(100):
        before = mean, log_sd
        mean, log_sd = _newton_step(prior, mean, log_sd)
        if float(max((mean - before[0]).abs().max(), (log_sd - before[1]).abs().max())) < 1e-6:
            break
    change = ((mean - before[0]).abs() / log_sd.exp()).maximum((log_sd - before[1]).abs())
    settled = (change < SAME) | ~(change < SAME).any(0)  # a search that has not arrived is no minimum
    variance = (2 * log_sd).exp()
    kl = kl_per_latent(mean, variance, prior)
    return [_distinct(mean[own, k], variance[own, k], kl[own, k]) for k, own in enumerate(settled.unbind(1))]


def _newton_step(prior: Prior, mean: Tensor, log_sd: Tensor) -> tuple[Tensor, Tensor]:
    """A damped Newton step down in KL(N(m, e^{2a}) || p), elementwise, the mean in units of the deviation."""
    sd = log_sd.exp()

    def divergence(step: Float[Tensor, "*s 2"]) -> Tensor:
        return kl_per_latent(mean + sd * step[..., 0], (2 * (log_sd + step[..., 1])).exp(), prior)

    zero = torch.zeros(*mean.shape, 2, dtype=mean.dtype)
    axes = [torch.zeros_like(zero).index_fill(-1, torch.tensor([k]), 1.0) for k in range(2)]
    first = [along(divergence, axis) for axis in axes]
    gradient = torch.stack([slope(zero) for slope in first], dim=-1)
    hessian = torch.stack([torch.stack([along(f, axis)(zero) for axis in axes], dim=-1) for f in first], dim=-2)
    values, vectors = torch.linalg.eigh(hessian)
    step = -torch.einsum("...ij,...j,...kj,...k->...i", vectors, 1 / values.abs().clamp_min(1e-3), vectors, gradient)
    step = step * (0.5 / step.abs().amax(-1, keepdim=True).clamp_min(0.5))  # at most half a deviation
    here = divergence(zero)
    for _ in range(12):
        worse = divergence(step) > here + 1e-14
        if not bool(worse.any()):
            break
        step = torch.where(worse.unsqueeze(-1), step / 4, step)
    else:
        step = torch.where(worse.unsqueeze(-1), 0.0, step)
    return mean + sd * step[..., 0], log_sd + step[..., 1]


def _distinct(mean: Tensor, variance: Tensor, kl: Tensor) -> list[Gaussian]:
    """Gaussians that differ in mean or in variance: a narrow and a wide one may have the same mean."""
    found: list[Gaussian] = []
    for row in np.argsort(kl.numpy()):
        m, s, value = float(mean[row]), float(variance[row]), float(kl[row])
        same = (
            abs(m - other) <= SAME * (s**0.5 + spread**0.5) and abs(math.log(s / spread)) <= SAME
            for other, spread, _ in found
        )
        if not any(same):
            found.append((m, s, value))
    return found
