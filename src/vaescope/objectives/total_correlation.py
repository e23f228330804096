r"""The KL in three parts, and the β-TCVAE that weighs the middle one (Chen et al. 2018).

.. math:: E_x \mathrm{KL}[q(z|x)\|p(z)] = \underbrace{I(x; z)}_{index\text{-}code}
    + \underbrace{\mathrm{KL}[q(z)\|\textstyle\prod_j q(z_j)]}_{total\ correlation}
    + \underbrace{\textstyle\sum_j \mathrm{KL}[q(z_j)\|p(z_j)]}_{dimension\text{-}wise}

q(z) = 1/N Σ_n q(z|x_n) sums over the whole data set; a batch gives an estimate of it:

- *weighted*: Σ_j q(z|x_j) / (N B), as published; too small by a factor N at the full batch, which is a constant in
  every logarithm and leaves gradients as they are.
- *stratified*: q(z|x_i)/N + (N-1)/(N (B-1)) Σ_{j≠i} q(z|x_j), where z is from x_i. Unbiased for q(z), exact at
  the full batch. The published weights single out one j; these are their average over which one, so they have the
  same expectation and less variance.

The logarithm of an unbiased estimate is still too small on average, by less the larger the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.distributions import DiagonalGaussian, Normal
from vaescope.errors import InputError
from vaescope.models.vae import Terms

SAMPLINGS = ("stratified", "weighted")
LOG_2PI = math.log(2 * math.pi)
NUMBERS_AT_ONCE = 2**24


class Parts(NamedTuple):
    """Of the KL, per sample, in nats; one draw of z each, so that their sum is log q(z|x) - log p(z)."""

    index_code: Float[Tensor, "*B"]
    total_correlation: Float[Tensor, "*B"]
    dimension_wise: Float[Tensor, "*B"]


def log_weights(batch: int, samples: int, sampling: str) -> Float[Tensor, "B B"]:
    """log w_ij, the weight of q(z_i|x_j) in the estimate of q(z_i).

    >>> log_weights(3, 9, "stratified").exp().sum(1)
    tensor([1., 1., 1.])
    """
    if sampling not in SAMPLINGS:
        raise InputError(f"sampling must be one of {', '.join(SAMPLINGS)}, got {sampling!r}.")
    if not 1 <= batch <= samples:
        raise InputError(f"a batch of {batch} cannot be drawn from {samples} samples.")
    if sampling == "weighted":
        return torch.full((batch, batch), -math.log(samples * batch))
    others = (samples - 1) / (samples * (batch - 1)) if batch > 1 else 1.0
    weights = torch.full((batch, batch), others)
    return weights.fill_diagonal_(1 / samples).log() if batch > 1 else torch.zeros(1, 1)


def decompose(
    mean: Float[Tensor, "*E B d"],
    variance: Float[Tensor, "*E B d"],
    z: Float[Tensor, "*E B d"],
    log_prior: Float[Tensor, "*E B d"],
    weights: Float[Tensor, "B B"],
) -> Parts:
    """The three parts from a batch: every z under every posterior of it."""
    apart = z.unsqueeze(-2) - mean.unsqueeze(-3)
    spread = variance.unsqueeze(-3)
    density = -0.5 * (apart.square() / spread + spread.log() + LOG_2PI)
    own = density.diagonal(dim1=-3, dim2=-2).sum(-2)
    joint = torch.logsumexp(density.sum(-1) + weights, dim=-1)
    marginal = torch.logsumexp(density + weights.unsqueeze(-1), dim=-2).sum(-1)
    return Parts(own - joint, joint - marginal, marginal - log_prior.sum(-1))


@dataclass(frozen=True)
class BetaTC:
    """-(ELBO) + (β - 1) total correlation, the KL itself in closed form (Chen et al. 2018, Eq. 4).

    `samples` is the size of the training set; β = 1 is the negative ELBO exactly.
    """

    samples: int
    sampling: str = "stratified"

    def __post_init__(self) -> None:
        log_weights(1, self.samples, self.sampling)

    def __call__(self, terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        posterior = terms.posterior
        if not isinstance(posterior, DiagonalGaussian) or terms.u is None:
            raise InputError("the β-TCVAE needs a diagonal posterior.")
        batch = terms.u.shape[-2]  # validation may come in larger batches than there are training samples
        weights = log_weights(batch, max(self.samples, batch), self.sampling).to(terms.u)
        parts = decompose(posterior.mean, posterior.variance, terms.u, torch.zeros_like(terms.u), weights)
        loss = terms.kl - terms.log_likelihood + (beta.unsqueeze(-1) - 1) * parts.total_correlation
        return loss.mean(-1)


@torch.no_grad()
def decomposition(
    mean: Float[Tensor, "N d"],
    variance: Float[Tensor, "N d"],
    *,
    prior_mean: Tensor | float = 0.0,
    prior_variance: Tensor | float = 1.0,
    seed: int = 0,
) -> Parts:
    """The three parts of a trained model, q(z) being the mixture over all given samples: exact but for one draw each.

    >>> parts = decomposition(torch.zeros(10, 2), torch.ones(10, 2))
    >>> bool(parts.index_code.abs().max() < 1e-6)
    True
    """
    if mean.ndim != 2 or mean.shape != variance.shape or 0 in mean.shape or not bool((variance > 0).all()):
        raise InputError(
            f"mean and variance must be (N, d) and variances > 0, got {tuple(mean.shape)} and {tuple(variance.shape)}."
        )
    if not bool(mean.isfinite().all() and variance.isfinite().all()):
        raise InputError("mean and variance must be finite, got NaN or infinity.")
    if any(
        torch.as_tensor(p).ndim > 1 or torch.as_tensor(p).numel() not in (1, mean.shape[1])
        for p in (prior_mean, prior_variance)
    ):
        raise InputError("the parts are those of one prior for all samples: give a number, or one per latent.")
    noise = torch.randn(mean.shape, generator=randomness.generator(seed, "decomposition"), dtype=mean.dtype)
    z = mean + variance.sqrt() * noise.to(mean.device)
    log_prior = Normal(prior_mean, prior_variance).log_density(z).sum(-1)
    own = -0.5 * ((z - mean).square() / variance + variance.log() + LOG_2PI).sum(-1)
    joints, marginals = [], []
    for part in z.split(max(1, NUMBERS_AT_ONCE // mean.numel())):
        density = -0.5 * ((part.unsqueeze(1) - mean).square() / variance + variance.log() + LOG_2PI)
        joints.append(torch.logsumexp(density.sum(-1), dim=1) - math.log(len(mean)))
        marginals.append((torch.logsumexp(density, dim=1) - math.log(len(mean))).sum(-1))
    joint, marginal = torch.cat(joints), torch.cat(marginals)
    return Parts(own - joint, joint - marginal, marginal - log_prior)
