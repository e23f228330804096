r"""β-TCVAE, FactorVAE and DIP-VAE.

The β-TCVAE weights the second of three parts of the KL (Chen et al. 2018):

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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope.core import randomness, validation
from vaescope.core.errors import InputError
from vaescope.distributions import DiagonalGaussian, FullGaussian, Normal, Posterior
from vaescope.distributions.base import LOG_2PI
from vaescope.models import Terms
from vaescope.models.mlp import MLP
from vaescope.models.networks import Params
from vaescope.objectives.elbo import beta_elbo


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


@dataclass(frozen=True)
class DIP:
    """β-ELBO + λ_od Σ_{i≠j} C_ij² + λ_d Σ_i (C_ii - 1)². Kumar et al. 2018, Eqs. 5 to 7.

    Args:
        kind: 1: C is the covariance over the batch of the posterior means. 2: C is the covariance of z, which adds the
            mean posterior covariance.
        off_diagonal: λ_od.
        diagonal: λ_d.
    """

    kind: int = 2
    off_diagonal: float = 10.0
    diagonal: float = 10.0

    def __post_init__(self) -> None:
        if self.kind not in (1, 2):
            raise InputError(f"kind of a DIP-VAE must be 1 or 2, got {self.kind}.")
        validation.number("off_diagonal", self.off_diagonal, minimum=0.0)
        validation.number("diagonal", self.diagonal, minimum=0.0)

    def __call__(self, terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        if terms.posterior is None:
            raise InputError("a DIP-VAE needs terms with a posterior; use those of VAE.terms.")
        mean = terms.posterior.mean
        centred = mean - mean.mean(-2, keepdim=True)
        covariance = centred.mT @ centred / mean.shape[-2]
        if self.kind == 2:
            covariance = covariance + _mean_covariance(terms.posterior)
        variances = covariance.diagonal(dim1=-2, dim2=-1)
        off = covariance.square().sum((-2, -1)) - variances.square().sum(-1)
        return beta_elbo(terms, beta) + self.off_diagonal * off + self.diagonal * (variances - 1).square().sum(-1)


def _mean_covariance(posterior: Posterior) -> Float[Tensor, "E d d"]:
    """The covariance of q(z|x), averaged over the batch."""
    if isinstance(posterior, FullGaussian):
        return posterior.covariance.mean(-3)
    return torch.diag_embed(posterior.marginal_variance.mean(-2))


@dataclass(frozen=True)
class Factor:
    r"""-(ELBO) + (β - 1) total correlation, as in `BetaTC`; β - 1 is the paper's γ. FactorVAE, Kim & Mnih 2018.

    A discriminator distinguishes draws of q(z) from draws of \prod_j q(z_j), which are those of the batch with latents
    permuted across samples; its logit estimates log q(z) - log \prod_j q(z_j), whose mean is the total correlation. One
    step updates both networks: each part of the loss treats the other network as constant.

    Args:
        latent_dim: of the model.
        hidden: hidden units of the discriminator (the paper: five layers of 1,000). It is trained with the same Adam
            and learning rate as the model.
        params: weights of the discriminator; set by `with_weights`.
    """

    latent_dim: int
    hidden: tuple[int, ...] = (200, 200, 200)
    params: Params | None = None
    prefix: ClassVar[str] = "objective"
    """Of the names of the discriminator's weights."""

    def __post_init__(self) -> None:
        if self.latent_dim < 2:
            raise InputError(f"a FactorVAE needs at least two latents, got {self.latent_dim}.")

    @property
    def discriminator(self) -> MLP:
        return MLP(self.prefix, (self.latent_dim, *self.hidden, 1), "leaky_relu")

    def init(self, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Initial weights of the discriminator, one member per seed.

        Args:
            seeds: one per member.
        """
        members = [self.discriminator.init(randomness.generator(seed, "discriminator")) for seed in seeds]
        return {name: torch.stack([m[name] for m in members]) for name in members[0]}

    def with_weights(self, params: Params) -> Factor:
        """The objective with the discriminator's weights, selected from those of a stack.

        Args:
            params: weights of a stack: of the model and of the discriminator.
        """
        return replace(
            self, params={name: value for name, value in params.items() if name.startswith(f"{self.prefix}.")}
        )

    def __call__(self, terms: Terms, beta: Float[Tensor, " E"]) -> Float[Tensor, " E"]:
        if terms.u is None or not self.params:
            raise InputError("a FactorVAE needs draws of z and its discriminator's weights; see `with_weights`.")
        if terms.u.shape[-1] != self.latent_dim:
            raise InputError(f"this FactorVAE is for {self.latent_dim} latents, got a model with {terms.u.shape[-1]}.")
        constant = {name: value.detach() for name, value in self.params.items()}
        total_correlation = self.logit(constant, terms.u).mean(-1)
        loss = self.cross_entropy(terms.u.detach())  # of the discriminator: adds its gradient, but not its value
        return beta_elbo(terms, torch.ones_like(beta)) + (beta - 1) * total_correlation + loss - loss.detach()

    def logit(self, params: Params, z: Float[Tensor, "E B d"]) -> Float[Tensor, "E B"]:
        """Estimate of log q(z) - log ∏ q(z_j).

        Args:
            params: weights of the discriminator.
            z: a batch of latents per member.
        """
        return self.discriminator(params, z).squeeze(-1)

    def cross_entropy(self, z: Float[Tensor, "E B d"]) -> Float[Tensor, " E"]:
        """Loss of the discriminator on z against permuted z; log 2 if it cannot distinguish them.

        Args:
            z: a batch of latents per member.
        """
        assert self.params is not None
        joint, product = self.logit(self.params, z), self.logit(self.params, permute_latents(z))
        return 0.5 * (F.softplus(-joint) + F.softplus(product)).mean(-1)


def permute_latents(z: Float[Tensor, "E B d"]) -> Float[Tensor, "E B d"]:
    """Shift latent j by j samples, so that the latents of a row come from different samples if B >= d.

    Batches are shuffled, so a deterministic permutation is enough.

    >>> permute_latents(torch.tensor([[[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]]))[0].tolist()
    [[1.0, 30.0], [2.0, 10.0], [3.0, 20.0]]
    """
    return torch.stack([z[..., j].roll(j, -1) for j in range(z.shape[-1])], dim=-1)
