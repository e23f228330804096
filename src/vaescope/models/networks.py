"""What a VAE needs of its networks, whether they are MLPs or convolutional."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.validation import ImageShape as ImageShape

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
