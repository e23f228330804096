"""The variational autoencoder of a stack: networks, prior, posterior family and likelihood.

A `VAE` holds no weights. Its functions take a dictionary of parameters whose first axis is the
member, and data with the same first axis, so that one call serves one member or a hundred.

With `auxiliary_dim` it is an identifiable VAE (Khemakhem et al. 2020): encoder q(z|x,u) and prior
p(z|u) see an auxiliary u, which stands behind x in every row of its data. Everything that moves
rows about, batches and checkpoints alike, need not know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.distributions import Normal, Posterior, Prior, kl
from vaescope.distributions.likelihoods import (
    LIKELIHOODS,
    NOISE_MODELS,
    bernoulli_log_likelihood,
    gaussian_log_likelihood,
    optimal_precision,
)
from vaescope.distributions.posteriors import posterior_family
from vaescope.errors import InputError
from vaescope.models.conditional import PRIOR_MEANS, LearnedNormal
from vaescope.models.mlp import MLP, Params

Map = Callable[[Tensor], Tensor]


class Terms(NamedTuple):
    """What every objective is made of, per member and sample, in nats."""

    log_likelihood: Float[Tensor, "E B"]
    kl: Float[Tensor, "E B"]
    squared_error: Float[Tensor, "E B"]
    posterior: Posterior | None = None
    u: Float[Tensor, "E B d"] | None = None
    """The draw of the latents, in their unbounded coordinate."""
    step: Float[Tensor, ""] | None = None
    """Of training, counted from 1; nothing outside of it."""


@dataclass(frozen=True)
class VAE:
    """Settings of one architecture; all members of a stack share it.

    `decoder` replaces the learned decoder by a fixed map; `split_encoder` gives mean and scale
    networks of their own; `encoder_input` is a fixed map before them, such as standardisation.
    `noise` says where the precision comes from: `fixed` by the caller, `learned` by gradient, or
    `optimal`, its maximum-likelihood value given the current errors. `auxiliary_dim` makes it an iVAE:
    the variance of p(z|u) is learned, its mean is `fixed` at that of `prior`, or `learned` too.
    """

    observed_dim: int
    latent_dim: int
    hidden: tuple[int, ...] = (30, 30)
    activation: str = "smooth_leaky_relu"
    prior: Prior = field(default_factory=Normal)
    posterior: str = "diagonal"
    likelihood: str = "gaussian"
    noise: str = "fixed"
    decoder: Map | None = None
    split_encoder: bool = False
    encoder_input: Map | None = None
    auxiliary_dim: int = 0
    prior_mean: str = "fixed"
    prior_hidden: tuple[int, ...] = (50, 50)

    def __post_init__(self) -> None:
        if self.observed_dim < 1 or self.latent_dim < 1:
            raise InputError(
                f"a VAE needs observed_dim and latent_dim of at least 1, got {self.observed_dim}, {self.latent_dim}."
            )
        if self.likelihood not in LIKELIHOODS:
            raise InputError(f"likelihood must be one of {', '.join(LIKELIHOODS)}, got {self.likelihood!r}.")
        if self.noise not in NOISE_MODELS:
            raise InputError(f"noise must be one of {', '.join(NOISE_MODELS)}, got {self.noise!r}.")
        posterior_family(self.posterior)
        if self.prior_mean not in PRIOR_MEANS:
            raise InputError(f"prior_mean must be one of {', '.join(PRIOR_MEANS)}, got {self.prior_mean!r}.")
        if self.auxiliary_dim < 0:
            raise InputError(f"auxiliary_dim must be at least 0, got {self.auxiliary_dim}.")
        if self.conditional:
            self._check_conditional()

    def _check_conditional(self) -> None:
        if not isinstance(self.prior, Normal):
            raise InputError(f"an iVAE's prior is normal given u, got {type(self.prior).__name__}; use vs.Normal().")
        if not bool((torch.as_tensor(self.prior.variance) == 1).all()):
            raise InputError("the variance of an iVAE's prior is learned; give vs.Normal(mean) with variance 1.")

    # rows -------------------------------------------------------------------------------------

    @property
    def conditional(self) -> bool:
        """Whether it is an iVAE, with a prior p(z|u)."""
        return self.auxiliary_dim > 0

    @property
    def row_dim(self) -> int:
        """Numbers in a row of its data: x, and u behind it."""
        return self.observed_dim + self.auxiliary_dim

    def parted(self, rows: Float[Tensor, "*B r"]) -> tuple[Float[Tensor, "*B n"], Float[Tensor, "*B m"]]:
        """x and u of every row; u has no columns where there is none."""
        return rows[..., : self.observed_dim], rows[..., self.observed_dim :]

    # networks ---------------------------------------------------------------------------------

    @property
    def stacked(self) -> bool:
        """Whether members gain from being trained side by side."""
        return True

    def settle(self, params: Params, x: Float[Tensor, "N n"]) -> Params:
        """Weights as they are used after training; MLPs have nothing to settle."""
        return params

    @property
    def _encoder_outputs(self) -> int:
        return posterior_family(self.posterior).output_dim(self.latent_dim)

    @property
    def _encoders(self) -> tuple[MLP, ...]:
        outputs = self._encoder_outputs
        ends = (self.latent_dim, outputs - self.latent_dim) if self.split_encoder else (outputs,)
        names = ("encoder.mean", "encoder.scale") if self.split_encoder else ("encoder",)
        return tuple(
            MLP(name, (self.row_dim, *self.hidden, end), self.activation) for name, end in zip(names, ends, strict=True)
        )

    @property
    def _decoder(self) -> MLP:
        return MLP("decoder", (self.latent_dim, *reversed(self.hidden), self.observed_dim), self.activation)

    @property
    def _prior_networks(self) -> dict[str, MLP]:
        """Of p(z|u): what is learned of it, by name."""
        learned = ("mean", "log_variance") if self.prior_mean == "learned" else ("log_variance",)
        sizes = (self.auxiliary_dim, *self.prior_hidden, self.latent_dim)
        return {part: MLP(f"prior.{part}", sizes, "leaky_relu") for part in learned} if self.conditional else {}

    def init(self, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Fresh parameters, a member per seed; a member's weights depend on its seed alone."""
        members = [self._init_member(seed) for seed in seeds]
        return {name: torch.stack([m[name] for m in members]) for name in members[0]}

    def _init_member(self, seed: int) -> dict[str, Tensor]:
        generator = randomness.generator(seed, "weights")
        networks = (*self._encoders, *(() if self.decoder else (self._decoder,)))
        params: dict[str, Tensor] = {}
        for network in (*networks, *self._prior_networks.values()):
            params |= network.init(generator)
        if self.noise == "learned":
            params["log_precision"] = torch.zeros(1)
        return params

    # the two directions -----------------------------------------------------------------------

    def encode(self, params: Params, rows: Float[Tensor, "E B r"]) -> Posterior:
        """q(z|x), or q(z|x,u), in the unbounded coordinate of the latents."""
        if self.encoder_input:
            x, u = self.parted(rows)
            rows = torch.cat([self.encoder_input(x), u], dim=-1) if self.conditional else self.encoder_input(x)
        outputs = torch.cat([network(params, rows) for network in self._encoders], dim=-1)
        return posterior_family(self.posterior).from_outputs(outputs, self.latent_dim)

    def decode(self, params: Params, z: Float[Tensor, "E B d"]) -> Float[Tensor, "E B n"]:
        """The decoder's output: the mean of x, or logits under a Bernoulli likelihood."""
        return self.decoder(z) if self.decoder else self._decoder(params, z)

    def prior_at(self, params: Params, u: Float[Tensor, "E B m"]) -> Prior:
        """p(z|u), or the prior itself where it does not depend on anything."""
        if not self.conditional:
            return self.prior
        found = {part: network(params, u) for part, network in self._prior_networks.items()}
        fixed: float | Tensor = self.prior.mean  # type: ignore[attr-defined]
        mean = found.get("mean", fixed)
        return LearnedNormal(mean, found["log_variance"].exp())

    # the objective's parts --------------------------------------------------------------------

    def terms(
        self,
        params: Params,
        rows: Float[Tensor, "E B r"],
        noise: Float[Tensor, "E B d"],
        precision: Float[Tensor, " E"],
    ) -> Terms:
        """Reconstruction and KL of every sample, with one draw of the latents."""
        x, u = self.parted(rows) if self.conditional else (rows, rows)
        posterior = self.encode(params, rows)
        drawn = posterior.sample(noise)
        output = self.decode(params, self.prior.to_support(drawn))
        squared_error = (x - output).square().sum(-1)
        if self.likelihood == "bernoulli":
            log_likelihood = bernoulli_log_likelihood(x, output)
        else:
            used = self.current_precision(params, precision, squared_error)
            log_likelihood = gaussian_log_likelihood(squared_error, self.observed_dim, used.unsqueeze(-1))
        divergence = kl(posterior, self.prior_at(params, u))
        return Terms(log_likelihood, divergence, squared_error, posterior, drawn)

    def current_precision(
        self,
        params: Params,
        precision: Float[Tensor, " E"],
        squared_error: Float[Tensor, "E B"] | None = None,
    ) -> Float[Tensor, " E"]:
        """γ² of every member: as given, as learned, or the optimum for these errors."""
        if self.noise == "learned":
            return params["log_precision"].squeeze(-1).exp()
        if self.noise == "optimal" and squared_error is not None:
            return optimal_precision(squared_error.mean(-1), self.observed_dim)
        return precision
