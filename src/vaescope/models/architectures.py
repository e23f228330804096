"""The convolutional networks of the papers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.models.conv import ConvNet, Layer
from vaescope.models.networks import Dims, ImageShape, Params


@dataclass(frozen=True)
class Architecture:
    """Hidden layers of encoder and decoder; input and output layers follow from the VAE's dimensions."""

    encoder_linear: tuple[int, ...]
    """Linear layers of the encoder, after its convolutions."""
    decoder_linear: tuple[int, ...]
    """Linear layers of the decoder, before the one that its deconvolutions start from."""
    channels: tuple[int, ...] = (32, 32, 64, 64)
    """Of the encoder's convolutions; the decoder has them in reverse."""
    encoder_norm_from: int | None = None
    """The first hidden layer of the encoder with batch norm; all later ones have it too."""
    decoder_norm: bool = False
    """Whether the decoder's hidden layers have batch norm."""

    @property
    def downsampling(self) -> int:
        """By how much the convolutions divide the sides of an image."""
        return int(2 ** len(self.channels))

    def encoder(self, name: str, image_shape: ImageShape, outputs: int, auxiliary_dim: int = 0) -> ConvNet:
        """Strided convolutions, then linear layers. An auxiliary input enters at, and widens, the first linear one."""
        hidden = len(self.channels) + len(self.encoder_linear)
        norm_from = hidden if self.encoder_norm_from is None else self.encoder_norm_from
        widths = [width + auxiliary_dim * (index == 0) for index, width in enumerate(self.encoder_linear)]
        kinds = [("conv", c) for c in self.channels] + [("linear", w) for w in widths]
        layers = [Layer(kind, width, norm=index >= norm_from) for index, (kind, width) in enumerate(kinds)]
        late_inputs = (len(self.channels), auxiliary_dim)
        return ConvNet(name, image_shape, (*layers, Layer("linear", outputs, relu=False)), late_inputs=late_inputs)

    def decoder(self, name: str, image_shape: ImageShape, inputs: int) -> ConvNet:
        """Linear layers, then strided deconvolutions up to the image."""
        small = (self.channels[-1], *(side // self.downsampling for side in image_shape[1:]))
        layers = [Layer("linear", width, norm=self.decoder_norm) for width in self.decoder_linear]
        layers.append(Layer("linear", math.prod(small)))
        first_deconv = len(layers)
        layers += [Layer("deconv", c, norm=self.decoder_norm) for c in reversed(self.channels[:-1])]
        layers.append(Layer("deconv", image_shape[0], relu=False))
        return ConvNet(name, (inputs,), tuple(layers), reshape=(first_deconv, small))


ARCHITECTURES = {
    "sprites": Architecture((256, 256), (256, 256)),  # Reizinger et al. 2022, Tab. 5
    "regime": Architecture((256,), (256,)),  # Bonheme & Grzes 2023, Tab. 1
    # Bhowal et al. 2024, Tab. 3: without batch norm, then as for 3DShapes and MPI3D, then as for 3DFaces
    "orthogonality": Architecture((256,), (64,)),
    "orthogonality-shapes": Architecture((256,), (64,), encoder_norm_from=3),
    "orthogonality-faces": Architecture((512,), (512,), encoder_norm_from=0, decoder_norm=True),
}


@dataclass(frozen=True)
class ConvNetworks:
    """Encoder and decoder for images.

    Args:
        image_shape: (channels, height, width); observations are rows of pixels, channels first.
        architecture: one of `ARCHITECTURES`.
    """

    image_shape: ImageShape
    architecture: str = "sprites"

    def __post_init__(self) -> None:
        shape = validation.image_shape(self.image_shape)
        validation.choice("architecture", self.architecture, ARCHITECTURES)
        factor = self._architecture.downsampling
        if any(side % factor for side in shape[1:]):
            raise InputError(
                f"the {self.architecture} network needs images whose sides are multiples of {factor}, "
                f"got {shape[1]} x {shape[2]}; resize or pad them."
            )

    @property
    def _architecture(self) -> Architecture:
        return ARCHITECTURES[self.architecture]

    @property
    def stackable(self) -> bool:
        return False

    def encoders(self, dims: Dims) -> tuple[ConvNet, ...]:
        """One network; its inputs are rows of observations followed by the auxiliary input.

        Args:
            dims: sizes of the inputs and outputs of the networks.
        """
        return (self._architecture.encoder("encoder", self.image_shape, dims.posterior, dims.auxiliary),)

    def decoder(self, dims: Dims) -> ConvNet:
        """From latents to observations.

        Args:
            dims: sizes of the inputs and outputs of the networks.
        """
        return self._architecture.decoder("decoder", self.image_shape, dims.latent)

    @torch.no_grad()
    def freeze_batch_norm(
        self, dims: Dims, params: Params, rows: Float[Tensor, "N r"], to_latents: Callable[[Tensor], Tensor]
    ) -> Params:
        """Add batch-norm statistics to one member's weights, so that no output depends on the rest of its batch.

        Args:
            dims: sizes of the inputs and outputs of the networks.
            params: weights of one member, with a member axis of length one.
            rows: encoder inputs over which means and variances are computed.
            to_latents: maps encoder outputs to the latents that the decoder sees.
        """
        if not (self._architecture.encoder_norm_from is not None or self._architecture.decoder_norm):
            return params
        one = {name: value[0] for name, value in params.items()}
        rows = rows.to(one["encoder.0.weight"])
        (encoder,) = self.encoders(dims)
        statistics = encoder.statistics(one, rows)
        if "decoder.0.weight" in one:
            statistics |= self.decoder(dims).statistics(one, to_latents(encoder.one(one, rows)))
        return {**params, **{name: value[None] for name, value in statistics.items()}}
