"""diffusers' `AutoencoderKL`: images in, a Gaussian posterior over a small image of latents, images out."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vaescope.adapters.adapted import Adapted, check_image
from vaescope.errors import InputError


def from_diffusers(model: Any, *, image: tuple[int, int, int], name: str = "AutoencoderKL") -> Adapted:
    """An `AutoencoderKL` for images of this (channels, height, width); latents are the pixels of its small image."""
    if not all(hasattr(model, part) for part in ("encode", "decode", "config")):
        raise InputError(f"from_diffusers needs an AutoencoderKL, got {type(model).__name__}.")
    check_image(image)
    halvings = len(model.config.block_out_channels) - 1
    small = tuple(side // 2**halvings for side in image[1:])
    if any(side % 2**halvings for side in image[1:]):
        raise InputError(f"this model halves images {halvings} times: sides must be multiples of {2**halvings}.")
    shape = (int(model.config.latent_channels), *small)

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        if x[0].numel() != image[0] * image[1] * image[2]:
            raise InputError(f"this model was adapted for images {image}, got samples of {tuple(x.shape[1:])}.")
        posterior = model.encode(x.reshape(len(x), *image)).latent_dist
        return posterior.mean.flatten(1), posterior.var.flatten(1)

    return Adapted(
        shape[0] * shape[1] * shape[2],
        encode,
        lambda z: model.decode(z.reshape(len(z), *shape)).sample,
        name=name,
        image=image,
        networks=(model,),
    )
