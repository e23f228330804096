"""Multilayer perceptrons for a stack of members: every weight has a leading member axis.

Activations have the shape (members, batch, units) outside, and the batch as the innermost axis in memory. A layer is
then one product of small weight matrices with wide activation matrices, the fastest order on a CPU, and elementwise
kernels run along the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.models.networks import Dims, Networks, Params


def smooth_leaky_relu(h: Tensor) -> Tensor:
    """0.2·h + 0.8·log(1 + eʰ) (Gresele et al. 2021).

    In compiled graphs the logarithm is written out, which is faster than `softplus`, whose log1p only changes digits
    that the linear term rounds away; the clamp keeps the gradient of the unused branch finite. Elsewhere each operation
    reads and writes all numbers, and `softplus` is one: twice as fast, and three times with derivatives.
    """
    if not torch.compiler.is_compiling():
        return torch.add(0.8 * F.softplus(h, threshold=40.0), h, alpha=0.2)  # exact from there
    return 0.2 * h + 0.8 * torch.where(h > 30, h, torch.log(1 + torch.exp(h.clamp(max=30))))


def _training_smooth_leaky_relu(h: Tensor) -> Tensor:
    """`smooth_leaky_relu` in float32 and its first derivative, in an eighth less time of a compiled training step.

    The logarithm is a polynomial, and the slope is computed along with the value, so that the gradient needs neither h
    nor another division. Second derivatives are lost: for training only.
    """
    value = h.detach()
    e = torch.exp(-value.abs())
    # coefficients of e⁸, e⁷, …, e of log(1 + e) on [0, 1], to 3e-8 (Abramowitz & Stegun 1964, 4.1.44)
    polynomial = e * -0.0064535442
    lower = 0.0360884937, -0.0953293897, 0.1676540711, -0.2407338084, 0.3317990258, -0.4998741238, 0.9999964239
    for coefficient in lower:
        polynomial = (polynomial + coefficient) * e
    output = 0.2 * value + 0.8 * (value.clamp(min=0) + polynomial)
    slope = 0.2 + 0.8 * torch.where(value >= 0, 1.0, e) / (1 + e)
    return output + slope * (h - value)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "smooth_leaky_relu": smooth_leaky_relu,
    "relu": torch.relu,
    "leaky_relu": lambda h: F.leaky_relu(h, 0.1),
    "tanh": torch.tanh,
    "silu": F.silu,
    "identity": lambda h: h,
}


@dataclass(frozen=True)
class MLP:
    """Linear layers with an activation between them. Holds sizes, not weights.

    Args:
        name: prefix of the weights' names, so that several networks can share one dictionary.
        sizes: units of every layer, from the input to the output.
        activation: one of `ACTIVATIONS`.
    """

    name: str
    sizes: tuple[int, ...]
    activation: str = "smooth_leaky_relu"

    def __post_init__(self) -> None:
        validation.choice("activation", self.activation, ACTIVATIONS)
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise InputError(f"layer sizes must be at least 1, got {self.sizes}.")

    @property
    def layers(self) -> int:
        return len(self.sizes) - 1

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Initial weights of one member: uniform in ±1/√inputs, like `torch.nn.Linear`."""
        params = {}
        for layer, (inputs, outputs) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            for kind, shape in (("weight", (inputs, outputs)), ("bias", (1, outputs))):
                uniform = torch.rand(shape, generator=generator)
                params[f"{self.name}.{layer}.{kind}"] = ((2 * uniform - 1) * inputs**-0.5).mT.contiguous()
        return params

    def __call__(self, params: Params, h: Float[Tensor, "E B i"]) -> Float[Tensor, "E B o"]:
        """Apply each member's weights to its own batch; weights are (E, outputs, inputs), biases (E, outputs, 1)."""
        activate = ACTIVATIONS[self.activation]
        if activate is smooth_leaky_relu and h.dtype == torch.float32 and torch.compiler.is_compiling():
            activate = _training_smooth_leaky_relu
        h = h.mT
        for layer in range(self.layers):
            # a separate sum, because the compiler fuses it with the activation
            h = _product(params[f"{self.name}.{layer}.weight"], h) + params[f"{self.name}.{layer}.bias"]
            h = activate(h) if layer < self.layers - 1 else h
        return h.mT


def _product(weight: Float[Tensor, "E o i"], h: Float[Tensor, "E i B"]) -> Float[Tensor, "E o B"]:
    """A batched matrix product, written as a sum where the compiler makes a faster kernel of it: for few units."""
    if torch.compiler.is_compiling() and min(weight.shape[1:]) <= 6:
        return (weight.unsqueeze(3) * h.unsqueeze(1)).sum(2)
    return torch.bmm(weight, h)


def batch_innermost(rows: Float[Tensor, "*S B n"]) -> Float[Tensor, "*S B n"]:
    """The same rows with the batch as the innermost axis in memory."""
    return rows.mT.contiguous().mT


@dataclass(frozen=True)
class MLPNetworks(Networks):
    """Encoder and decoder as MLPs.

    Args:
        hidden: units of the encoder's hidden layers; the decoder has them in reverse.
        activation: one of `ACTIVATIONS`.
        split_encoder: use separate networks for posterior means and scales.
        linear_decoder: use a decoder without hidden layers.
    """

    hidden: tuple[int, ...] = (30, 30)
    activation: str = "smooth_leaky_relu"
    split_encoder: bool = False
    linear_decoder: bool = False

    def __post_init__(self) -> None:
        validation.choice("activation", self.activation, ACTIVATIONS)
        if any(units < 1 for units in self.hidden):
            raise InputError(f"hidden layers must have at least 1 unit, got {self.hidden}.")

    @property
    def stackable(self) -> bool:
        return True

    @property
    def image_shape(self) -> None:
        return None

    def encoders(self, dims: Dims) -> tuple[MLP, ...]:
        inputs = dims.observed + dims.auxiliary
        if not self.split_encoder:
            return (MLP("encoder", (inputs, *self.hidden, dims.posterior), self.activation),)
        outputs = {"encoder.mean": dims.latent, "encoder.scale": dims.posterior - dims.latent}
        return tuple(MLP(name, (inputs, *self.hidden, size), self.activation) for name, size in outputs.items())

    def decoder(self, dims: Dims) -> MLP:
        hidden = () if self.linear_decoder else tuple(reversed(self.hidden))
        return MLP("decoder", (dims.latent, *hidden, dims.observed), self.activation)

    def freeze_batch_norm(
        self, dims: Dims, params: Params, rows: Float[Tensor, "N r"], to_latents: Callable[[Tensor], Tensor]
    ) -> Params:
        return params
