"""`LatentModel`: everything that analyses may use of a trained model.

Members of stacks trained by vaescope are latent models, and `vs.adapters` turns any other VAE into one. Analyses use
only what is declared here; they never probe a model for other attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from torch import Generator, Tensor

from vaescope.core.checks import whole_number
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, Prior
from vaescope.distributions.base import PosteriorDensity, PriorDensity

LogLikelihood = Callable[[Tensor, Tensor], Tensor]
"""(x, z) -> log p(x|z), a number per row."""
ObservationSampler = Callable[[Tensor, Generator], Tensor]
"""(z, generator) -> draws of x from p(x|z), one per row of z."""


@runtime_checkable
class LatentModel(Protocol):
    """A trained variational autoencoder.

    To write your own, inherit from this class and define `latent_dim`, `encode` and `decode`. Everything else has the
    default given here; override it with a class attribute, by assignment in `__init__`, or with a property.
    With `nn.Module`, list the module first: `class MyVAE(nn.Module, vs.LatentModel)`.
    """

    @property
    def latent_dim(self) -> int:
        """d, the number of latents."""
        ...

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance (N, d) of q(z|x), or of q(z|x, auxiliary).

        Args:
            x: samples, a row or an image each, as a tensor.
            auxiliary: labels or rows of numbers, one per sample; None for a plain VAE.
        """
        ...

    def decode(self, z: Tensor) -> Tensor:
        """Mean of p(x|z), (N, ...): probabilities under a Bernoulli likelihood.

        Args:
            z: (N, d) latents.
        """
        ...

    def decode_given(self, z: Tensor, auxiliary: Tensor) -> Tensor:
        """Mean of p(x|z, auxiliary), of models that are `conditional`.

        Args:
            z: (N, d) latents.
            auxiliary: labels or rows of numbers, one per row of z.
        """
        return self.decode(z)

    @property
    def conditional(self) -> bool:
        """Whether the decoder takes the auxiliary input too; it is then called through `decode_given`."""
        return False

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
    def sample_observations(self) -> ObservationSampler | None:
        """(z, generator) -> draws from p(x|z), for likelihoods that have no name here; None otherwise."""
        return None

    @property
    def beta(self) -> float:
        """What the KL was multiplied by in training."""
        return 1.0

    @property
    def objective(self) -> str:
        """What training maximised: `elbo` (with β), or another name such as `iwae`."""
        return "elbo"

    @property
    def posterior_family(self) -> str:
        """`diagonal` if `encode` returns all of q(z|x); `marginals` if q has correlations that it does not return."""
        return "diagonal"

    @property
    def returns_variances(self) -> bool:
        """Whether it is certain that `encode` returns variances, as with models of known libraries."""
        return False

    @property
    def posterior_density(self) -> PosteriorDensity | None:
        """q(z|x) as functions, where it is not the diagonal Gaussian that `encode` returns."""
        return None

    @property
    def prior_density(self) -> PriorDensity | None:
        """p(z) as functions, where it is not one of `vs.distributions`; `prior` then has its mean and variance."""
        return None

    @property
    def has_decoder(self) -> bool:
        """Whether `decode` can be called."""
        return True

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(channels, height, width) of what is decoded, where that is an image."""
        return None

    @property
    def latent_shape(self) -> tuple[int, int, int] | None:
        """(channels, height, width) of latents that form an image, as in latent diffusion models."""
        return None

    @property
    def latent_groups(self) -> tuple[tuple[str, int], ...]:
        """Names and sizes of the layers of a hierarchical VAE, in the order of its latents."""
        return ()

    @property
    def latent_scaling(self) -> tuple[float, float] | None:
        """Scaling and shift factor: a model of the codes is trained on (z - shift) · scaling."""
        return None

    @property
    def flattens_images(self) -> bool:
        """Whether `encode` takes images as rows of pixels, channels first."""
        return False

    @property
    def auxiliary_dim(self) -> int:
        """Columns of the auxiliary input of an identifiable or conditional VAE; 0 for a plain VAE, which takes none."""
        return 0


class _Default:
    """A default value that subclasses and instances replace by plain assignment, which a property does not allow."""

    def __init__(self, default: Callable[[object], object], name: str) -> None:
        self._default, self._name, self.__doc__ = default, name, default.__doc__

    def __get__(self, instance: object, owner: type | None = None) -> object:
        if instance is None:  # a dataclass that declares a field of this name must not take the descriptor as default
            raise AttributeError(f"{self._name} is defined on instances only")
        return self._default(instance)


for _name, _value in list(vars(LatentModel).items()):
    if isinstance(_value, property) and _value.fget is not None:
        setattr(LatentModel, _name, _Default(_value.fget, _name))


class WrappedModel(LatentModel):
    """A model with some behaviour changed by a subclass; everything else is that of `model`."""

    model: LatentModel

    @property
    def latent_dim(self) -> int:
        return self.model.latent_dim

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        return self.model.encode(x) if auxiliary is None else self.model.encode(x, auxiliary)

    def decode(self, z: Tensor) -> Tensor:
        return self.model.decode(z)

    def decode_given(self, z: Tensor, auxiliary: Tensor) -> Tensor:
        return self.model.decode_given(z, auxiliary)

    @property
    def conditional(self) -> bool:
        return self.model.conditional

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def prior(self) -> Prior:
        return self.model.prior

    def prior_at(self, auxiliary: object | None = None, *, like: Tensor | None = None) -> Prior:
        return self.model.prior_at(auxiliary, like=like)

    @property
    def likelihood(self) -> str | None:
        return self.model.likelihood

    @property
    def precision(self) -> float | None:
        return self.model.precision

    @property
    def log_likelihood(self) -> LogLikelihood | None:
        return self.model.log_likelihood

    @property
    def sample_observations(self) -> ObservationSampler | None:
        return self.model.sample_observations

    @property
    def beta(self) -> float:
        return self.model.beta

    @property
    def objective(self) -> str:
        return self.model.objective

    @property
    def posterior_family(self) -> str:
        return self.model.posterior_family

    @property
    def returns_variances(self) -> bool:
        return self.model.returns_variances

    @property
    def posterior_density(self) -> PosteriorDensity | None:
        return self.model.posterior_density

    @property
    def prior_density(self) -> PriorDensity | None:
        return self.model.prior_density

    @property
    def has_decoder(self) -> bool:
        return self.model.has_decoder

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        return self.model.image_shape

    @property
    def latent_shape(self) -> tuple[int, int, int] | None:
        return self.model.latent_shape

    @property
    def latent_groups(self) -> tuple[tuple[str, int], ...]:
        return self.model.latent_groups

    @property
    def latent_scaling(self) -> tuple[float, float] | None:
        return self.model.latent_scaling

    @property
    def flattens_images(self) -> bool:
        return self.model.flattens_images

    @property
    def auxiliary_dim(self) -> int:
        return self.model.auxiliary_dim


def check_model(model: object) -> LatentModel:
    """The model, if it is one; the error says how to make one."""
    if not isinstance(model, LatentModel):
        raise InputError(
            f"expected a model, got {type(model).__name__}; pass a member of a fit, wrap functions with "
            "vs.adapters.from_callables, or inherit from vs.LatentModel."
        )
    whole_number("latent_dim", model.latent_dim)
    return model
