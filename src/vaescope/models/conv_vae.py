"""A variational autoencoder for images: the stack's VAE with convolutional networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError
from vaescope.models.conv import ARCHITECTURES, ConvNet, decoder, encoder
from vaescope.models.mlp import Params
from vaescope.models.vae import VAE

CALIBRATION_ROWS = 1024  # images over which batch norms' statistics are taken after training


@dataclass(frozen=True)
class ConvVAE(VAE):
    """Settings of a convolutional VAE; `image` is (channels, height, width), rows of x are its pixels.

    >>> ConvVAE.of((3, 32, 32), latent_dim=4).observed_dim
    3072
    """

    image: tuple[int, int, int] = (1, 64, 64)
    architecture: str = "sprites"

    @classmethod
    def of(cls, image: tuple[int, int, int], *, latent_dim: int, **options: object) -> ConvVAE:
        """For images of this shape."""
        pixels = image[0] * image[1] * image[2]
        return cls(observed_dim=pixels, latent_dim=latent_dim, image=image, **options)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise InputError(f"architecture must be one of {known}, got {self.architecture!r}.")
        least = 2 ** len(ARCHITECTURES[self.architecture].channels)
        if any(side % least for side in self.image[1:]):
            raise InputError(
                f"the {self.architecture} network halves images {least.bit_length() - 1} times, so their sides must be "
                f"multiples of {least}; got {self.image[1]} x {self.image[2]}."
            )

    @property
    def stacked(self) -> bool:
        return False

    @property
    def _encoders(self) -> tuple[ConvNet, ...]:  # type: ignore[override]
        architecture = ARCHITECTURES[self.architecture]
        return (encoder("encoder", self.image, self._encoder_outputs, architecture, self.auxiliary_dim),)

    @property
    def _decoder(self) -> ConvNet:  # type: ignore[override]
        return decoder("decoder", self.image, self.latent_dim, ARCHITECTURES[self.architecture])

    @torch.no_grad()
    def settle(self, params: Params, x: Float[Tensor, "N n"]) -> Mapping[str, Tensor]:
        """Weights with the statistics of batch norms over these images, so that no row depends on its batch."""
        if not ARCHITECTURES[self.architecture].norm:
            return params
        one = {name: value[0] for name, value in params.items()}
        rows = x[:CALIBRATION_ROWS].to(params["encoder.0.weight"])
        found = self._encoders[0].statistics(one, rows)
        posterior = self.encode(params, rows[None])
        latents = self.prior.to_support(posterior.mean[0])
        found |= self._decoder.statistics(one, latents)
        return {**params, **{name: value[None] for name, value in found.items()}}
