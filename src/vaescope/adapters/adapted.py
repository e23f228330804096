"""A model from plain callables, from modules, or from posteriors alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vaescope.distributions import Normal, Prior, check_precision
from vaescope.distributions.likelihoods import LIKELIHOODS
from vaescope.errors import InputError

Encoder = Callable[[Tensor], tuple[Tensor, Tensor]]
Decoder = Callable[[Tensor], Tensor]
SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "variance": lambda s: s,
    "log_variance": torch.exp,
    "deviation": torch.square,
    "log_deviation": lambda s: (2 * s).exp(),
}


@dataclass(frozen=True, eq=False)
class Adapted:
    """A `LatentModel` around somebody else's networks; what is not known of it is None."""

    latent_dim: int
    encoder: Encoder
    decoder: Decoder | None = None
    precision: float | None = None
    likelihood: str | None = None
    """gaussian, bernoulli, or None where it is another one or not known."""
    prior: Prior = field(default_factory=Normal)
    name: str = "model"
    image: tuple[int, int, int] | None = None
    """(channels, height, width) of what it decodes, where that is an image."""
    beta: float = 1.0
    """What the KL was multiplied by in training, where that is known."""
    log_likelihood: Callable[[Tensor, Tensor], Tensor] | None = None
    """(x, z) -> log p(x|z) of every row, for likelihoods that have no name here."""

    def __post_init__(self) -> None:
        if self.latent_dim < 1:
            raise InputError(f"latent_dim must be at least 1, got {self.latent_dim}.")
        if self.likelihood is not None and self.likelihood not in LIKELIHOODS:
            known = ", ".join(LIKELIHOODS)
            raise InputError(
                f"likelihood must be one of {known}, or None where it is another, got {self.likelihood!r}."
            )
        if self.precision is not None:
            check_precision(self.precision)
        if not self.beta > 0:
            raise InputError(f"beta must be > 0, got {self.beta}.")

    @property
    def decodes(self) -> bool:
        """Whether there is a decoder."""
        return self.decoder is not None

    def encode(self, x: Tensor) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
        """Mean and variance of q(z|x), flattened to a row per sample."""
        found = self.encoder(x)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(f"encode must return a mean and a variance, got {type(found).__name__}.")
        mean, variance = (_rows(value, name, len(x)) for value, name in zip(found, ("mean", "variance"), strict=True))
        if mean.shape != variance.shape or mean.shape[1] != self.latent_dim:
            raise InputError(
                f"encode must return mean and variance of shape ({len(x)}, {self.latent_dim}), got "
                f"{tuple(mean.shape)} and {tuple(variance.shape)}."
            )
        return mean, variance

    def decode(self, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
        """Mean of p(x|z), flattened to a row per sample."""
        if self.decoder is None:
            raise InputError("this model was given without a decoder.")
        return _rows(self.decoder(z), "decode's output", len(z))


def _rows(value: Any, name: str, count: int) -> Tensor:
    if not isinstance(value, Tensor) or value.ndim < 1 or len(value) != count:
        shape = tuple(value.shape) if hasattr(value, "shape") else type(value).__name__
        raise InputError(f"{name} must be a tensor with a row for each of {count} samples, got {shape}.")
    return value.flatten(1) if value.ndim > 1 else value.unsqueeze(1)


@dataclass(frozen=True, eq=False)
class Arrays:
    """Posteriors alone: what can be said of a model without its networks."""

    mean: Float[Tensor, "N d"]
    variance: Float[Tensor, "N d"]
    prior: Prior = field(default_factory=Normal)
    name: str = "posteriors"
    precision: None = None
    likelihood: None = None
    image: None = None

    @property
    def latent_dim(self) -> int:
        return self.mean.shape[1]

    @property
    def decodes(self) -> bool:
        return False

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The posteriors of all samples: x may be anything with as many rows."""
        if len(x) != len(self.mean):
            raise InputError(f"these are the posteriors of {len(self.mean)} samples, got {len(x)}; give all of them.")
        return self.mean, self.variance

    def decode(self, z: Tensor) -> Tensor:
        raise InputError("posteriors alone have no decoder.")


def from_callables(
    *,
    encode: Encoder,
    decode: Decoder | None = None,
    latent_dim: int,
    precision: float | None = None,
    likelihood: str | None = None,
    prior: Prior | None = None,
    name: str = "model",
    image: tuple[int, int, int] | None = None,
    beta: float = 1.0,
    log_likelihood: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Adapted:
    """A model from functions: `encode(x)` gives mean and variance, `decode(z)` the mean of p(x|z).

    With a `precision` (1 / decoder variance) the likelihood is Gaussian unless you say otherwise; another one than
    gaussian or bernoulli is given as `log_likelihood(x, z)`, a number per row. `beta` is what the KL was multiplied by.

    >>> from_callables(encode=lambda x: (x, 0.1 + 0 * x), decode=lambda z: z, latent_dim=2).encode(torch.ones(3, 2))[1]
    tensor([[0.1000, 0.1000],
            [0.1000, 0.1000],
            [0.1000, 0.1000]])
    """
    known = "gaussian" if likelihood is None and precision is not None else likelihood
    decode = any_precision(decode) if isinstance(decode, nn.Module) else decode
    return Adapted(
        latent_dim,
        encode,
        decode,
        precision,
        known,
        Normal() if prior is None else prior,
        name,
        image,
        beta,
        log_likelihood,
    )


def any_precision(network: nn.Module) -> Decoder:
    """The network as a function that computes in float64 where it is given float64, by a copy of itself."""
    copies: dict[torch.dtype, nn.Module] = {}

    def call(z: Tensor) -> Tensor:
        if z.dtype not in copies:
            kinds = {p.dtype for p in network.parameters() if p.is_floating_point()}
            copies[z.dtype] = network if kinds <= {z.dtype} else copy.deepcopy(network).to(z.dtype)
        out: Tensor = copies[z.dtype](z)
        return out

    return call


def from_modules(
    encoder: nn.Module,
    decoder: nn.Module | None = None,
    *,
    latent_dim: int,
    scale: str = "log_variance",
    **known: Any,
) -> Adapted:
    """A model from an encoder and a decoder module, in evaluation mode.

    The encoder returns two tensors, or one with both halves along its last axis: means, then what `scale` says
    (log_variance, variance, deviation or log_deviation). A Lightning module is a module: give its `encoder` and
    `decoder`, or its methods to `from_callables`. `known` is what `from_callables` takes.
    """
    if scale not in SCALES:
        raise InputError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}.")
    networks = [network for network in (encoder, decoder) if network is not None]
    for network in networks:
        network.eval()

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        found = encoder(x)
        if isinstance(found, Tensor):
            if found.shape[-1] != 2 * latent_dim:
                raise InputError(
                    f"an encoder with one output needs {2 * latent_dim} columns, means then scales, got "
                    f"{tuple(found.shape)}."
                )
            found = found.split(latent_dim, dim=-1)
        if not isinstance(found, tuple | list) or len(found) < 2:
            raise InputError("the encoder must return means and scales; use from_callables to say which is which.")
        return found[0], SCALES[scale](found[1])

    return from_callables(encode=encode, decode=decoder, latent_dim=latent_dim, **known)


def from_arrays(mean: Any, variance: Any, *, prior: Prior | None = None, name: str = "posteriors") -> Arrays:
    """Posteriors of all samples, (N, d) each, from arrays or tensors: no decoder, so no analysis that needs one."""
    centre, spread = (torch.as_tensor(value).detach() for value in (mean, variance))
    if centre.ndim != 2 or centre.shape != spread.shape or 0 in centre.shape:
        raise InputError(f"mean and variance must be (N, d), got {tuple(centre.shape)} and {tuple(spread.shape)}.")
    return Arrays(centre.float(), spread.float(), Normal() if prior is None else prior, name)
