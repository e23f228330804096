"""Encode samples: all of them in chunks, or a random sample from all over x. No row needs to be encoded twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from vaescope.analysis.samples import Samples, read_samples, spread_rows
from vaescope.core import randomness, validation
from vaescope.core.errors import InputError, first_line
from vaescope.data.dataset import flatten_samples
from vaescope.distributions import Normal
from vaescope.inference.derivatives import (
    CHUNK_ELEMENTS,
    central_differences,
    check_decoder,
    check_latents,
    jacobian_column,
)
from vaescope.protocol import LatentModel, check_model

Rows = slice | Tensor
"""Rows of a sample."""

NUMBERS_AT_ONCE = 2**19  # numbers of x in a chunk


@dataclass(frozen=True, eq=False)
class EncodedSample:
    """Some rows of x with their posteriors and priors, (N, d) each."""

    model: LatentModel
    rows: np.ndarray
    """Indices in x."""
    x: Tensor
    mean: Float[Tensor, "N d"]
    variance: Float[Tensor, "N d"]
    prior_mean: Float[Tensor, "N d"]
    prior_variance: Float[Tensor, "N d"]
    auxiliary: Shaped[Tensor, "N ..."] | None = None
    """The auxiliary input of these rows, if there is one."""

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def prior(self) -> Normal:
        return Normal(self.prior_mean, self.prior_variance)

    def draw_prior(self, purpose: str) -> Float[Tensor, "N d"]:
        """A code from the prior for each sample, always the same ones for the same purpose."""
        if self.model.prior_density is not None:
            with torch.no_grad(), randomness.seeded(purpose):
                return self.model.prior_density.sample(len(self)).to(self.mean)
        noise = torch.randn(self.mean.shape, generator=randomness.generator(0, purpose), dtype=self.mean.dtype)
        return self.prior_mean + self.prior_variance.sqrt() * noise.to(self.mean.device)

    @cached_property
    def observations(self) -> Float[Tensor, "N n"]:
        """x as rows of float64."""
        return self.x.flatten(1).double()

    @cached_property
    def decoded(self) -> Float[Tensor, "N n"]:
        """Decoder outputs at the posterior means."""
        with torch.no_grad():
            return self.decode(self.mean)

    def check_output(self, output: Float[Tensor, "M n"]) -> None:
        """Refuse outputs of the decoder that have another size than x."""
        decoded, observed = output.shape[1], self.x[0].numel()
        if decoded != observed:
            raise InputError(f"the decoder returns {decoded} numbers per sample, but x has {observed}.")

    def decode(self, z: Float[Tensor, "M d"], rows: Rows | None = None) -> Float[Tensor, "M n"]:
        """Flattened outputs in the dtype of z, also from decoders that compute in the dtype of the means only.

        Args:
            z: codes.
            rows: the sample that each code belongs to, by default its own row; it matters for conditional models only.
        """
        native = z.dtype == self.mean.dtype or self._decodes_float64
        return self._decoder(rows)(z if native else z.to(self.mean.dtype)).flatten(1).to(z.dtype)

    def _decoder(self, rows: Rows | None) -> Callable[[Tensor], Tensor]:
        if not self.model.conditional:
            return self.model.decode
        if self.auxiliary is None:
            raise InputError("this model is conditional: pass auxiliary=, a label or a row of numbers per sample.")
        given = self.auxiliary if rows is None else self.auxiliary[rows]

        def decode(z: Tensor) -> Tensor:
            if len(z) != len(given):
                raise InputError("the decoder is conditional, and this analysis uses other codes than those of samples")
            return self.model.decode_given(z, given)

        return decode

    @cached_property
    def _decodes_float64(self) -> bool:
        try:
            with torch.no_grad():
                return self._decoder(slice(0, 1))(self.mean[:1].double()).dtype == torch.float64
        except (RuntimeError, TypeError, InputError):
            return False

    def random_subset(self, count: int) -> EncodedSample:
        """At most `count` samples in a fixed random order, so that a prefix of them is a random subset too."""
        index = np.random.default_rng(0).permutation(len(self))[:count]
        chosen = torch.from_numpy(index)
        return replace(
            self,
            rows=self.rows[index],
            x=self.x[chosen],
            mean=self.mean[chosen],
            variance=self.variance[chosen],
            prior_mean=self.prior_mean[chosen],
            prior_variance=self.prior_variance[chosen],
            auxiliary=None if self.auxiliary is None else self.auxiliary[chosen],
        )


def encode(
    model: LatentModel, x: object, auxiliary: object | None = None, *, rows: np.ndarray | None = None
) -> EncodedSample:
    """Encode all of x at once.

    Args:
        model: a `LatentModel`.
        x: samples, a row or an image each, in anything that `read_samples` takes.
        auxiliary: labels or rows of numbers, one per sample; only for models with an auxiliary input.
        rows: indices of these samples in a larger data set, for error messages.
    """
    given = read_samples(check_model(model), x, auxiliary)
    rows = np.arange(len(given)) if rows is None else rows
    inputs, labels = model_input(given.x, model), given.auxiliary
    _check_finite(inputs.flatten(1).isfinite().all(1), rows, "x must be finite, got NaN or infinity at sample {}.")
    if labels is not None and not model.auxiliary_dim:
        raise InputError("this model takes no auxiliary input; omit auxiliary.")
    with torch.no_grad():
        mean, variance = model.encode(inputs) if labels is None else model.encode(inputs, labels)
        prior = model.prior_at(labels, like=mean)
    message = "the encoder returned NaN or infinity at sample {}; check the scale of x and the weights."
    _check_finite((mean.isfinite() & variance.isfinite()).all(1), rows, message)
    if not isinstance(prior, Normal):
        raise InputError(f"this analysis needs a Gaussian prior, got {type(prior).__name__}.")
    prior_mean, prior_variance = prior_rows(prior, mean)
    auxiliary_rows = None if labels is None else torch.as_tensor(labels)
    return EncodedSample(model, rows, inputs, mean, variance, prior_mean, prior_variance, auxiliary_rows)


def encode_sample(model: LatentModel, x: object, auxiliary: object | None, count: int) -> EncodedSample:
    """Encode at most `count` rows from all over x."""
    given = read_samples(check_model(model), x, auxiliary)
    rows = spread_rows(len(given), count)
    return encode(model, given[rows], rows=rows)


def encode_chunks(
    model: LatentModel, x: object, auxiliary: object | None = None, *, first: EncodedSample | None = None
) -> Iterator[EncodedSample]:
    """All rows of x, a chunk at a time: `first`, if given, then every other row in order."""
    width = check_model(model).latent_dim
    given = read_samples(model, x, auxiliary)
    if first is not None:
        yield first
    step = min(4096, max(1, NUMBERS_AT_ONCE // max(int(np.prod(given.x.shape[1:])), width)))
    for start in range(0, len(given), step):
        rows = np.arange(start, min(start + step, len(given)))
        rows = rows if first is None else np.setdiff1d(rows, first.rows, assume_unique=True)
        if len(rows):
            contiguous = len(rows) == min(step, len(given) - start)
            yield encode(model, given[slice(start, start + step) if contiguous else rows], rows=rows)


def model_input(x: Samples, model: LatentModel) -> Float[Tensor, "N ..."]:
    """Samples as the model takes them: images as rows if it flattens images, in the dtype of a module's weights."""
    if model.flattens_images and x.ndim > 2:
        x = flatten_samples(x, "x")[1]
    return model.convert_input(validation.tensor(x, "x", finite=False))


def _check_finite(finite: Bool[Tensor, " N"], rows: np.ndarray, message: str) -> None:
    if not bool(finite.all()):
        raise InputError(message.format(int(rows[int((~finite).int().argmax())])))


def prior_rows(prior: Normal, mean: Float[Tensor, "N d"]) -> list[Float[Tensor, "N d"]]:
    """Mean and variance of the prior, a row per sample."""
    try:
        return [torch.as_tensor(value).to(mean).expand(mean.shape) for value in (prior.mean, prior.variance)]
    except RuntimeError:
        shape = tuple(torch.as_tensor(prior.variance).shape)
        raise InputError(f"the prior is for latents of shape {shape}, but the model has {mean.shape[1]}.") from None


ENTRIES = 2**26  # of the columns that are kept
DIFFERENCE_STEP = 0.01  # in standard deviations of the prior


@dataclass(frozen=True, eq=False)
class DecoderDerivatives:
    """Derivatives of the decoder at the posterior means of `sample`."""

    sample: EncodedSample
    latents: list[int]
    """Latents whose columns are kept."""
    columns: Float[Tensor, "Q n u"]
    """Columns of the Jacobian of these latents, in float64, at the first Q samples."""
    norms: Float[Tensor, "P d"] | None
    """‖J_k‖ of every latent at every sample; None if derivatives are by differences."""
    failure: str = ""
    """Why forward-mode differentiation failed, if derivatives are by differences."""

    @property
    def column_norm(self) -> Float[Tensor, " d"]:
        """Root mean square of ‖J_k‖ over samples."""
        if self.norms is None:
            raise InputError(self.failure)
        return self.norms.double().square().mean(0).sqrt()


class _ForwardMode(NamedTuple):
    columns: Tensor
    norms: Tensor


def differentiate(sample: EncodedSample, latents: list[int]) -> DecoderDerivatives:
    """Differentiate the decoder at a random subset of the sample's codes, once.

    Decoders that do not support forward-mode differentiation, or detach their output, are differentiated by central
    differences: fewer codes, and the given latents only.

    Args:
        sample: samples with a decoder.
        latents: latents whose columns are kept, for as many codes as fit in memory.
    """
    codes = sample.random_subset(128)
    try:
        found = _forward_mode(codes, latents)
        return DecoderDerivatives(codes, latents, found.columns, found.norms)
    except (InputError, RuntimeError, NotImplementedError) as error:
        if len(latents) > 64 or not latents:  # more would take too long
            raise
        failure = first_line(error)
    codes = codes.random_subset(16)
    return DecoderDerivatives(codes, latents, _by_differences(codes, latents), None, failure)


@torch.no_grad()  # forward mode still works; without it, weights that require gradients would keep every column
def _forward_mode(codes: EncodedSample, latents: list[int]) -> _ForwardMode:
    z = codes.mean
    check_latents(z)
    outputs = check_decoder(lambda z: codes.decode(z, slice(0, 1)), z)
    kept = min(len(z), max(4, ENTRIES // (outputs * max(1, len(latents)))))
    columns = torch.zeros(kept, outputs, len(latents), dtype=torch.float64)
    norms = torch.zeros_like(z)
    step = max(1, CHUNK_ELEMENTS // outputs)
    chunks = [slice(start, min(start + step, len(z))) for start in range(0, len(z), step)]
    for k in range(z.shape[1]):
        column = torch.cat([jacobian_column(partial(codes.decode, rows=rows), z[rows], k) for rows in chunks])
        norms[:, k] = column.norm(dim=1)
        if k in latents:
            columns[:, :, latents.index(k)] = column[:kept].double()
    return _ForwardMode(columns, norms)


@torch.no_grad()
def _by_differences(codes: EncodedSample, latents: list[int]) -> Float[Tensor, "Q n u"]:
    index, base = torch.tensor(latents), codes.mean
    step = DIFFERENCE_STEP * codes.prior_variance[:, latents].mean(0).sqrt()

    def decode(v: Float[Tensor, "Q u"]) -> Float[Tensor, "Q n"]:
        return codes.decode(base.index_copy(1, index, v))

    return central_differences(decode, base[:, latents], step).double()


SMALLEST_VARIANCE = 1e-4  # of a Bernoulli output


def output_weights(likelihood: str | None, output: Float[Tensor, "P n"]) -> Float[Tensor, "P n 1"] | float:
    """Inverse standard deviations of the outputs under the likelihood, up to a common factor."""
    if likelihood != "bernoulli":
        return 1.0
    return (output * (1 - output)).clamp(min=SMALLEST_VARIANCE).rsqrt().unsqueeze(2)


def gauss_newton(
    J: Float[Tensor, "P n u"], likelihood: str | None, output: Float[Tensor, "P n"]
) -> Float[Tensor, "P u u"]:
    """JᵀWJ with W the inverse variances of the outputs: the expected curvature of -log p(x|z), up to the precision."""
    weighted = J * output_weights(likelihood, output)
    return weighted.mT @ weighted


def declared_beta(model: LatentModel) -> float:
    """The weight of the KL in training; 1 for a model that declares 0."""
    return model.beta or 1.0
