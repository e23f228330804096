"""`LatentModel`: everything that an analysis may ask of a trained model.

A member of a stack trained here is one, and `vs.adapters` makes one of any other VAE. Analyses use what is declared
here and nothing else: they never look for attributes that a model might have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Tensor

from vaescope.distributions import Normal, Prior

LogLikelihood = Callable[[Tensor, Tensor], Tensor]
"""(x, z) -> log p(x|z), a number per row."""


@runtime_checkable
class LatentModel(Protocol):
    """A trained variational autoencoder.

    A class of your own may inherit from this one: `latent_dim`, `encode` and `decode` are then enough, and everything
    else has the default given here.
    """

    @property
    def latent_dim(self) -> int:
        """d, the number of latents."""
        ...

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance (N, d) of q(z|x), or of q(z|x, auxiliary)."""
        ...

    def decode(self, z: Tensor) -> Tensor:
        """Mean of p(x|z), (N, ...): probabilities under a Bernoulli likelihood."""
        ...

    @property
    def name(self) -> str:
        """What reports call the model."""
        return "model"

    @property
    def prior(self) -> Prior:
        """The prior over latents: N(0, I) by default. With an auxiliary input see `prior_at`."""
        return Normal()

    def prior_at(self, auxiliary: object | None = None, *, like: Tensor | None = None) -> Prior:
        """p(z | auxiliary), a row per sample; the prior itself where there is no auxiliary input.

        Args:
            auxiliary: labels or rows of numbers, one per sample.
            like: a tensor whose dtype and device the result takes.
        """
        return self.prior

    @property
    def likelihood(self) -> str | None:
        """`gaussian`, `bernoulli`, or None where it is another one or not known."""
        return None

    @property
    def precision(self) -> float | None:
        """γ² = 1 / decoder variance; None where the likelihood is not Gaussian or the value is not known."""
        return None

    @property
    def log_likelihood(self) -> LogLikelihood | None:
        """(x, z) -> log p(x|z) for likelihoods that have no name here; None otherwise."""
        return None

    @property
    def beta(self) -> float:
        """What the KL was multiplied by in training."""
        return 1.0

    @property
    def has_decoder(self) -> bool:
        """Whether `decode` can be called."""
        return True

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(channels, height, width) of what is decoded, where that is an image."""
        return None

    @property
    def flattens_images(self) -> bool:
        """Whether `encode` takes images as rows of pixels, channels first."""
        return False

    @property
    def auxiliary_dim(self) -> int:
        """Columns of the auxiliary input of an identifiable VAE; 0 for a plain VAE, which takes none."""
        return 0
