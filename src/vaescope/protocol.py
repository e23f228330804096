"""The waist: what an analysis may ask of a model, and nothing more.

Anything with these members can be analysed: a member of a stack trained here, or a foreign model
behind an adapter. This file imports no other room of the package.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class LatentModel(Protocol):
    """A trained variational autoencoder, seen from outside."""

    @property
    def latent_dim(self) -> int:
        """d, the number of latents."""
        ...

    @property
    def prior(self) -> Any:
        """The prior over latents: one of `vaescope.distributions`."""
        ...

    @property
    def precision(self) -> float | None:
        """γ², 1 / decoder variance; None when the likelihood is not Gaussian or not known."""
        ...

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (N, d) of q(z|x)."""
        ...

    def decode(self, z: Tensor) -> Tensor:
        """Mean of p(x|z), (N, n)."""
        ...
