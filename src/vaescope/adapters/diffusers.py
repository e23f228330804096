"""diffusers' `AutoencoderKL`: images in, a Gaussian posterior over a small image of latents, images out."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from vaescope.adapters.base import Adapted
from vaescope.core import validation
from vaescope.core.errors import InputError


def from_diffusers(model: Any, *, image_shape: tuple[int, int, int], name: str = "AutoencoderKL") -> Adapted:
    """A model from an `AutoencoderKL`, whose latents form an image: channels and positions are reported.

    Args:
        model: an `AutoencoderKL`.
        image_shape: (channels, height, width) of the images that it is used with.
        name: what reports call the model.
    """
    if not all(hasattr(model, part) for part in ("encode", "decode", "config")):
        raise InputError(f"from_diffusers needs an AutoencoderKL, got {type(model).__name__}.")
    channels, height, width = validation.image_shape(image_shape)
    halvings = len(model.config.block_out_channels) - 1
    if any(side % 2**halvings for side in (height, width)):
        raise InputError(f"this model halves images {halvings} times: sides must be multiples of {2**halvings}.")
    latent_shape = (int(model.config.latent_channels), height // 2**halvings, width // 2**halvings)

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        if x[0].numel() != channels * height * width:
            raise InputError(f"this model is adapted to images {image_shape}, got samples of {tuple(x.shape[1:])}.")
        posterior = model.encode(x.reshape(len(x), channels, height, width)).latent_dist
        return posterior.mean.flatten(1), posterior.var.flatten(1)

    return Adapted(
        latent_shape[0] * latent_shape[1] * latent_shape[2],
        encode,
        lambda z: model.decode(z.reshape(len(z), *latent_shape)).sample,
        name=name,
        image_shape=(channels, height, width),
        networks=(model,),
        latent_shape=latent_shape,
        latent_scaling=_scaling(model.config),
    )


def _scaling(config: Any) -> tuple[float, float] | None:
    """Scaling and shift factor; None where they are not declared."""
    scaling, shift = (getattr(config, name, None) for name in ("scaling_factor", "shift_factor"))
    return None if scaling is None else (float(scaling), float(shift or 0.0))
