"""Vector-quantised autoencoders (VQ-VAE): codes are indices into a codebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vaescope.core import validation
from vaescope.core.calls import call_user_function, dtype_and_device, evaluation_mode, networks_behind
from vaescope.core.errors import InputError


@dataclass(frozen=True, eq=False)
class Quantised:
    """A model with a codebook. It has no posterior, so it is not a `LatentModel`."""

    encoder: Callable[[Tensor], Tensor]
    codebook_size: int
    reconstructor: Callable[[Tensor], Tensor] | None = None
    name: str = "VQ-VAE"
    networks: tuple[nn.Module, ...] = ()

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """Indices of the codes of each sample, (N, positions)."""
        found = self._call("encode", self.encoder, x)
        if (found.is_floating_point() and not bool((found == found.round()).all())) or len(found) != len(x):
            raise InputError(
                f"encode must return indices of codes, integers with a row per sample, got {tuple(found.shape)} of "
                f"{found.dtype}; flattened ones are indices.reshape(len(x), -1)."
            )
        indices = found.long().reshape(len(x), -1).cpu()
        if int(indices.min()) < 0 or int(indices.max()) >= self.codebook_size:
            raise InputError(
                f"indices must be 0 to {self.codebook_size - 1}, got {int(indices.min())} to {int(indices.max())}; "
                "codebook_size is the number of codes."
            )
        return indices

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor | None:
        """Reconstructions as rows; None if there is no function for them."""
        if self.reconstructor is None:
            return None
        return self._call("reconstruct", self.reconstructor, x).flatten(1).cpu()

    def _call(self, name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        weights = dtype_and_device(self.networks)
        with evaluation_mode(self.networks):
            found: object = call_user_function(name, function, x if weights is None else x.to(weights[1], weights[0]))
        if not isinstance(found, Tensor):
            raise InputError(
                f"{name} must return one tensor, got {type(found).__name__}; write {name}=lambda x: f(x)[0]."
            )
        return found


def from_codebook(
    encode: Callable[[Tensor], Tensor],
    *,
    codebook_size: int,
    reconstruct: Callable[[Tensor], Tensor] | None = None,
    name: str = "VQ-VAE",
    networks: Sequence[nn.Module] | None = None,
) -> Quantised:
    """A VQ-VAE: how much of its codebook is used.

    Args:
        encode: x -> indices of codes, (N, ...) integers.
        codebook_size: number of codes.
        reconstruct: x -> reconstructions, to compare with x.
        name: what reports call the model.
        networks: modules to call in evaluation mode; by default those that the functions belong or refer to.
    """
    validation.integer("codebook_size", codebook_size, minimum=2)
    found = networks_behind(encode, reconstruct) if networks is None else tuple(networks)
    return Quantised(encode, codebook_size, reconstruct, name, found)
