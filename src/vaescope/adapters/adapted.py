"""A model from plain callables, from modules, or from posteriors alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vaescope import validation
from vaescope.adapters.networks import any_precision, asked, evaluating, home_of, networks_behind
from vaescope.distributions import Normal, Prior
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
    networks: tuple[nn.Module, ...] = ()
    """Asked in evaluation mode; x is brought to their precision and device."""

    def __post_init__(self) -> None:
        check_count(self.latent_dim)
        if not callable(self.encoder) or not (self.decoder is None or callable(self.decoder)):
            raise InputError("encode and decode must be functions.")
        if self.likelihood is not None and self.likelihood not in LIKELIHOODS:
            known = ", ".join(LIKELIHOODS)
            raise InputError(
                f"likelihood must be one of {known}, or None where it is another, got {self.likelihood!r}."
            )
        if self.precision is not None:
            check_number("precision", self.precision)
            validation.precision(self.precision)
            if self.likelihood == "bernoulli":
                raise InputError("a Bernoulli likelihood has no precision; leave one of both out.")
        check_number("beta", self.beta)
        if not self.beta > 0:
            raise InputError(f"beta must be > 0, got {self.beta}.")
        if self.image is not None:
            check_image(self.image)
        if not isinstance(self.prior, Prior):
            raise InputError(f"prior must be one of vaescope's (vs.Normal(), ...), got {type(self.prior).__name__}.")

    @property
    def decodes(self) -> bool:
        """Whether there is a decoder."""
        return self.decoder is not None

    def encode(self, x: Tensor) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
        """Mean and variance of q(z|x), flattened to a row per sample."""
        with evaluating(self.networks):
            found = self._encoded(x)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise InputError(f"encode must return a mean and a variance, got {type(found).__name__}.")
        mean, variance = (_rows(value, name, len(x)) for value, name in zip(found, ("mean", "variance"), strict=True))
        if mean.shape != variance.shape or mean.shape[1] != self.latent_dim:
            raise InputError(
                f"encode must return mean and variance of shape ({len(x)}, {self.latent_dim}), got "
                f"{tuple(mean.shape)} and {tuple(variance.shape)}."
            )
        return mean, variance

    def _encoded(self, x: Tensor) -> Any:
        home = home_of(self.networks)
        if home is not None:
            return asked("encode", self.encoder, x.to(dtype=home[0], device=home[1]))
        try:
            return asked("encode", self.encoder, x)
        except InputError as error:
            if x.dtype == torch.float32 or "dtype" not in str(error):
                raise
            return asked("encode", self.encoder, x.float())  # networks that a function hides, in float32

    def decode(self, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
        """Mean of p(x|z), flattened to a row per sample."""
        if self.decoder is None:
            raise InputError("this model was given without a decoder.")
        home = home_of(self.networks)
        with evaluating(self.networks):
            found = asked("decode", self.decoder, z if home is None else z.to(home[1]))
        return _rows(found, "decode's output", len(z))


def check_count(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"latent_dim must be a whole number, got {value!r}.")
    if value < 1:
        raise InputError(f"latent_dim must be at least 1, got {value}.")


def check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} must be one number, got {value!r}.")


def check_image(image: object) -> None:
    sides = list(image) if isinstance(image, tuple | list) else []
    if len(sides) != 3 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise InputError(f"image must be (channels, height, width), got {image!r}.")


def _rows(value: Any, name: str, count: int) -> Tensor:
    if not isinstance(value, Tensor) or value.ndim < 1 or len(value) != count:
        shape = tuple(value.shape) if hasattr(value, "shape") else type(value).__name__
        raise InputError(f"{name} must be a tensor with a row for each of {count} samples, got {shape}.")
    return (value.flatten(1) if value.ndim > 1 else value.unsqueeze(1)).cpu()


@dataclass(frozen=True, eq=False)
class Arrays:
    """Posteriors alone: what can be said of a model without its networks. Its samples are its posteriors."""

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

    @property
    def samples(self) -> Float[Tensor, "N both"]:
        """What `encode` is to be given, or rows of it: a mean and a variance side by side."""
        return torch.cat([self.mean, self.variance], dim=1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The posteriors of some of its `samples`."""
        if x.ndim != 2 or x.shape[1] != 2 * self.latent_dim:
            raise InputError(f"posteriors alone encode rows of their own `samples`, got {tuple(x.shape)}.")
        mean, variance = x.split(self.latent_dim, dim=1)
        return mean, variance

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
    networks: Sequence[nn.Module] | None = None,
) -> Adapted:
    """A model from functions: `encode(x)` gives mean and variance, `decode(z)` the mean of p(x|z).

    With a `precision` (1 / decoder variance) the likelihood is Gaussian unless you say otherwise; another one than
    gaussian or bernoulli is given as `log_likelihood(x, z)`, a number per row. `beta` is what the KL was multiplied by.
    Networks that the functions are, belong to or name are put in evaluation mode while they are asked; others are
    given as `networks`.

    >>> from_callables(encode=lambda x: (x, 0.1 + 0 * x), decode=lambda z: z, latent_dim=2).encode(torch.ones(3, 2))[1]
    tensor([[0.1000, 0.1000],
            [0.1000, 0.1000],
            [0.1000, 0.1000]])
    """
    known = "gaussian" if likelihood is None and precision is not None else likelihood
    found = networks_behind(encode, decode, log_likelihood) if networks is None else tuple(networks)
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
        found,
    )


def from_modules(
    encoder: nn.Module,
    decoder: nn.Module | None = None,
    *,
    latent_dim: int,
    scale: str = "log_variance",
    **known: Any,
) -> Adapted:
    """A model from an encoder and a decoder module, which are asked in evaluation mode and left as they were.

    The encoder returns two tensors, or one with both halves along its last axis: means, then what `scale` says
    (log_variance, variance, deviation or log_deviation). A Lightning module is a module: give its `encoder` and
    `decoder`, or its methods to `from_callables`. `known` is what `from_callables` takes.
    """
    if scale not in SCALES:
        raise InputError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}.")
    check_count(latent_dim)

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

    networks = [network for network in (encoder, decoder) if network is not None]
    return from_callables(encode=encode, decode=decoder, latent_dim=latent_dim, networks=networks, **known)


def from_arrays(mean: Any, variance: Any, *, prior: Prior | None = None, name: str = "posteriors") -> Arrays:
    """Posteriors of all samples, (N, d) each, from arrays or tensors: no decoder, so no analysis that needs one."""
    centre, spread = (_numbers(value, called) for value, called in ((mean, "mean"), (variance, "variance")))
    if centre.ndim != 2 or centre.shape != spread.shape or 0 in centre.shape:
        raise InputError(f"mean and variance must be (N, d), got {tuple(centre.shape)} and {tuple(spread.shape)}.")
    return Arrays(centre, spread, Normal() if prior is None else prior, name)


def _numbers(value: Any, name: str) -> Tensor:
    """float64, from whatever holds numbers."""
    if isinstance(value, Tensor):
        return value.detach().cpu().double()
    try:
        return torch.from_numpy(np.array(value, dtype=np.float64))
    except (TypeError, ValueError):
        raise InputError(f"{name} must be an array of numbers, got {type(value).__name__}.") from None
