r"""Decomposition of the KL into three parts, and the β-TCVAE, which weights the second (Chen et al. 2018).

.. math:: E_x \mathrm{KL}[q(z|x)\|p(z)] = \underbrace{I(x; z)}_{index\text{-}code}
    + \underbrace{\mathrm{KL}[q(z)\|\textstyle\prod_j q(z_j)]}_{total\ correlation}
    + \underbrace{\textstyle\sum_j \mathrm{KL}[q(z_j)\|p(z_j)]}_{dimension\text{-}wise}

q(z) = 1/N Σ_n q(z|x_n) sums over the data set; a batch of size B gives an estimate:

- *weighted*: Σ_j q(z|x_j) / (N B), as published. At the full batch it is too small by a factor N, a constant that does
  not change gradients.
- *stratified*: q(z|x_i)/N + (N-1)/(N (B-1)) Σ_{j≠i} q(z|x_j), where z is drawn from q(z|x_i). Unbiased for q(z), and
  exact at the full batch. The published weights treat one random j differently; these are their average over j, with
  the same expectation and less variance.

The logarithm of an unbiased estimate is still biased downwards, less so for larger batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import randomness, validation
from vaescope.core.errors import InputError
from vaescope.distributions import DiagonalGaussian, Normal
from vaescope.distributions.base import LOG_2PI
from vaescope.models import Terms


class Parts(NamedTuple):
    """Parts of the KL per sample, in nats, at one draw of z; their sum is log q(z|x) - log p(z)."""

    index_code: Float[Tensor, "*B"]
    """log q(z|x) - log q(z), whose mean is the mutual information of x and z."""
    total_correlation: Float[Tensor, "*B"]
    """log q(z) - Σ_j log q(z_j)."""
    dimension_wise: Float[Tensor, "*B"]
    """Σ_j log q(z_j) - log p(z)."""


def log_weights(batch: int, samples: int, sampling: str) -> Float[Tensor, "B B"]:
    """log w_ij, where w_ij is the weight of q(z_i|x_j) in the estimate of q(z_i).

    Args:
        batch: B, the batch size.
        samples: N, the size of the data set.
        sampling: `stratified` or `weighted`; see above.

    >>> log_weights(3, 9, "stratified").exp().sum(1)
    tensor([1., 1., 1.])
    """
    validation.choice("sampling", sampling, ("stratified", "weighted"))
    if not 1 <= batch <= samples:
        raise InputError(f"the batch size must be 1 to {samples}, the number of samples, got {batch}.")
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
    """The three parts from one batch: the density of every z under every posterior.

    Args:
        mean: of the posteriors.
        variance: of the posteriors.
        z: one draw from each posterior.
        log_prior: log p(z_j) of every draw and latent.
        weights: logarithms from `log_weights`.
    """
    difference = z.unsqueeze(-2) - mean.unsqueeze(-3)
    variances = variance.unsqueeze(-3)
    density = -0.5 * (difference.square() / variances + variances.log() + LOG_2PI)
    own = density.diagonal(dim1=-3, dim2=-2).sum(-2)
    joint = torch.logsumexp(density.sum(-1) + weights, dim=-1)
    marginal = torch.logsumexp(density + weights.unsqueeze(-1), dim=-2).sum(-1)
    return Parts(own - joint, joint - marginal, marginal - log_prior.sum(-1))


@dataclass(frozen=True)
class BetaTC:
    """-(ELBO) + (β - 1) total correlation, with the KL in closed form (Chen et al. 2018, Eq. 4).

    β = 1 is exactly the negative ELBO.

    Args:
        samples: size of the training set.
        sampling: estimate of q(z), `stratified` or `weighted`.
    """

    samples: int
    sampling: str = "stratified"

    def __post_init__(self) -> None:
        log_weights(1, self.samples, self.sampling)

    def __call__(self, terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        posterior = terms.posterior
        if not isinstance(posterior, DiagonalGaussian) or terms.u is None:
            raise InputError("the β-TCVAE needs a diagonal posterior; use posterior='diagonal'.")
        batch = terms.u.shape[-2]  # batches of validation data may be larger than the training set
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
    """The three parts of the KL of a trained model; q(z) is the exact mixture over all given posteriors.

    Args:
        mean: of the posteriors.
        variance: of the posteriors.
        prior_mean: of the normal prior, a number or one per latent.
        prior_variance: of the normal prior, a number or one per latent.
        seed: of the one draw of z per sample.

    >>> parts = decomposition(torch.zeros(10, 2), torch.ones(10, 2))
    >>> bool(parts.index_code.abs().max() < 1e-6)
    True
    """
    mean, variance = validation.posterior(mean, variance)
    for name, value in (("prior_mean", prior_mean), ("prior_variance", prior_variance)):
        parameter = torch.as_tensor(value)
        if parameter.ndim > 1 or parameter.numel() not in (1, mean.shape[1]):
            raise InputError(
                f"{name} must be a number or one per latent, shared by all samples, got shape {tuple(parameter.shape)}."
            )
    noise = torch.randn(mean.shape, generator=randomness.generator(seed, "decomposition"), dtype=mean.dtype)
    z = mean + variance.sqrt() * noise.to(mean.device)
    log_prior = Normal(prior_mean, prior_variance).log_density(z).sum(-1)
    own = -0.5 * ((z - mean).square() / variance + variance.log() + LOG_2PI).sum(-1)
    joints, marginals = [], []
    for part in z.split(max(1, 2**24 // mean.numel())):  # numbers in memory at once
        density = -0.5 * ((part.unsqueeze(1) - mean).square() / variance + variance.log() + LOG_2PI)
        joints.append(torch.logsumexp(density.sum(-1), dim=1) - math.log(len(mean)))
        marginals.append((torch.logsumexp(density, dim=1) - math.log(len(mean))).sum(-1))
    joint, marginal = torch.cat(joints), torch.cat(marginals)
    return Parts(own - joint, joint - marginal, marginal - log_prior)
