"""A model from functions or from modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vaescope import validation
from vaescope.adapters.networks import any_dtype, call_user_function, dtype_and_device, evaluation_mode, networks_behind
from vaescope.distributions import Normal, Prior
from vaescope.distributions.likelihoods import LIKELIHOODS
from vaescope.errors import InputError
from vaescope.protocol import LatentModel, LogLikelihood, ObservationSampler

Encoder = Callable[[Tensor], tuple[Tensor, Tensor]]
Decoder = Callable[[Tensor], Tensor]
POSTERIOR_FAMILIES = ("diagonal", "marginals")
SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "variance": lambda s: s,
    "log_variance": torch.exp,
    "deviation": torch.square,
    "log_deviation": lambda s: (2 * s).exp(),
}


@dataclass(frozen=True, eq=False)
class Adapted(LatentModel):
    """A `LatentModel` around networks from elsewhere; unknown properties are None."""

    latent_dim: int
    encoder: Encoder
    decoder: Decoder | None = None
    precision: float | None = None
    likelihood: str | None = None
    prior: Prior = field(default_factory=Normal)
    name: str = "model"
    image_shape: tuple[int, int, int] | None = None
    beta: float = 1.0
    log_likelihood: LogLikelihood | None = None
    objective: str = "elbo"
    posterior_family: str = "diagonal"
    networks: tuple[nn.Module, ...] = ()
    """Called in evaluation mode; inputs are converted to their floating-point type and device."""
    sample_observations: ObservationSampler | None = None

    def __post_init__(self) -> None:
        validation.whole_number("latent_dim", self.latent_dim)
        if not callable(self.encoder) or not (self.decoder is None or callable(self.decoder)):
            raise InputError("encode and decode must be functions.")
        if self.likelihood is not None:
            validation.choice("likelihood (None if it is another one)", self.likelihood, LIKELIHOODS)
        if self.precision is not None:
            validation.precision(self.precision)
            if self.likelihood == "bernoulli":
                raise InputError("a Bernoulli likelihood has no precision; specify only one.")
        validation.number("beta", self.beta, above=0.0)
        validation.choice("posterior_family", self.posterior_family, POSTERIOR_FAMILIES)
        if self.image_shape is not None:
            validation.image_shape(self.image_shape)
        if not isinstance(self.prior, Prior):
            raise InputError(f"prior must be one of vaescope's, such as vs.Normal(), got {type(self.prior).__name__}.")

    @property
    def has_decoder(self) -> bool:
        return self.decoder is not None

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
        """Mean and variance of q(z|x), flattened to a row per sample."""
        if auxiliary is not None:
            raise InputError("this model takes no auxiliary input; omit auxiliary.")
        with evaluation_mode(self.networks):
            found: object = self._call_encoder(x)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(f"encode must return a mean and a variance, got {_described(found)}.")
        mean, variance = (_rows(value, name, len(x)) for value, name in zip(found, ("mean", "variance"), strict=True))
        if mean.shape != variance.shape or mean.shape[1] != self.latent_dim:
            raise InputError(
                f"encode must return mean and variance of shape ({len(x)}, {self.latent_dim}), got "
                f"{tuple(mean.shape)} and {tuple(variance.shape)}."
            )
        return mean, variance

    def _call_encoder(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = dtype_and_device(self.networks)
        if weights is not None:
            return call_user_function("encode", self.encoder, x.to(dtype=weights[0], device=weights[1]))
        try:
            return call_user_function("encode", self.encoder, x)
        except InputError as error:
            if x.dtype == torch.float32 or "dtype" not in str(error):
                raise
            return call_user_function("encode", self.encoder, x.float())  # a function may hide float32 networks

    def decode(self, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
        """Mean of p(x|z), flattened to a row per sample."""
        if self.decoder is None:
            raise InputError("this model has no decoder.")
        weights = dtype_and_device(self.networks)
        with evaluation_mode(self.networks):
            found: object = call_user_function("decode", self.decoder, z if weights is None else z.to(weights[1]))
        if isinstance(found, tuple | list | dict):
            raise InputError(
                f"decode must return one tensor, the mean of p(x|z), got {_described(found)}; "
                "write decode=lambda z: decoder(z)[0] with the index of the mean."
            )
        return _rows(found, "decode's output", len(z))


def _described(found: object) -> str:
    """What a user's function returned, with the line to write instead if it is several tensors."""
    if isinstance(found, dict):
        return f"a dictionary with {', '.join(map(str, list(found)[:5]))}"
    if isinstance(found, tuple | list):
        shapes = ", ".join(str(tuple(v.shape)) if isinstance(v, Tensor) else type(v).__name__ for v in found[:5])
        hint = "; if it is (z, mean, log_variance), write encode=lambda x: (out := encoder(x))[1:2] + (out[2].exp(),)"
        return f"{len(found)} values ({shapes})" + hint * (len(found) == 3)
    return type(found).__name__


def _rows(value: object, name: str, count: int) -> Tensor:
    if not isinstance(value, Tensor) or value.ndim < 1 or len(value) != count:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(f"{name} must be a tensor with a row for each of {count} samples, got {shape}.")
    return (value.flatten(1) if value.ndim > 1 else value.unsqueeze(1)).cpu()


def from_callables(
    *,
    encode: Encoder,
    decode: Decoder | None = None,
    latent_dim: int,
    precision: float | None = None,
    likelihood: str | None = None,
    prior: Prior | None = None,
    name: str = "model",
    image_shape: tuple[int, int, int] | None = None,
    beta: float = 1.0,
    log_likelihood: LogLikelihood | None = None,
    objective: str = "elbo",
    posterior_family: str = "diagonal",
    networks: Sequence[nn.Module] | None = None,
    sample_observations: ObservationSampler | None = None,
) -> Adapted:
    """A model from functions.

    Args:
        encode: x -> mean and variance of q(z|x).
        decode: z -> mean of p(x|z); probabilities under a Bernoulli likelihood.
        latent_dim: number of latents.
        precision: γ² = 1 / decoder variance of a Gaussian likelihood.
        likelihood: `gaussian` (the default if there is a precision) or `bernoulli`.
        prior: N(0, I) by default.
        name: what reports call the model.
        image_shape: (channels, height, width) of decoded images.
        beta: the weight of the KL in training.
        log_likelihood: (x, z) -> log p(x|z), one number per row, for any other likelihood.
        objective: what training maximised; name it if it is not the ELBO, such as `iwae`.
        posterior_family: `marginals` if q(z|x) has a full covariance or is a flow, and `encode` returns its marginals.
        networks: modules to call in evaluation mode; by default those that the functions are, belong to or refer to.
        sample_observations: (z, generator) -> draws from p(x|z), which `vs.certify` needs for any other likelihood.

    >>> from_callables(encode=lambda x: (x, 0.1 + 0 * x), decode=lambda z: z, latent_dim=2).encode(torch.ones(3, 2))[1]
    tensor([[0.1000, 0.1000],
            [0.1000, 0.1000],
            [0.1000, 0.1000]])
    """
    return Adapted(
        latent_dim,
        encode,
        any_dtype(decode) if isinstance(decode, nn.Module) else decode,
        precision,
        "gaussian" if likelihood is None and precision is not None else likelihood,
        Normal() if prior is None else prior,
        name,
        image_shape,
        beta,
        log_likelihood,
        objective,
        posterior_family,
        networks_behind(encode, decode, log_likelihood) if networks is None else tuple(networks),
        sample_observations,
    )


def from_modules(
    encoder: nn.Module,
    decoder: nn.Module | None = None,
    *,
    latent_dim: int,
    scale: str = "log_variance",
    **known: Any,
) -> Adapted:
    """A model from an encoder and a decoder module, which are called in evaluation mode.

    For a Lightning module, pass its `encoder` and `decoder`, or pass its methods to `from_callables`.

    Args:
        encoder: returns two tensors, or one with both halves along its last axis: means, then scales.
        decoder: returns the mean of p(x|z).
        latent_dim: number of latents.
        scale: what the encoder's second output is: `log_variance`, `variance`, `deviation` or `log_deviation`.
        known: further arguments of `from_callables`.
    """
    validation.choice("scale", scale, SCALES)
    validation.whole_number("latent_dim", latent_dim)

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        found = encoder(x)
        if isinstance(found, Tensor):
            if found.shape[-1] != 2 * latent_dim:
                raise InputError(
                    f"an encoder with one output needs {2 * latent_dim} columns, means then scales, got "
                    f"{tuple(found.shape)}."
                )
            found = found.split(latent_dim, dim=-1)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(
                f"the encoder must return means and scales, got {_described(found)}; otherwise use from_callables."
            )
        return found[0], SCALES[scale](found[1])

    networks = [network for network in (encoder, decoder) if network is not None]
    return from_callables(encode=encode, decode=decoder, latent_dim=latent_dim, networks=networks, **known)
