"""Models without a decoder: posteriors alone, and hierarchical models from their layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vaescope.core import validation
from vaescope.core.calls import call_user_function, dtype_and_device, evaluation_mode, networks_behind
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, Prior
from vaescope.protocol import LatentModel, ModelSpec


@dataclass(frozen=True, eq=False)
class Arrays(LatentModel):
    """Posteriors of all samples, for analyses that need no networks."""

    spec: ModelSpec
    mean: Float[Tensor, "N d"]
    variance: Float[Tensor, "N d"]

    def read_samples(self, x: object | None, auxiliary: object | None = None) -> tuple[object, object | None]:
        """The input of `encode`: mean and variance of each sample, side by side; x has nothing to add."""
        rows = len(self.mean)
        if x is not None and (not isinstance(x, Sized) or len(x) != rows):
            raise InputError(f"x must be the {rows} samples that these posteriors belong to; omit it.")
        return torch.cat([self.mean, self.variance], dim=1), auxiliary

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        """The posteriors of some rows of the samples."""
        if x.ndim != 2 or x.shape[1] != 2 * self.latent_dim:
            raise InputError(f"posteriors encode only rows of their own samples, got {tuple(x.shape)}.")
        mean, variance = x.split(self.latent_dim, dim=1)
        return mean, variance


def from_arrays(mean: object, variance: object, *, prior: Prior | None = None, name: str = "posteriors") -> Arrays:
    """A model from the posteriors of all samples; analyses that need a decoder are skipped.

    Args:
        mean: (N, d) posterior means, an array or a tensor.
        variance: (N, d) posterior variances.
        prior: N(0, I) by default.
        name: what reports call the model.
    """
    means, variances = (torch.from_numpy(validation.matrix(v, n)) for v, n in ((mean, "mean"), (variance, "variance")))
    if means.shape != variances.shape:
        raise InputError(
            f"mean and variance must have the same shape (N, d), got {tuple(means.shape)} and {tuple(variances.shape)}."
        )
    spec = ModelSpec(latent_dim=means.shape[1], name=name, prior=prior or Normal(), has_decoder=False)
    return Arrays(spec, means, variances)


Layer = tuple[Tensor, Tensor, Tensor, Tensor]
"""Mean and variance of q(z_l|x, z_above), mean and variance of p(z_l|z_above)."""


@dataclass(frozen=True, eq=False)
class Layered(LatentModel):
    """Latents of all layers in units of their priors, so that each has the prior N(0, 1) and keeps its KL."""

    spec: ModelSpec
    layers: Callable[[Tensor], Sequence[Layer]]
    networks: tuple[nn.Module, ...] = ()

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
    latents = sum(size for _, size in groups)
    spec = ModelSpec(latent_dim=latents, name=name, has_decoder=False, latent_groups=groups)
    return Layered(spec, layers, networks_behind(layers) if networks is None else tuple(networks))
