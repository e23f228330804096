"""A model from functions or from modules."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as known_fields
from typing import Any, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vaescope.core import randomness, validation
from vaescope.core.calls import (
    any_dtype,
    call_user_function,
    call_with_tokens,
    dtype_and_device,
    evaluation_mode,
    networks_behind,
    required_arguments,
)
from vaescope.core.errors import AmbiguousOutputError, InputError
from vaescope.distributions import Normal, Prior
from vaescope.distributions.base import PosteriorDensity, PriorDensity
from vaescope.protocol import LatentModel, ModelSpec

F = TypeVar("F", bound=Callable[..., object])
Encoder = Callable[..., tuple[Tensor, Tensor]]
"""x, or x and the auxiliary input -> mean and variance."""
Decoder = Callable[..., Tensor]
"""z, or z and the auxiliary input -> mean of x."""
Reader = Callable[[object, object | None], tuple[object, object | None]]
"""Samples and auxiliary input as users pass them -> both as arrays."""


SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "variance": lambda s: s,
    "log_variance": torch.exp,
    "deviation": torch.square,
    "log_deviation": lambda s: (2 * s).exp(),
}
"""What an encoder may return besides means, and how it becomes a variance."""


@dataclass(frozen=True, eq=False)
class Adapted(LatentModel):
    """A `LatentModel` around networks from elsewhere."""

    spec: ModelSpec
    encoder: Encoder
    decoder: Decoder | None = None
    networks: tuple[nn.Module, ...] = ()
    """Called in evaluation mode; inputs are converted to their floating-point type and device."""
    reader: Reader | None = None
    """Reads samples of the model's own library, with their auxiliary input."""
    encodes_auxiliary: bool = False
    """Whether the encoder takes the auxiliary input, as in a conditional VAE."""

    def __post_init__(self) -> None:
        if not callable(self.encoder) or not (self.decoder is None or callable(self.decoder)):
            raise InputError("encode and decode must be functions.")
        if self.spec.precision is not None:
            validation.precision(self.spec.precision)
        validation.number("beta", self.spec.beta, above=0.0)
        takes_auxiliary = self.encodes_auxiliary or self.spec.conditional
        spec = replace(self.spec, has_decoder=self.decoder is not None, auxiliary_dim=int(takes_auxiliary))
        object.__setattr__(self, "spec", spec)

    def read_samples(self, x: object | None, auxiliary: object | None = None) -> tuple[object, object | None]:
        x, auxiliary = super().read_samples(x, auxiliary)
        return (x, auxiliary) if self.reader is None else self.reader(x, auxiliary)

    def trained_networks(self) -> tuple[nn.Module, ...]:
        return self.networks

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
        """Mean and variance of q(z|x), or q(z|x, auxiliary), flattened to a row per sample."""
        given = self._given(auxiliary, len(x))
        with evaluation_mode(self.networks):
            found: object = self._call_encoder(x, *given)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(f"encode must return a mean and a variance, got {_described(found)}.")
        mean, variance = (_rows(value, name, len(x)) for value, name in zip(found, ("mean", "variance"), strict=True))
        if mean.shape != variance.shape or mean.shape[1] != self.latent_dim:
            raise InputError(
                f"encode must return mean and variance of shape ({len(x)}, {self.latent_dim}), got "
                f"{tuple(mean.shape)} and {tuple(variance.shape)}."
            )
        return mean, variance

    def _given(self, auxiliary: object | None, count: int) -> list[Tensor]:
        """The auxiliary input, if the encoder takes it, as integers or in the floating-point type of the networks."""
        if auxiliary is not None and not self.auxiliary_dim:
            raise InputError("this model takes no auxiliary input; omit auxiliary.")
        if auxiliary is None and self.auxiliary_dim:
            raise InputError("this model is conditional: pass auxiliary=, a label or a row of numbers per sample.")
        return [self._labels(auxiliary, count)] if self.encodes_auxiliary else []

    def _labels(self, auxiliary: object, count: int) -> Tensor:
        given = auxiliary if isinstance(auxiliary, Tensor) else validation.array(auxiliary, "auxiliary")
        labels = torch.as_tensor(given)
        validation.same_rows({"x": count, "auxiliary": len(labels)})
        dtype, device = dtype_and_device(self.networks) or (torch.get_default_dtype(), labels.device)
        return labels.to(device, dtype if labels.is_floating_point() else torch.long)

    def _call_encoder(self, x: Tensor, *given: Tensor) -> object:
        weights = dtype_and_device(self.networks)
        if weights is not None:
            return call_with_tokens("encode", self.encoder, x.to(dtype=weights[0], device=weights[1]), *given)
        try:
            return call_with_tokens("encode", self.encoder, x, *given)
        except InputError as error:
            if x.dtype == torch.float32 or "dtype" not in str(error):
                raise
            return call_user_function("encode", self.encoder, x.float(), *given)  # a function may hide float32 networks

    def decode(self, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
        """Mean of p(x|z), flattened to a row per sample."""
        if self.conditional:
            raise InputError("this decoder is conditional: call decode_given(z, auxiliary).")
        return self._decoded(z)

    def decode_given(self, z: Float[Tensor, "N d"], auxiliary: Tensor) -> Float[Tensor, "N n"]:
        """Mean of p(x|z, auxiliary), flattened to a row per sample."""
        return self._decoded(z, self._labels(auxiliary, len(z)))

    def _decoded(self, z: Float[Tensor, "N d"], *given: Tensor) -> Float[Tensor, "N n"]:
        if self.decoder is None:
            raise InputError("this model has no decoder.")
        weights = dtype_and_device(self.networks)
        with evaluation_mode(self.networks):
            found: object = call_user_function(
                "decode", self.decoder, z if weights is None else z.to(weights[1]), *given
            )
        if isinstance(found, tuple | list | dict):
            raise AmbiguousOutputError(
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
    if not value.is_floating_point():
        if value.is_complex():
            raise InputError(f"{name} must be real numbers, got {value.dtype}; return its real part or its modulus.")
        value = value.to(torch.get_default_dtype())
    return (value.flatten(1) if value.ndim > 1 else value.unsqueeze(1)).cpu()


def _density_rows(found: object, count: int, name: str) -> Tensor:
    if not isinstance(found, Tensor) or found.ndim < 2 or len(found) != count:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"{name} must return one draw of z per row, ({count}, d), got {shape}.")
    return found.detach().flatten(1).cpu()


def _log_densities(found: object, count: int, name: str) -> Tensor:
    if not isinstance(found, Tensor) or found.shape != (count,):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"{name} must return a number per row, ({count},), got {shape}; sum over latents.")
    return found.detach().cpu()


def _posterior_density(
    sample: Callable[[Tensor], Tensor] | None, log_q: Callable[[Tensor, Tensor], Tensor] | None
) -> PosteriorDensity | None:
    """A posterior from both of its functions; None without either."""
    if sample is None and log_q is None:
        return None
    if sample is None or log_q is None:
        raise InputError("a posterior needs both: sample=lambda x: z and log_q=lambda z, x: log q(z|x).")
    return PosteriorDensity(
        lambda x: _density_rows(call_user_function("sample", sample, x), len(x), "sample"),
        lambda z, x: _log_densities(call_user_function("log_q", log_q, z, x), len(z), "log_q"),
    )


def _prior_density(
    sample_prior: Callable[[int], Tensor] | None, log_prior: Callable[[Tensor], Tensor] | None
) -> PriorDensity | None:
    """A prior from both of its functions; None without either."""
    if sample_prior is None and log_prior is None:
        return None
    if sample_prior is None or log_prior is None:
        raise InputError("a prior needs both: sample_prior=lambda count: z and log_prior=lambda z: log p(z).")
    return PriorDensity(
        lambda count: _density_rows(sample_prior(count), count, "sample_prior"),
        lambda z: _log_densities(call_user_function("log_prior", log_prior, z), len(z), "log_prior"),
    )


def _moments(posterior: PosteriorDensity, draws_per_sample: int = 64) -> Encoder:
    """Means and variances of a posterior, from draws."""

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), randomness.seeded("moments"):
            draws = torch.stack([posterior.sample(x) for _ in range(draws_per_sample)])
        return draws.mean(0), draws.var(0)

    return encode


class _AnyArrays:
    """A user's function of tensors, of NumPy arrays or of JAX arrays, as a function of tensors.

    Which it is shows at its first call. Tensors come first, so that functions of tensors are called once.
    """

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        self.name, self.function = name, function
        self._adapted: Callable[..., object] | None = None

    def __call__(self, *values: Tensor) -> object:
        try:
            return self._first_call(*values) if self._adapted is None else self._adapted(*values)
        except RuntimeError as error:
            if not re.search(r"call numpy\(\)|access data pointer", str(error)):  # PyTorch's messages
                raise
        raise InputError(f"{self.name} computes in NumPy, which has no gradients; in JAX it has them") from None

    def _first_call(self, *values: Tensor) -> object:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "__array_wrap__", DeprecationWarning)  # NumPy called with tensors
                found = self.function(*values)
        except Exception:
            try:
                found = self.function(*(value.cpu().numpy() for value in values))
            except Exception:
                found = None
            if not _libraries(found) & {"numpy", "jax", "jaxlib"}:
                raise
        libraries = _libraries(found)
        if libraries & {"jax", "jaxlib"}:
            from vaescope.adapters.bridge import on_jax

            self._adapted = on_jax(self.function)
        elif "numpy" in libraries:
            self._adapted = self._numpy
        else:
            self._adapted = self.function if "torch" in libraries else None
            return found
        return self._adapted(*values)

    def _numpy(self, *values: Tensor) -> object:
        found = self.function(*(value.cpu().numpy() for value in values))
        if isinstance(found, tuple | list):
            return tuple(torch.as_tensor(np.asarray(value)) for value in found)
        return torch.as_tensor(np.asarray(found))


def _libraries(found: object) -> set[str]:
    """Packages of the arrays that a function returned."""
    parts = found if isinstance(found, tuple | list) else [found]
    return {"torch" if isinstance(v, Tensor) else type(v).__module__.partition(".")[0] for v in parts}


def from_callables(
    *,
    encode: Encoder | None = None,
    decode: Decoder | None = None,
    spec: ModelSpec | None = None,
    latent_dim: int | None = None,
    precision: float | None = None,
    likelihood: str | None = None,
    prior: Prior | None = None,
    sample: Callable[[Tensor], Tensor] | None = None,
    log_q: Callable[[Tensor, Tensor], Tensor] | None = None,
    sample_prior: Callable[[int], Tensor] | None = None,
    log_prior: Callable[[Tensor], Tensor] | None = None,
    networks: Sequence[nn.Module] | None = None,
    **fields: Any,
) -> Adapted:
    """A model from functions, and from a `ModelSpec` or the fields of one.

    Functions take and return tensors, NumPy arrays or JAX arrays. Analyses that need gradients are skipped for NumPy;
    `from_jax` also takes parameters.

    Args:
        encode: x -> mean and variance of q(z|x). Of a conditional VAE: (x, y) -> the same; pass y as `auxiliary=`.
        decode: z, or (z, y) -> mean of p(x|z); probabilities under a Bernoulli likelihood.
        spec: what is known of the model; or pass its fields, of which `latent_dim` is required.
        latent_dim: number of latents.
        precision: γ² = 1 / decoder variance of a Gaussian likelihood.
        likelihood: `gaussian` (the default if there is a precision) or `bernoulli`.
        prior: N(0, I) by default.
        sample: x -> one draw of z ~ q(z|x) per row, for posteriors that are not diagonal Gaussians (full covariances,
            flows, mixtures), with `log_q`. `encode` may then be omitted.
        log_q: (z, x) -> log q(z|x), a number per row.
        sample_prior: count -> draws from a prior that is not one of vaescope's (a mixture, a VampPrior), with
            `log_prior`.
        log_prior: z -> log p(z), a number per row.
        networks: modules to call in evaluation mode; by default those that the functions are, belong to or refer to.
        fields: further fields of `vs.ModelSpec`: name, image_shape, beta, objective, posterior_family and others.
            `log_likelihood` may be (x, z, y) -> log p(x|z) of a conditional VAE; x are integers if it needs integers,
            such as tokens. `vs.certify` needs `sample_observations` for likelihoods without a name.

    >>> from_callables(encode=lambda x: (x, 0.1 + 0 * x), decode=lambda z: z, latent_dim=2).encode(torch.ones(3, 2))[1]
    tensor([[0.1000, 0.1000],
            [0.1000, 0.1000],
            [0.1000, 0.1000]])
    """
    possible = [field.name for field in known_fields(ModelSpec)]
    if unknown := [name for name in fields if name not in possible]:
        raise InputError(f"from_callables has no keyword {unknown[0]!r}; of a model it takes {', '.join(possible)}.")
    posterior, density = _posterior_density(sample, log_q), _prior_density(sample_prior, log_prior)
    if posterior is not None:
        fields |= {"posterior_density": posterior, "posterior_family": "marginals"}
        encode = encode or _moments(posterior)
    if encode is None:
        raise InputError("encode is required, x -> mean and variance; or pass sample= and log_q=.")
    named = {"latent_dim": latent_dim, "precision": precision, "likelihood": likelihood, "prior": prior}
    fields |= {name: value for name, value in named.items() if value is not None}
    if spec is None:
        if latent_dim is None:
            raise InputError(
                "latent_dim is required, the number of latents; or pass spec=vs.ModelSpec(latent_dim=...)."
            )
        spec = ModelSpec(**fields)
    elif {*fields} - {"posterior_density", "posterior_family"}:
        raise InputError(f"{', '.join(fields)} and spec= are given; write spec=dataclasses.replace(spec, ...).")
    else:
        spec = replace(spec, **fields)
    if density is not None:
        if prior is not None:
            raise InputError("prior= and log_prior= are two priors; specify only one.")
        # the normal prior with the mean and variance of each latent
        with torch.no_grad(), randomness.seeded("prior moments"):
            z = density.sample(4096).double()
        if z.shape[1] != spec.latent_dim:
            raise InputError(f"sample_prior must return draws of {spec.latent_dim} latents, got {z.shape[1]}.")
        spec = replace(spec, prior=Normal(z.mean(0), z.var(0)), prior_density=density)
    functions = (encode, decode, spec.log_likelihood, sample, log_q, sample_prior, log_prior)
    return Adapted(
        replace(
            spec,
            conditional=decode is not None and required_arguments(decode) > 1,
            log_likelihood=None if spec.log_likelihood is None else _any_arrays("log_likelihood", spec.log_likelihood),
        ),
        _any_arrays("encode", encode),
        any_dtype(decode)
        if isinstance(decode, nn.Module)
        else None
        if decode is None
        else _any_arrays("decode", decode),
        networks_behind(*functions) if networks is None else tuple(networks),
        encodes_auxiliary=required_arguments(encode) > 1,
    )


def _any_arrays(name: str, function: F) -> F:
    """The function itself if it takes tensors, as modules do, or is no function, which is refused later."""
    if isinstance(function, nn.Module) or not callable(function):
        return function
    return cast(F, _AnyArrays(name, function))


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
    validation.integer("latent_dim", latent_dim)

    def encode(x: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        found = encoder(x, *given)
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
    made = from_callables(encode=encode, decode=decoder, latent_dim=latent_dim, networks=networks, **known)
    return replace(made, encodes_auxiliary=required_arguments(encoder) > 1)
