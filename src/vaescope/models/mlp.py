"""Multilayer perceptrons for a stack of members: every weight has a leading member axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError

Params = Mapping[str, Tensor]


def smooth_leaky_relu(h: Tensor) -> Tensor:
    """0.2·h + 0.8·log(1 + eʰ) (Gresele et al. 2021).

    The logarithm is written out: faster than `softplus`, whose log1p would only refine
    digits that the linear term drowns. The clamp keeps the unused branch finite, for gradients.
    """
    return 0.2 * h + 0.8 * torch.where(h > 30, h, torch.log(1 + torch.exp(h.clamp(max=30))))


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
    """Linear layers of the given sizes with an activation between them; weights are not kept here.

    `name` prefixes the parameters, so that several networks share one dictionary.
    """

    name: str
    sizes: tuple[int, ...]
    activation: str = "smooth_leaky_relu"

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise InputError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}.")
        if len(self.sizes) < 2 or min(self.sizes) < 1:
            raise InputError(f"layer sizes must be positive, got {self.sizes}.")

    @property
    def layers(self) -> int:
        return len(self.sizes) - 1

    def init(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Fresh weights of one member: uniform within ±1/√inputs, as `torch.nn.Linear` draws them."""
        params = {}
        for layer, (inputs, outputs) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            bound = inputs**-0.5
            for kind, shape in (("weight", (inputs, outputs)), ("bias", (1, outputs))):
                uniform = torch.rand(shape, generator=generator)
                params[f"{self.name}.{layer}.{kind}"] = (2 * uniform - 1) * bound
        return params

    def __call__(self, params: Params, h: Float[Tensor, "E B i"]) -> Float[Tensor, "E B o"]:
        """Every member's network on that member's batch: one batched matrix product per layer."""
        activate = ACTIVATIONS[self.activation]
        for layer in range(self.layers):
            # the bias is added apart: compiled, the sum fuses with the activation that follows
            h = torch.bmm(h, params[f"{self.name}.{layer}.weight"]) + params[f"{self.name}.{layer}.bias"]
            h = activate(h) if layer < self.layers - 1 else h
        return h
