"""Convolutional networks, with weights in the same dictionaries as the stack's.

A layer's weights keep a leading member axis, usually of length one: convolutional members gain nothing from
being stacked on a CPU and are trained one after another. Images are rows of pixels to everything outside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope.models.mlp import Params

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One layer: `linear`, `conv` or `deconv`, its outputs or channels, and what follows it."""

    kind: str
    outputs: int
    kernel: int = 4
    stride: int = 2
    padding: int = 1
    norm: bool = False
    relu: bool = True

    def shapes(self, inputs: Shape) -> tuple[Shape, Shape, int]:
        """Of the weight and of the output, and how many inputs one output sees."""
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


@dataclass(frozen=True)
class ConvNet:
    """Layers in a row, from an input of `shape` to a flat output; linear layers flatten, `views` unflatten."""

    name: str
    shape: Shape
    layers: tuple[Layer, ...]
    views: tuple[tuple[int, Shape], ...] = ()
    """Before which layer its input is seen as which shape."""
    joined: tuple[int, int] = (0, 0)
    """Before which layer how many numbers, the last of every row, join the others."""

    def plan(self) -> list[tuple[Layer, Shape, Shape, Shape, int]]:
        """Every layer with the shapes of its input, weight and output, and its fan-in."""
        views, current, steps = dict(self.views), self.shape, []
        for place, layer in enumerate(self.layers):
            current = views.get(place, current)
            if self.joined[1] and place == self.joined[0]:
                current = (math.prod(current) + self.joined[1],)
            weight, output, fan = layer.shapes(current)
            steps.append((layer, current, weight, output, fan))
            current = output
        return steps

    @property
    def output_shape(self) -> Shape:
        return self.plan()[-1][3]

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Fresh weights of one member: uniform within ±1/√fan-in, as PyTorch's own layers draw them."""
        params = {}
        for place, (layer, _, weight, output, fan) in enumerate(self.plan()):
            for kind, shape in (("weight", weight), ("bias", (layer.outputs,))):
                params[f"{self.name}.{place}.{kind}"] = (2 * torch.rand(shape, generator=generator) - 1) * fan**-0.5
            if layer.norm:
                params[f"{self.name}.{place}.gain"] = torch.ones(output[0])
                params[f"{self.name}.{place}.shift"] = torch.zeros(output[0])
        return params

    def __call__(self, params: Params, h: Float[Tensor, "E B i"]) -> Float[Tensor, "E B o"]:
        """Every member's network on that member's batch, member by member."""
        members = [self.one({name: p[e] for name, p in params.items()}, h[e]) for e in range(len(h))]
        return torch.stack(members)

    def one(self, params: Params, rows: Float[Tensor, "B i"]) -> Float[Tensor, "B o"]:
        """One member's network; rows in, rows out."""
        return self._through(params, rows, {})

    def statistics(self, params: Params, rows: Float[Tensor, "B i"]) -> dict[str, Tensor]:
        """Mean and variance of every normalised layer's input over these rows, to be kept with the weights."""
        found: dict[str, Tensor] = {}
        self._through(params, rows, found)
        return found

    def _through(self, params: Params, rows: Tensor, found: dict[str, Tensor]) -> Tensor:
        """All layers in turn; `found` receives the statistics of normalised ones."""
        where, extra = self.joined
        h, late = (rows[:, :-extra], rows[:, -extra:]) if extra else (rows, rows)
        for place, (layer, seen, _, _, _) in enumerate(self.plan()):
            prefix = f"{self.name}.{place}"
            if extra and place == where:
                h = torch.cat([h.flatten(1), late], dim=1)
            h = _apply(layer, h.reshape(len(h), *seen), params[f"{prefix}.weight"], params[f"{prefix}.bias"])
            if layer.norm:
                over = [axis for axis in range(h.ndim) if axis != 1]
                found |= {f"{prefix}.mean": h.mean(over), f"{prefix}.variance": h.var(over, unbiased=False)}
                h = _normalise(h, params, prefix)
            h = torch.relu(h) if layer.relu else h
        return h.reshape(len(h), -1)


def _apply(layer: Layer, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if layer.kind == "linear":
        return F.linear(h.flatten(1), weight, bias)
    convolve: Any = F.conv2d if layer.kind == "conv" else F.conv_transpose2d
    h = h if h.ndim == 4 else h[:, :, None, None]
    weight = weight.permute(0, 3, 1, 2)  # kept with channels last, the layout that convolutions are fastest in
    return convolve(h.to(memory_format=torch.channels_last), weight, bias, layer.stride, layer.padding)


def _normalise(h: Tensor, params: Params, prefix: str) -> Tensor:
    """Batch normalisation: by the batch while training, by what was kept with the weights afterwards."""
    mean, variance = params.get(f"{prefix}.mean"), params.get(f"{prefix}.variance")
    return F.batch_norm(
        h, mean, variance, params[f"{prefix}.gain"], params[f"{prefix}.shift"], training=mean is None, momentum=0.0
    )


# the papers' architectures --------------------------------------------------------------------


@dataclass(frozen=True)
class Architecture:
    """Hidden layers of encoder and decoder; the outputs are added to fit the model."""

    channels: tuple[int, ...]
    linear: tuple[int, ...]
    """Of the encoder, after its convolutions."""
    back: tuple[int, ...]
    """Of the decoder, before the layer that its deconvolutions start from."""
    norm_from: int | None = None
    """The first layer of the encoder with batch norm; all later ones have it too."""
    norm_back: bool = False
    """Whether the decoder's hidden layers have it."""

    @property
    def norm(self) -> bool:
        return self.norm_from is not None or self.norm_back


_DOWN = (32, 32, 64, 64)
ARCHITECTURES = {
    "sprites": Architecture(_DOWN, (256, 256), (256, 256)),  # Reizinger et al. 2022, Tab. 5
    "regime": Architecture(_DOWN, (256,), (256,)),  # Bonheme & Grzes 2023, Tab. 1
    # Bhowal et al. 2024, Tab. 3: without batch norm, as for 3DShapes and MPI3D, and as for 3DFaces
    "orthogonality": Architecture(_DOWN, (256,), (64,)),
    "orthogonality-shapes": Architecture(_DOWN, (256,), (64,), norm_from=3),
    "orthogonality-faces": Architecture(_DOWN, (512,), (512,), norm_from=0, norm_back=True),
}


def encoder(name: str, image: Shape, outputs: int, architecture: Architecture, auxiliary: int = 0) -> ConvNet:
    """Strided convolutions, then linear layers; an auxiliary input joins between, and widens the first of them."""
    first = len(architecture.channels) + len(architecture.linear)  # beyond the last, where there is no batch norm
    start = first if architecture.norm_from is None else architecture.norm_from
    widths = [w + auxiliary * (place == 0) for place, w in enumerate(architecture.linear)]
    kinds = [("conv", c) for c in architecture.channels] + [("linear", w) for w in widths]
    layers = [Layer(kind, width, norm=place >= start) for place, (kind, width) in enumerate(kinds)]
    joined = (len(architecture.channels), auxiliary)
    return ConvNet(name, image, (*layers, Layer("linear", outputs, relu=False)), joined=joined)


def decoder(name: str, image: Shape, inputs: int, architecture: Architecture) -> ConvNet:
    """Linear layers, then strided deconvolutions back to the image."""
    channels, norm = architecture.channels, architecture.norm_back
    small = tuple(s // 2 ** len(channels) for s in image[1:])
    layers = [Layer("linear", width, norm=norm) for width in architecture.back]
    layers.append(Layer("linear", channels[-1] * math.prod(small)))
    first = len(layers)
    layers += [Layer("deconv", c, norm=norm) for c in reversed(channels[:-1])]
    layers.append(Layer("deconv", image[0], relu=False))
    return ConvNet(name, (inputs,), tuple(layers), views=((first, (channels[-1], *small)),))
