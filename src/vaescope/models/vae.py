"""The variational autoencoder of a stack: networks, prior, posterior family and likelihood.

A `VAE` holds settings, no weights. Its methods take a dictionary of weights whose first axis is the member, and data
with the same first axis, so one call serves one member or a hundred.

With an auxiliary input it is an identifiable VAE (iVAE, Khemakhem et al. 2020): the encoder q(z|x, auxiliary) and the
prior p(z|auxiliary) depend on it. Rows of its data hold x followed by the auxiliary input, so batches and checkpoints
need no special case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import randomness, validation
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, Posterior, Prior, kl
from vaescope.distributions.likelihoods import (
    LIKELIHOODS,
    NOISE_MODELS,
    bernoulli_log_likelihood,
    gaussian_log_likelihood,
    optimal_precision,
)
from vaescope.distributions.posteriors import posterior_family
from vaescope.models.architectures import ConvNetworks
from vaescope.models.auxiliary import AuxiliarySettings, LearnedNormal
from vaescope.models.mlp import MLPNetworks
from vaescope.models.networks import (
    LEARNED_COVARIANCES,
    SHAPE_NAMES,
    Dims,
    ImageShape,
    Network,
    Networks,
    Params,
    Terms,
    covariance_log_likelihood,
    init_covariance,
    init_prior,
    learned_prior,
)
from vaescope.settings import CHOICES

FixedMap = Callable[[Tensor], Tensor]
CALIBRATION_ROWS = 1024  # of the training data, over which batch-norm statistics are computed after training


@dataclass(frozen=True)
class FixedMaps:
    """Maps that are not trained.

    Args:
        decoder: replaces the decoder network; maps z to the mean of x, or to logits.
        encoder_input: applied to x before the encoder, for example standardisation.
    """

    decoder: FixedMap | None = None
    encoder_input: FixedMap | None = None


@dataclass(frozen=True)
class VAE:
    """Settings of a VAE, shared by all members of a stack; see also `VAE.mlp` and `VAE.conv`.

    Args:
        observed_dim: numbers in one observation x.
        latent_dim: d, the number of latents.
        networks: encoder and decoder.
        prior: p(z). An iVAE needs a `Normal` of variance 1, whose mean is used if it is fixed.
        posterior: `diagonal`, `isotropic` or `full`, the covariance of q(z|x).
        likelihood: `gaussian` or `bernoulli`.
        noise: where γ² comes from: `fixed` by the caller, `learned` by gradient, or `optimal`, its
            maximum-likelihood value given the current errors; or `learned-diagonal`, `learned-full`: a covariance of
            the outputs instead of γ², by gradient.
        auxiliary: the auxiliary input of an iVAE.
        fixed: maps that are not trained.
        least_precision: where a learned γ² starts, and below which an optimal one does not fall until latents are in
            use (`precision_floor`); 0 for no bound.
        keeps_floor: whether an optimal γ² never falls below it, because the data are such that latents would collapse.
        prior_shape: `fixed`, or `learned`: the variance of a normal prior, a and b of a Beta prior, for every latent,
            by gradient, from those of `prior`.
    """

    observed_dim: int
    latent_dim: int
    networks: Networks = field(default_factory=MLPNetworks)
    prior: Prior = field(default_factory=Normal)
    posterior: str = "diagonal"
    likelihood: str = "gaussian"
    noise: str = "fixed"
    auxiliary: AuxiliarySettings = field(default_factory=AuxiliarySettings)
    fixed: FixedMaps = field(default_factory=FixedMaps)
    least_precision: float = 0.0
    keeps_floor: bool = False
    prior_shape: str = "fixed"

    @classmethod
    def mlp(
        cls,
        observed_dim: int,
        latent_dim: int,
        *,
        hidden: tuple[int, ...] = (30, 30),
        activation: str = "smooth_leaky_relu",
        split_encoder: bool = False,
        **rest: Any,
    ) -> VAE:
        """A VAE of MLPs; see `MLPNetworks`.

        Args:
            observed_dim: numbers in one observation x.
            latent_dim: d, the number of latents.
            hidden: units of the encoder's hidden layers; the decoder has them in reverse.
            activation: one of `ACTIVATIONS`.
            split_encoder: use separate networks for posterior means and scales.
            rest: further arguments of `VAE`, such as `prior`.

        >>> VAE.mlp(3, 2, hidden=(5,)).networks.hidden
        (5,)
        """
        return cls(observed_dim, latent_dim, MLPNetworks(hidden, activation, split_encoder), **rest)

    @classmethod
    def conv(cls, image_shape: ImageShape, latent_dim: int, *, architecture: str = "sprites", **rest: Any) -> VAE:
        """A convolutional VAE; see `ConvNetworks`.

        Args:
            image_shape: (channels, height, width); observations are rows of pixels, channels first.
            latent_dim: d, the number of latents.
            architecture: one of `ARCHITECTURES`.
            rest: further arguments of `VAE`, such as `prior`.

        >>> VAE.conv((3, 32, 32), latent_dim=4).observed_dim
        3072
        """
        networks = ConvNetworks(image_shape, architecture)
        return cls(math.prod(image_shape), latent_dim, networks, **rest)

    def __post_init__(self) -> None:
        validation.integer("observed_dim", self.observed_dim)
        validation.integer("latent_dim", self.latent_dim)
        validation.choice("likelihood", self.likelihood, LIKELIHOODS)
        validation.choice("noise", self.noise, NOISE_MODELS)
        posterior_family(self.posterior)
        shape = self.networks.image_shape
        if shape is not None and math.prod(shape) != self.observed_dim:
            raise InputError(
                f"images of shape {shape} have {math.prod(shape)} values, got observed_dim {self.observed_dim}."
            )
        if self.auxiliary_dim:
            if not isinstance(self.prior, Normal):
                raise InputError(f"an iVAE needs a normal prior, got {type(self.prior).__name__}; use vs.Normal().")
            if not bool((torch.as_tensor(self.prior.variance) == 1).all()):
                raise InputError("an iVAE learns the variance of its prior; use vs.Normal(mean) with variance 1.")
        if validation.choice("prior_shape", self.prior_shape, CHOICES["prior_shape"]) == "learned":
            self._check_learned_prior()

    def _check_learned_prior(self) -> None:
        if self.auxiliary_dim:
            raise InputError("an iVAE learns its prior from its auxiliary input; use prior_shape='fixed'.")
        if type(self.prior) not in SHAPE_NAMES:
            raise InputError(
                f"prior_shape='learned' needs a normal or a beta prior, got {type(self.prior).__name__}; "
                "a uniform one is beta(a=1, b=1)."
            )

    # dimensions -------------------------------------------------------------------------------

    @property
    def auxiliary_dim(self) -> int:
        """Columns of the auxiliary input; 0 for a plain VAE."""
        return self.auxiliary.dim

    @property
    def row_dim(self) -> int:
        """Columns of the data: x, then the auxiliary input."""
        return self.observed_dim + self.auxiliary_dim

    @property
    def dims(self) -> Dims:
        """Sizes from which the networks are built."""
        outputs = posterior_family(self.posterior).output_dim(self.latent_dim)
        return Dims(self.observed_dim, self.latent_dim, self.auxiliary_dim, outputs)

    def split_auxiliary(self, rows: Float[Tensor, "*B r"]) -> tuple[Float[Tensor, "*B n"], Float[Tensor, "*B m"]]:
        """x and auxiliary input of every row; the latter has no columns for a plain VAE.

        Args:
            rows: x followed by the auxiliary input.
        """
        return rows[..., : self.observed_dim], rows[..., self.observed_dim :]

    # weights ----------------------------------------------------------------------------------

    def init(self, seeds: Sequence[int]) -> dict[str, Tensor]:
        """Initial weights, one member per seed; a member's weights depend on its seed alone.

        Args:
            seeds: one per member.
        """
        members = [self._init_member(seed) for seed in seeds]
        return {name: torch.stack([m[name] for m in members]) for name in members[0]}

    def _init_member(self, seed: int) -> dict[str, Tensor]:
        generator = randomness.generator(seed, "weights")
        decoders: tuple[Network, ...] = () if self.fixed.decoder else (self.networks.decoder(self.dims),)
        prior_networks = self.auxiliary.prior_networks(self.latent_dim).values()
        params: dict[str, Tensor] = {}
        for network in (*self.networks.encoders(self.dims), *decoders, *prior_networks):
            params |= network.init(generator)
        if self.noise == "learned":
            params["log_precision"] = torch.full((1,), math.log(self.least_precision or 1.0))
        if self.prior_shape == "learned":
            params |= init_prior(self.prior, self.latent_dim)
        return params | init_covariance(self.noise, self.observed_dim)

    def freeze_batch_norm(self, params: Params, rows: Float[Tensor, "N r"]) -> Params:
        """One member's weights for use after training, with batch-norm statistics over these rows of training data.

        Args:
            params: weights of one member, with a member axis of length one.
            rows: x followed by the auxiliary input; at most the first 1,024 are used.
        """
        inputs = self._encoder_inputs(rows[:CALIBRATION_ROWS])
        return self.networks.freeze_batch_norm(self.dims, params, inputs, self._mean_latents)

    def _mean_latents(self, outputs: Float[Tensor, "*B o"]) -> Float[Tensor, "*B d"]:
        return self.prior.to_support(self._posterior(outputs).mean)

    # encoder, decoder, prior ------------------------------------------------------------------

    def encode(self, params: Params, rows: Float[Tensor, "E B r"]) -> Posterior:
        """q(z|x), or q(z|x, auxiliary), in the unbounded coordinate of the latents.

        Args:
            params: weights of E members.
            rows: a batch per member: x followed by the auxiliary input.
        """
        inputs = self._encoder_inputs(rows)
        outputs = [network(params, inputs) for network in self.networks.encoders(self.dims)]
        return self._posterior(torch.cat(outputs, dim=-1))

    def _encoder_inputs(self, rows: Float[Tensor, "*B r"]) -> Float[Tensor, "*B r"]:
        if self.fixed.encoder_input is None:
            return rows
        x, auxiliary = self.split_auxiliary(rows)
        mapped = self.fixed.encoder_input(x)
        return torch.cat([mapped, auxiliary], dim=-1) if self.auxiliary_dim else mapped

    def _posterior(self, outputs: Float[Tensor, "*B o"]) -> Posterior:
        return posterior_family(self.posterior).from_outputs(outputs, self.latent_dim)

    def decoder_output(self, params: Params, z: Float[Tensor, "E B d"]) -> Float[Tensor, "E B n"]:
        """The mean of x, or logits under a Bernoulli likelihood.

        Args:
            params: weights of E members.
            z: a batch of latents per member.
        """
        return self.fixed.decoder(z) if self.fixed.decoder else self.networks.decoder(self.dims)(params, z)

    def prior_at(self, params: Params, auxiliary: Float[Tensor, "E B m"]) -> Prior:
        """p(z|auxiliary), or the prior of a plain VAE, with its learned parameters if it has any.

        Args:
            params: weights of E members.
            auxiliary: a batch per member, as columns of numbers; no columns for a plain VAE.
        """
        networks = self.auxiliary.prior_networks(self.latent_dim)
        if not networks:
            return learned_prior(self.prior, params) if self.prior_shape == "learned" else self.prior
        assert isinstance(self.prior, Normal)
        found = {part: network(params, auxiliary) for part, network in networks.items()}
        return LearnedNormal(found.get("mean", self.prior.mean), found["log_variance"].exp())

    # terms of the objective -------------------------------------------------------------------

    def terms(
        self,
        params: Params,
        rows: Float[Tensor, "E B r"],
        noise: Float[Tensor, "E B d"],
        precision: Float[Tensor, " E"],
    ) -> Terms:
        """Reconstruction and KL of every sample, with one draw of the latents.

        Args:
            params: weights of E members.
            rows: a batch per member: x followed by the auxiliary input.
            noise: standard normal noise for the draw.
            precision: γ² of every member if the noise is fixed, and its lower bound if it is optimal.
        """
        x, auxiliary = self.split_auxiliary(rows)
        posterior = self.encode(params, rows)
        u = posterior.sample(noise)
        output = self.decoder_output(params, self.prior.to_support(u))
        squared_error = (x - output).square().sum(-1)
        if self.likelihood == "bernoulli":
            log_likelihood = bernoulli_log_likelihood(x, output)
        elif self.learns_covariance:
            log_likelihood = covariance_log_likelihood(params, x - output)
        else:
            used = self.current_precision(params, precision, squared_error)
            log_likelihood = gaussian_log_likelihood(squared_error, self.observed_dim, used.unsqueeze(-1))
        prior = self.prior_at(params, auxiliary)
        return Terms(log_likelihood, kl(posterior, prior), squared_error, posterior, u, prior=prior)

    @property
    def learns_covariance(self) -> bool:
        """Whether the noise has a covariance, so that no γ² describes it."""
        return self.noise in LEARNED_COVARIANCES and self.likelihood == "gaussian"

    def current_precision(
        self, params: Params, precision: Float[Tensor, " E"], squared_error: Float[Tensor, "E B"]
    ) -> Float[Tensor, " E"]:
        """γ² of every member: as given, as learned, or that of the highest likelihood for these errors.

        Args:
            params: weights of E members.
            precision: γ² of every member if the noise is fixed, and its lower bound if it is optimal.
            squared_error: ‖x - f(z)‖² of a batch per member; used only if the noise is optimal.
        """
        if self.noise == "learned":
            return params["log_precision"].squeeze(-1).exp()
        if self.noise == "optimal":
            return torch.maximum(optimal_precision(squared_error.mean(-1), self.observed_dim), precision)
        return precision

    @property
    def kept_floor(self) -> float | None:
        """γ² below which an optimal one never falls; None if it is the maximum-likelihood value whatever that is."""
        return self.least_precision if self.noise == "optimal" and self.keeps_floor else None

    def precision_floor(self, best: Float[Tensor, " E"], *, done: float) -> Float[Tensor, " E"]:
        """Lower bound of an optimal γ² in training: without it, latents are lost while errors are still large.

        It is no longer needed once γ² is near it, which means that latents are in use, and in the second half of
        training in any case, so that γ² ends at its maximum-likelihood value.

        Args:
            best: γ² of the highest likelihood in the last epoch; 0 before the first.
            done: share of the epochs that are done.
        """
        near = 0.8  # of the bound, which is that of PCA: a VAE with its latents in use has errors like that
        held = torch.full_like(best, self.least_precision)
        return held if self.keeps_floor else held.where((best < near * held) & (done < 0.5), 0.0)
