"""`LatentModel` and `ModelSpec`: everything that analyses may use of a trained model.

Members of stacks trained by vaescope are latent models, and `vs.adapters` turns any other VAE into one. Analyses use
only what is declared here; they never probe a model for other attributes.
"""

from __future__ import annotations

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vaescope.core import validation
from vaescope.core.calls import Slot, named_weights, weight_slots, weights_in_place
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, Prior
from vaescope.distributions.base import PosteriorDensity, PriorDensity
from vaescope.distributions.likelihoods import LIKELIHOODS

T = TypeVar("T")
LogLikelihood = Callable[[Tensor, Tensor], Tensor]
"""(x, z) -> log p(x|z), a number per row."""
ObservationSampler = Callable[..., Tensor]
"""(z, generator) -> draws of x from p(x|z), one per row of z; of conditional models, (z, generator, auxiliary)."""


@dataclass(frozen=True, eq=False)
class ModelSpec:
    """What analyses need to know about a model besides its encoder and decoder.

    >>> ModelSpec(latent_dim=8, precision=100.0).likelihood
    'gaussian'
    """

    latent_dim: int
    """d, the number of latents."""
    name: str = "model"
    """What reports call the model."""
    prior: Prior = field(default_factory=Normal)
    """The prior over latents. With an auxiliary input see `LatentModel.prior_at`."""
    likelihood: str | None = None
    """`gaussian` (the default if there is a precision), `bernoulli`, or None where it is another one or unknown."""
    precision: float | None = None
    """γ² = 1 / decoder variance; None where the likelihood is not Gaussian or the value is unknown."""
    log_likelihood: LogLikelihood | None = None
    """(x, z) -> log p(x|z) for likelihoods that have no name here."""
    counts: bool = False
    """Whether `log_likelihood` is one of counts, which x must be."""
    sample_observations: ObservationSampler | None = None
    """(z, generator) -> draws from p(x|z), for likelihoods that have no name here; conditional: with the auxiliary."""
    beta: float = 1.0
    """The weight of the KL in training."""
    objective: str = "elbo"
    """What training maximised: `elbo` (with β), or another name such as `iwae`."""
    posterior_family: str = "diagonal"
    """`diagonal` if `encode` returns all of q(z|x); `marginals` if q has correlations that it does not return."""
    returns_variances: bool = False
    """Whether it is certain that `encode` returns variances, as with models of known libraries."""
    posterior_density: PosteriorDensity | None = None
    """q(z|x) as functions, where it is not the diagonal Gaussian that `encode` returns."""
    prior_density: PriorDensity | None = None
    """p(z) as functions, where it is not one of `vs.distributions`; `prior` then has its mean and variance."""
    has_decoder: bool = True
    """Whether `decode` can be called."""
    conditional: bool = False
    """Whether the decoder takes the auxiliary input too; it is then called through `decode_given`."""
    auxiliary_dim: int = 0
    """Columns of the auxiliary input of an identifiable or conditional VAE; 0 for a plain VAE, which takes none."""
    image_shape: tuple[int, int, int] | None = None
    """(channels, height, width) of what is decoded, where that is an image."""
    latent_shape: tuple[int, int, int] | None = None
    """(channels, height, width) of latents that form an image, as in latent diffusion models."""
    latent_groups: tuple[tuple[str, int], ...] = ()
    """Names and sizes of the layers of a hierarchical VAE, in the order of its latents."""
    latent_scaling: tuple[float, float] | tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Scaling and shift, factors or one per channel: a model of the codes is trained on (z - shift) · scaling."""
    flattens_images: bool = False
    """Whether `encode` takes images as rows of pixels, channels first."""

    def __post_init__(self) -> None:
        validation.integer("latent_dim", self.latent_dim)
        if self.likelihood is not None:
            validation.choice("likelihood (None if it is another one)", self.likelihood, LIKELIHOODS)
        if self.precision is not None:
            if self.likelihood == "bernoulli":
                raise InputError("a Bernoulli likelihood has no precision; specify only one.")
            if not isinstance(self.precision, float) or math.isfinite(self.precision):  # not that of a diverged model
                checked = validation.precision(self.precision)
                object.__setattr__(self, "precision", self.precision if isinstance(self.precision, Real) else checked)
            object.__setattr__(self, "likelihood", "gaussian")
        if not isinstance(self.beta, float) or math.isfinite(self.beta):
            validation.number("beta", self.beta, minimum=0.0)
        validation.choice("posterior_family", self.posterior_family, ("diagonal", "marginals"))
        if self.image_shape is not None:
            validation.image_shape(self.image_shape)
        if not isinstance(self.prior, Prior):
            raise InputError(f"prior must be one of vaescope's, such as vs.Normal(), got {type(self.prior).__name__}.")


class _Shortcut:
    """A field of the model's `spec`. Like any class attribute, subclasses and instances may replace it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, model: LatentModel | None, owner: type | None = None) -> object:
        if model is None:  # a dataclass with a field of this name must not take the descriptor as its default
            raise AttributeError(f"{self.name} is defined on instances only")
        return model.build_spec() if self.name == "spec" else vars(model.spec)[self.name]


def _shortcut() -> Any:  # for the type checker, these are plain attributes
    return _Shortcut()


class LatentModel(ABC):
    """A trained variational autoencoder.

    To write your own, inherit from this class, set `spec` (in `__init__` or as a class attribute), and define `encode`
    and `decode`. With `nn.Module`, list the module first: `class MyVAE(nn.Module, vs.LatentModel)`.

    >>> class Half(LatentModel):
    ...     spec = ModelSpec(latent_dim=2, precision=10.0)
    ...
    ...     def encode(self, x):
    ...         return x / 2, 0.1 + 0 * x
    ...
    ...     def decode(self, z):
    ...         return 2 * z
    >>> Half().precision
    10.0
    """

    spec: ModelSpec = _shortcut()

    @abstractmethod
    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        """Mean and variance (N, d) of q(z|x), or of q(z|x, auxiliary).

        Args:
            x: samples, a row or an image each, as a tensor.
            auxiliary: labels or rows of numbers, one per sample; None for a plain VAE.
        """

    def decode(self, z: Tensor) -> Tensor:
        """Mean of p(x|z), (N, ...): probabilities under a Bernoulli likelihood.

        Args:
            z: (N, d) latents.
        """
        raise InputError(f"{self.name} has no decoder.")

    def decode_given(self, z: Tensor, auxiliary: Tensor) -> Tensor:
        """Mean of p(x|z, auxiliary), of models that are `conditional`.

        Args:
            z: (N, d) latents.
            auxiliary: labels or rows of numbers, one per row of z.
        """
        return self.decode(z)

    def prior_at(self, auxiliary: object | None = None, *, like: Tensor | None = None) -> Prior:
        """p(z | auxiliary), a row per sample; the prior itself where there is no auxiliary input.

        Args:
            auxiliary: labels or rows of numbers, one per sample.
            like: a tensor whose dtype and device the result takes.
        """
        return self.prior

    def read_samples(self, x: object | None, auxiliary: object | None = None) -> tuple[object, object | None]:
        """Samples and auxiliary input as the user passed them -> both as vaescope can read them.

        Models of libraries with their own containers override this; so do models that know their samples.

        Args:
            x: samples in anything that holds them; None for a model that knows its samples.
            auxiliary: labels or rows of numbers, one per sample.
        """
        if x is None:
            raise InputError("samples x are needed, unless the model is posteriors alone (vs.adapters.from_arrays).")
        return x, auxiliary

    def convert_input(self, x: Tensor) -> Tensor:
        """x in the floating-point type and on the device that `encode` needs: those of the weights of a module.

        Args:
            x: samples, a row or an image each.
        """
        if not isinstance(self, nn.Module):
            return x
        return x.to(next((weights for weights in self.parameters() if weights.is_floating_point()), x))

    def trained_networks(self) -> tuple[nn.Module, ...]:
        """The modules that the model consists of; none if they cannot be seen."""
        return (self,) if isinstance(self, nn.Module) else ()

    def trained_weights(self) -> dict[str, Tensor]:
        """Weights of the networks by name; none if they cannot be seen."""
        return named_weights(self.trained_networks())

    def with_weights(self, weights: Mapping[str, Tensor]) -> LatentModel:
        """The same model with other weights; this one keeps its own.

        Args:
            weights: by the names of `trained_weights`; those that are left out stay. Gradients flow to `nn.Parameter`s.
        """
        return Reweighted(self, weights)

    def build_spec(self) -> ModelSpec:
        """The spec, for models that compute it from other attributes instead of setting it."""
        raise InputError(f"{type(self).__name__} has no spec; set self.spec = vs.ModelSpec(latent_dim=...).")

    # the fields of `spec`
    latent_dim: int = _shortcut()
    name: str = _shortcut()
    prior: Prior = _shortcut()
    likelihood: str | None = _shortcut()
    precision: float | None = _shortcut()
    log_likelihood: LogLikelihood | None = _shortcut()
    counts: bool = _shortcut()
    sample_observations: ObservationSampler | None = _shortcut()
    beta: float = _shortcut()
    objective: str = _shortcut()
    posterior_family: str = _shortcut()
    returns_variances: bool = _shortcut()
    posterior_density: PosteriorDensity | None = _shortcut()
    prior_density: PriorDensity | None = _shortcut()
    has_decoder: bool = _shortcut()
    conditional: bool = _shortcut()
    auxiliary_dim: int = _shortcut()
    image_shape: tuple[int, int, int] | None = _shortcut()
    latent_shape: tuple[int, int, int] | None = _shortcut()
    latent_groups: tuple[tuple[str, int], ...] = _shortcut()
    latent_scaling: tuple[float, float] | tuple[tuple[float, ...], tuple[float, ...]] | None = _shortcut()
    flattens_images: bool = _shortcut()


class WrappedModel(LatentModel):
    """A model with some behaviour changed by a subclass; everything else is that of `model`."""

    model: LatentModel

    def build_spec(self) -> ModelSpec:
        return self.model.spec  # not kept: β and the precision may change during training

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        return self.model.encode(x) if auxiliary is None else self.model.encode(x, auxiliary)

    def decode(self, z: Tensor) -> Tensor:
        return self.model.decode(z)

    def decode_given(self, z: Tensor, auxiliary: Tensor) -> Tensor:
        return self.model.decode_given(z, auxiliary)

    def prior_at(self, auxiliary: object | None = None, *, like: Tensor | None = None) -> Prior:
        return self.model.prior_at(auxiliary, like=like)

    def read_samples(self, x: object | None, auxiliary: object | None = None) -> tuple[object, object | None]:
        return self.model.read_samples(x, auxiliary)

    def convert_input(self, x: Tensor) -> Tensor:
        return self.model.convert_input(x)

    def trained_networks(self) -> tuple[nn.Module, ...]:
        return self.model.trained_networks()

    def trained_weights(self) -> dict[str, Tensor]:
        return self.model.trained_weights()

    def with_weights(self, weights: Mapping[str, Tensor]) -> LatentModel:
        changed = copy.copy(self)
        object.__setattr__(changed, "model", self.model.with_weights(weights))
        for name in [name for name in vars(changed) if isinstance(vars(type(self)).get(name), cached_property)]:
            del changed.__dict__[name]
        return changed


@dataclass(frozen=True, eq=False)
class Reweighted(WrappedModel):
    """A model with other weights, which are in its networks only while they compute."""

    model: LatentModel
    weights: Mapping[str, Tensor]

    def trained_weights(self) -> dict[str, Tensor]:
        return self._parameters

    def with_weights(self, weights: Mapping[str, Tensor]) -> LatentModel:
        return replace(self, weights={**self.weights, **weights})

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        return self._call(super().encode)(x, auxiliary)

    def decode(self, z: Tensor) -> Tensor:
        return self._call(super().decode, z.dtype)(z)

    def decode_given(self, z: Tensor, auxiliary: Tensor) -> Tensor:
        return self._call(super().decode_given, z.dtype)(z, auxiliary)

    def build_spec(self) -> ModelSpec:
        spec, call = self.model.spec, self._call
        prior, posterior = spec.prior_density, spec.posterior_density
        likelihood, sampler = spec.log_likelihood, spec.sample_observations
        return replace(
            spec,
            prior_density=prior and PriorDensity(call(prior.sample), call(prior.log_prob)),
            posterior_density=posterior and PosteriorDensity(call(posterior.sample), call(posterior.log_prob)),
            log_likelihood=likelihood and call(likelihood),
            sample_observations=sampler and call(sampler),
        )

    def _call(self, function: Callable[..., T], dtype: torch.dtype | None = None) -> Callable[..., T]:
        """The function with these weights; a model that is a module computes in the floating-point type given."""

        def call(*values: object, **named: object) -> T:
            converts = dtype is not None and isinstance(self.model, nn.Module)
            weights = self._in_dtype(dtype) if converts and dtype is not None else self._parameters
            with weights_in_place(self._slots, weights):
                return function(*values, **named)

        return call

    @cached_property
    def _slots(self) -> list[Slot]:
        return weight_slots(self.model.trained_networks())

    @cached_property
    def _parameters(self) -> dict[str, Tensor]:
        """Weights as parameters where the networks have parameters."""
        own = self.model.trained_weights()
        return {
            name: nn.Parameter(given, requires_grad=False)
            if isinstance(value, nn.Parameter) and not isinstance(given := self.weights.get(name, value), nn.Parameter)
            else self.weights.get(name, value)
            for name, value in own.items()
        }

    def _in_dtype(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return {
            name: value
            if value.dtype == dtype or not value.is_floating_point()
            else nn.Parameter(value.detach().to(dtype), requires_grad=False)
            if isinstance(value, nn.Parameter)
            else value.to(dtype)
            for name, value in self._parameters.items()
        }


def check_model(model: object) -> LatentModel:
    """The model, if it is one with a spec; the error says how to make one."""
    if not isinstance(model, LatentModel):
        raise InputError(
            f"expected a model, got {type(model).__name__}; pass a member of a fit, wrap functions with "
            "vs.adapters.from_callables, or inherit from vs.LatentModel."
        )
    spec: object = model.spec
    if not isinstance(spec, ModelSpec):
        raise InputError(f"spec of {type(model).__name__} must be a vs.ModelSpec, got {validation.shown(spec)}.")
    for name in (one.name for one in fields(spec)):
        own, declared = inspect.getattr_static(model, name), getattr(spec, name)
        if isinstance(own, bool | int | float | str) and own != declared:
            raise InputError(
                f"{name} of {type(model).__name__} is {validation.shown(own)}, but its spec says "
                f"{validation.shown(declared)}; set it in the spec."
            )
    return model
