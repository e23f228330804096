"""A model with common mistakes in its outputs corrected, so that the other analyses are still meaningful."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from vaescope.adapters.networks import DtypeCopies, call_user_function, evaluation_mode
from vaescope.distributions import Normal, Prior
from vaescope.encoded import EncodedSample, encode_sample
from vaescope.errors import InputError
from vaescope.protocol import LatentModel, WrappedModel

SCALES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "variance": (lambda s: s, False),
    "standard deviation": (torch.square, False),
    "precision": (torch.reciprocal, False),
    "squared variance": (torch.sqrt, False),
    "log-variance": (torch.exp, True),
    "log standard deviation": (lambda s: (2 * s).exp(), True),
}
"""What an encoder may return in place of a variance: how it becomes one, and whether it may be negative."""
ROUNDING = 1e-4  # by which probabilities may be outside [0, 1]


@dataclass(frozen=True, eq=False)
class RepairedModel(WrappedModel):
    """The same model with its outputs corrected.

    Exceptions in its functions become an `InputError`. A model that is a module is called in evaluation mode, and
    decodes in the floating-point type of its input.
    """

    model: LatentModel
    scale: str = "variance"
    """What the encoder returns in place of variances, one of `SCALES`; it is converted."""
    logits: bool = False
    """A Bernoulli decoder returns logits; they are converted to probabilities."""
    normal_prior: Normal | None = None
    """A normal prior with the mean and variance of another prior."""
    replace_zero_variance: bool = True
    """Variances of zero become the smallest positive number."""
    sample_shape: tuple[int, int, int] | None = None
    """Shape of samples that are images, for models that do not know it."""

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        return self.model.image_shape or self.sample_shape

    @property
    def prior(self) -> Prior:
        return self.model.prior if self.normal_prior is None else self.normal_prior

    def prior_at(self, auxiliary: object | None = None, *, like: Tensor | None = None) -> Prior:
        return self.model.prior_at(auxiliary, like=like) if self.normal_prior is None else self.normal_prior

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        with evaluation_mode([self.model] if isinstance(self.model, nn.Module) else []):
            mean, variance = call_user_function("encode", partial(super().encode, auxiliary=auxiliary), x)
        return mean, self.repair_variance(variance)

    def repair_variance(self, variance: Tensor) -> Tensor:
        variance = SCALES[self.scale][0](variance)
        if not self.replace_zero_variance:
            return variance
        return variance.where(variance != 0, torch.finfo(variance.dtype).tiny)

    def decode(self, z: Tensor) -> Tensor:
        return self._decoded(lambda model: model.decode, z)

    def decode_given(self, z: Tensor, auxiliary: Tensor) -> Tensor:
        return self._decoded(lambda model: model.decode_given, z, auxiliary)

    def _decoded(self, method: Callable[[LatentModel], Callable[..., Tensor]], z: Tensor, *given: Tensor) -> Tensor:
        model = self.model if self._copies is None else self._copies.in_dtype(z.dtype)
        assert isinstance(model, LatentModel)
        with evaluation_mode([model] if isinstance(model, nn.Module) else []):
            output = call_user_function("decode", method(model), z, *given)
        return output.sigmoid() if self.logits else output

    @cached_property
    def _copies(self) -> DtypeCopies | None:
        return DtypeCopies(self.model) if isinstance(self.model, nn.Module) else None


def with_normal_prior(model: LatentModel, sample_shape: tuple[int, int, int] | None = None) -> RepairedModel:
    """The model with a normal prior: its own, or one with the same mean and variance.

    Args:
        model: any model.
        sample_shape: (channels, height, width) of samples that are images, for a model without an `image_shape`.
    """
    prior = model.prior
    if isinstance(prior, Normal) or (model.auxiliary_dim and not model.conditional):
        return RepairedModel(model, sample_shape=sample_shape)
    return RepairedModel(model, normal_prior=Normal(*prior.mean_and_variance()), sample_shape=sample_shape)


@dataclass(frozen=True, eq=False)
class Repair:
    """A repaired model, with the samples that showed what had to be repaired."""

    model: RepairedModel
    sample: EncodedSample
    zero_variance: bool
    """Whether some variances are exactly zero."""
    second: Tensor
    """What the encoder returned for the samples as variances."""

    def with_scale(self, scale: str) -> Repair:
        """The same with the encoder's second output taken for something else."""
        model = replace(self.model, scale=scale)
        return replace(
            self, model=model, sample=replace(self.sample, model=model, variance=model.repair_variance(self.second))
        )


def repair(
    model: LatentModel,
    x: object,
    auxiliary: object | None,
    count: int,
    sample_shape: tuple[int, int, int] | None = None,
) -> Repair:
    """Encode a random sample, and correct log-variances, zero variances, logits, and a prior that is not normal.

    Args:
        model: the model to correct.
        x: samples, a row or an image each.
        auxiliary: the auxiliary input of an iVAE.
        count: size of the random sample, which is encoded once.
        sample_shape: (channels, height, width) of samples that are images.
    """
    plain = with_normal_prior(model, sample_shape)
    raw = encode_sample(replace(plain, replace_zero_variance=False), x, auxiliary, count)
    negative, zero = bool((raw.variance < 0).any()), bool((raw.variance == 0).any())
    logits = _returns_logits(model, raw)
    repaired = replace(plain, scale="log-variance" if negative else "variance", logits=logits)
    sample = replace(raw, model=repaired, variance=repaired.repair_variance(raw.variance))
    return Repair(repaired, sample, zero and not negative, raw.variance)


def _returns_logits(model: LatentModel, sample: EncodedSample) -> bool:
    """Whether a Bernoulli decoder returns values outside [0, 1]."""
    if model.likelihood != "bernoulli" or not model.has_decoder:
        return False
    with contextlib.suppress(InputError):
        output = sample.decoded
        return bool(((output < -ROUNDING) | (output > 1 + ROUNDING)).any())
    return False


def drawable_shape(model: LatentModel, outputs: int) -> tuple[int, int, int] | None:
    """(channels, height, width) of decoded images with this many numbers, if they can be drawn."""
    if model.image_shape is None:
        return None
    channels, height, width = model.image_shape
    return (channels, height, width) if channels != 2 and channels * height * width == outputs else None
