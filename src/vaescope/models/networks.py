"""What a VAE needs of its networks, whether they are MLPs or convolutional."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core.validation import ImageShape as ImageShape
from vaescope.distributions import Beta, Normal, Posterior, Prior
from vaescope.distributions.likelihoods import gaussian_log_likelihood

Params = Mapping[str, Tensor]
"""Weights by name; the first axis of each is the member."""


class Dims(NamedTuple):
    """Sizes of the inputs and outputs of a VAE's networks."""

    observed: int
    latent: int
    auxiliary: int
    posterior: int
    """Outputs of the encoder: all parameters of one posterior."""


@runtime_checkable
class Network(Protocol):
    """A function of weights and inputs, for every member of a stack at once."""

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Initial weights of one member, without the member axis."""
        ...

    def __call__(self, params: Params, h: Float[Tensor, "E B i"]) -> Float[Tensor, "E B o"]:
        """Apply each member's weights to its own batch."""
        ...


@runtime_checkable
class Networks(Protocol):
    """Builds the encoder and decoder of a VAE from its dimensions."""

    @property
    def stackable(self) -> bool:
        """Whether training several members at once is faster than one after another."""
        ...

    @property
    def image_shape(self) -> ImageShape | None:
        """(channels, height, width) for networks on images, None for networks on vectors."""
        ...

    def encoders(self, dims: Dims) -> tuple[Network, ...]:
        """One network, or one each for posterior means and scales; their outputs are concatenated.

        Inputs are rows of observations followed by the auxiliary input.

        Args:
            dims: sizes of the inputs and outputs of the networks.
        """
        ...

    def decoder(self, dims: Dims) -> Network:
        """From latents to observations.

        Args:
            dims: sizes of the inputs and outputs of the networks.
        """
        ...

    def freeze_batch_norm(
        self, dims: Dims, params: Params, rows: Float[Tensor, "N r"], to_latents: Callable[[Tensor], Tensor]
    ) -> Params:
        """Add batch-norm statistics over `rows` to one member's weights; networks without batch norm change nothing.

        Args:
            dims: sizes of the inputs and outputs of the networks.
            params: weights of one member, with a member axis of length one.
            rows: encoder inputs over which means and variances are computed.
            to_latents: maps encoder outputs to the latents that the decoder sees.
        """
        ...


LOG_SCALE, LOWER = "noise.log_scale", "noise.lower"
LEARNED_COVARIANCES = {"learned-diagonal": (LOG_SCALE,), "learned-full": (LOG_SCALE, LOWER)}


def init_covariance(noise: str, outputs: int) -> dict[str, Tensor]:
    """First weights of one member, Λ = I; none unless a covariance is learned."""
    shapes = {LOG_SCALE: (outputs,), LOWER: (outputs, outputs)}
    return {name: torch.zeros(shapes[name]) for name in LEARNED_COVARIANCES.get(noise, ())}


def whiten(params: Params, residual: Float[Tensor, "E B n"]) -> Float[Tensor, "E B n"]:
    """R (x - f(z)) of every row."""
    scaled = residual * params[LOG_SCALE].exp().unsqueeze(1)
    if LOWER not in params:
        return scaled
    return scaled + torch.bmm(residual, params[LOWER].tril(-1).mT)


def covariance_log_likelihood(params: Params, residual: Float[Tensor, "E B n"]) -> Float[Tensor, "E B"]:
    """log N(x; f(z), Λ⁻¹) of every row."""
    squares = whiten(params, residual).square().sum(-1)
    volume = params[LOG_SCALE].sum(-1, keepdim=True)
    return gaussian_log_likelihood(squares, residual.shape[-1], torch.ones_like(volume)) + volume


def noise_precision(params: Params) -> Tensor:
    """Λ of the first member: (n,) if it is diagonal, (n, n) otherwise."""
    scale = params[LOG_SCALE][0].exp()
    if LOWER not in params:
        return scale.square()
    root = torch.diag(scale) + params[LOWER][0].tril(-1)
    return root.mT @ root


SHAPE_NAMES: Mapping[type[Prior], tuple[str, ...]] = {Normal: ("variance",), Beta: ("a", "b")}
"""Parameters of a prior that can be learned."""


def init_prior(prior: Prior, latent_dim: int) -> dict[str, Tensor]:
    """First values of one member's learned parameters of the prior, by name: the logarithms of those of `prior`."""
    names = SHAPE_NAMES[type(prior)]
    values = [torch.as_tensor(getattr(prior, name), dtype=torch.get_default_dtype()) for name in names]
    return {f"prior.log_{n}": v.expand(latent_dim).log().clone() for n, v in zip(names, values, strict=True)}


def learned_prior(prior: Prior, params: Params, *, member: int | None = None) -> Prior:
    """The prior with its learned parameters: (E, 1, d), or (d,) of one member, without gradients."""
    values = {name: params[f"prior.log_{name}"].exp() for name in SHAPE_NAMES[type(prior)]}
    learned = {k: v.unsqueeze(1) if member is None else v[member].detach() for k, v in values.items()}
    found = object.__new__(type(prior))  # positive by construction: the check would stop the compiler
    for name, value in {**vars(prior), **learned}.items():
        object.__setattr__(found, name, value)
    return found


class Terms(NamedTuple):
    """Reconstruction and KL of one batch, per member (E) and sample (B), in nats."""

    log_likelihood: Float[Tensor, "E B"]
    """log p(x|z) at one draw of z."""
    kl: Float[Tensor, "E B"]
    """KL[q(z|x) || p(z)], in closed form."""
    squared_error: Float[Tensor, "E B"]
    """‖x - f(z)‖², summed over observed dimensions."""
    posterior: Posterior | None = None
    """q(z|x), in the unbounded coordinate u."""
    u: Float[Tensor, "E B d"] | None = None
    """The draw of the latents in their unbounded coordinate."""
    step: Float[Tensor, ""] | None = None
    """The training step, counted from 1; None in validation."""
    prior: Prior | None = None
    """p(z), or p(z|auxiliary)."""
