"""Hierarchical VAEs: several layers of latents, each with a prior that depends on the layers above."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vaescope.adapters.networks import call_user_function, dtype_and_device, evaluation_mode, networks_behind
from vaescope.distributions import Normal, Prior
from vaescope.errors import InputError
from vaescope.protocol import LatentModel

Layer = tuple[Tensor, Tensor, Tensor, Tensor]
"""Mean and variance of q(z_l|x, z_above), mean and variance of p(z_l|z_above)."""


@dataclass(frozen=True, eq=False)
class Layered(LatentModel):
    """Latents of all layers in units of their priors, so that each has the prior N(0, 1) and keeps its KL."""

    layers: Callable[[Tensor], Sequence[Layer]]
    latent_groups: tuple[tuple[str, int], ...]
    name: str = "model"
    prior: Prior = field(default_factory=Normal)
    networks: tuple[nn.Module, ...] = ()

    @property
    def latent_dim(self) -> int:
        return sum(size for _, size in self.latent_groups)

    @property
    def has_decoder(self) -> bool:
        return False

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance of every latent, in units of its prior."""
        weights = dtype_and_device(self.networks)
        with evaluation_mode(self.networks):
            found = call_user_function("layers", self.layers, x if weights is None else x.to(weights[1], weights[0]))
        parts = [self._standardised(layer, k, len(x)) for k, layer in enumerate(found)]
        if [mean.shape[1] for mean, _ in parts] != [size for _, size in self.latent_groups]:
            sizes = [mean.shape[1] for mean, _ in parts]
            raise InputError(f"layers must return latents of sizes {[s for _, s in self.latent_groups]}, got {sizes}.")
        return torch.cat([mean for mean, _ in parts], dim=1), torch.cat([variance for _, variance in parts], dim=1)

    def _standardised(self, layer: object, k: int, count: int) -> tuple[Tensor, Tensor]:
        if not isinstance(layer, tuple | list) or len(layer) != 4:
            raise InputError(
                f"layer {k} must be (mean, variance, prior_mean, prior_variance), got {len(layer)} values."
                if isinstance(layer, tuple | list)
                else f"layers must return a list of layers, got {type(layer).__name__} in it."
            )
        mean, variance, prior_mean, prior_variance = (value.detach().cpu() for value in torch.broadcast_tensors(*layer))
        return ((mean - prior_mean) / prior_variance.sqrt()).flatten(1), (variance / prior_variance).flatten(1)

    def decode(self, z: Tensor) -> Tensor:
        raise InputError("a hierarchical model is diagnosed without its decoder.")


def from_layers(
    layers: Callable[[Tensor], Sequence[Layer]],
    *,
    sizes: Sequence[int],
    names: Sequence[str] | None = None,
    name: str = "hierarchical model",
    networks: Sequence[nn.Module] | None = None,
) -> Layered:
    """A hierarchical VAE from the posteriors and priors of its layers: information and latents in use of each layer.

    Args:
        layers: x -> a list with (mean, variance, prior_mean, prior_variance) of each layer, as the loss uses them.
        sizes: latents of each layer, all positions counted.
        names: of the layers; 0, 1, ... by default.
        name: what reports call the model.
        networks: modules to call in evaluation mode; by default those that the function belongs or refers to.

    >>> model = from_layers(lambda x: [(x, 0.5 + 0 * x, 0 * x, 1 + 0 * x)], sizes=[2])
    >>> model.encode(torch.ones(1, 2))[1]
    tensor([[0.5000, 0.5000]])
    """
    listed = [str(k) for k in range(len(sizes))] if names is None else [str(label) for label in names]
    if len(listed) != len(sizes) or not sizes or any(int(size) < 1 for size in sizes):
        raise InputError(f"sizes must have a number > 0 for each layer, got {list(sizes)} for {len(listed)} layers.")
    groups = tuple(zip(listed, (int(size) for size in sizes), strict=True))
    return Layered(layers, groups, name, networks=networks_behind(layers) if networks is None else tuple(networks))
