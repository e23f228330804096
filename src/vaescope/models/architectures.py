"""Convolutional networks whose weights live in the same dictionaries as those of MLPs, and those of the papers.

Weights keep a leading member axis, usually of length one: stacking convolutional members is not faster on a CPU, so
they train one after another. Inputs and outputs are flat rows of pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.models.networks import Dims, ImageShape, Params

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """A `linear`, `conv` or `deconv` layer, then batch norm and ReLU if it has them."""

    kind: str
    outputs: int
    """Units of a linear layer, channels of the others."""
    kernel: int = 4
    stride: int = 2
    padding: int = 1
    norm: bool = False
    relu: bool = True

    def shapes(self, inputs: Shape) -> tuple[Shape, Shape, int]:
        """Shape of the weight, shape of the output, and fan-in."""
        if self.kind == "linear":
            flat = math.prod(inputs)
            return (self.outputs, flat), (self.outputs,), flat
        channels, height, width = inputs if len(inputs) == 3 else (inputs[0], 1, 1)
        if self.kind == "conv":
            weight: Shape = (self.outputs, self.kernel, self.kernel, channels)
            sizes = [(s + 2 * self.padding - self.kernel) // self.stride + 1 for s in (height, width)]
            return weight, (self.outputs, *sizes), channels * self.kernel**2
        weight = (channels, self.kernel, self.kernel, self.outputs)
        sizes = [(s - 1) * self.stride - 2 * self.padding + self.kernel for s in (height, width)]
        return weight, (self.outputs, *sizes), self.outputs * self.kernel**2


class SizedLayer(NamedTuple):
    """A layer with the shapes that it has in a network."""

    layer: Layer
    input_shape: Shape
    weight_shape: Shape
    output_shape: Shape
    fan_in: int


@dataclass(frozen=True)
class ConvNet:
    """A sequence of layers from an input of `shape` to a flat output. Linear layers flatten their input."""

    name: str
    """Prefix of the weights' names."""
    shape: Shape
    layers: tuple[Layer, ...]
    reshape: tuple[int, Shape] | None = None
    """(layer, shape): the input of this layer is reshaped to this shape."""
    late_inputs: tuple[int, int] = (0, 0)
    """(layer, count): the last `count` numbers of every row skip all layers before this one."""

    def sized_layers(self) -> list[SizedLayer]:
        """Every layer with its shapes."""
        current, sized = self.shape, []
        late_layer, late_count = self.late_inputs
        for index, layer in enumerate(self.layers):
            if self.reshape and index == self.reshape[0]:
                current = self.reshape[1]
            if late_count and index == late_layer:
                current = (math.prod(current) + late_count,)
            weight, output, fan_in = layer.shapes(current)
            sized.append(SizedLayer(layer, current, weight, output, fan_in))
            current = output
        return sized

    @property
    def output_shape(self) -> Shape:
        return self.sized_layers()[-1].output_shape

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Initial weights of one member: uniform in ±1/√fan-in, like PyTorch's own layers."""
        params = {}
        for index, sized in enumerate(self.sized_layers()):
            prefix = f"{self.name}.{index}"
            for kind, shape in (("weight", sized.weight_shape), ("bias", (sized.layer.outputs,))):
                params[f"{prefix}.{kind}"] = (2 * torch.rand(shape, generator=generator) - 1) * sized.fan_in**-0.5
            if sized.layer.norm:
                params[f"{prefix}.gain"] = torch.ones(sized.output_shape[0])
                params[f"{prefix}.shift"] = torch.zeros(sized.output_shape[0])
        return params

    def __call__(self, params: Params, h: Float[Tensor, "E B i"]) -> Float[Tensor, "E B o"]:
        """Apply each member's weights to its own batch, one member after another."""
        outputs = [self.one({name: p[e] for name, p in params.items()}, h[e]) for e in range(len(h))]
        return torch.stack(outputs).to(h.dtype)  # float32 also where layers compute in bfloat16

    def one(self, params: Params, rows: Float[Tensor, "B i"]) -> Float[Tensor, "B o"]:
        """The network of one member, with weights without a member axis."""
        return self._apply(params, rows, {})

    def statistics(self, params: Params, rows: Float[Tensor, "B i"]) -> dict[str, Tensor]:
        """Mean and variance, over these rows, of the input of every batch norm, named like weights."""
        found: dict[str, Tensor] = {}
        self._apply(params, rows, found)
        return found

    def _apply(self, params: Params, rows: Tensor, statistics: dict[str, Tensor]) -> Tensor:
        """All layers in turn; writes the batch-norm statistics into `statistics`."""
        late_layer, late_count = self.late_inputs
        h, late = (rows[:, :-late_count], rows[:, -late_count:]) if late_count else (rows, rows)
        for index, sized in enumerate(self.sized_layers()):
            layer, prefix = sized.layer, f"{self.name}.{index}"
            if late_count and index == late_layer:
                h = torch.cat([h.flatten(1), late], dim=1)
            h = _transform(
                layer, h.reshape(len(h), *sized.input_shape), params[f"{prefix}.weight"], params[f"{prefix}.bias"]
            )
            if layer.norm:
                axes = [axis for axis in range(h.ndim) if axis != 1]
                statistics |= {f"{prefix}.mean": h.mean(axes), f"{prefix}.variance": h.var(axes, unbiased=False)}
                # with the statistics of the batch, or those stored with the weights (`freeze_batch_norm`)
                mean, variance = params.get(f"{prefix}.mean"), params.get(f"{prefix}.variance")
                h = F.batch_norm(
                    h,
                    mean,
                    variance,
                    params[f"{prefix}.gain"],
                    params[f"{prefix}.shift"],
                    training=mean is None,
                    momentum=0.0,
                )
            h = torch.relu(h) if layer.relu else h
        return h.reshape(len(h), -1)


def _transform(layer: Layer, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The linear or convolutional part of a layer."""
    if layer.kind == "linear":
        return F.linear(h.flatten(1), weight, bias)
    h = (h if h.ndim == 4 else h[:, :, None, None]).to(memory_format=torch.channels_last)
    convolve = F.conv2d if layer.kind == "conv" else F.conv_transpose2d
    # weights are stored with channels last, the fastest layout for convolutions
    out = convolve(h, weight.permute(0, 3, 1, 2), None, layer.stride, layer.padding)
    # added separately: oneDNN takes as long for the gradient of a bfloat16 bias as for that of the weights
    return out + bias.to(out.dtype)[:, None, None]


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
