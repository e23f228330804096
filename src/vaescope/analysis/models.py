"""What users pass as models: one, several, or a fit."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vaescope.adapters.quantised import Quantised
from vaescope.analysis.encoding import EncodedSample, encode_sample
from vaescope.core.calls import DtypeCopies, call_user_function, call_with_tokens, evaluation_mode
from vaescope.core.errors import InputError, RunError, Skipped
from vaescope.core.plugins import plugins
from vaescope.distributions import Normal, Prior
from vaescope.distributions.likelihoods import log_likelihood
from vaescope.fitting import Fit
from vaescope.protocol import LatentModel, LogLikelihood, ModelSpec, WrappedModel, check_model


def as_models(models: object) -> list[LatentModel]:
    """One model or several as a list; of a fit, the finished members, best first."""
    if isinstance(models, Fit):
        finished = [member for member in models.members if member.status == "finished"]
        if not finished:
            raise RunError("no member of this fit has finished; see the history of each for where it diverged.")
        return [*sorted(finished, key=lambda member: -member.best_elbo)]
    listed = [_adapted(model) for model in (list(models) if isinstance(models, Sequence) else [models])]
    if not listed:
        raise InputError("expected a model, got an empty list.")
    if any(isinstance(model, Quantised) for model in listed):
        raise InputError("a VQ-VAE has no posterior, so only vs.diagnose takes it, one at a time.")
    return [check_model(model) for model in listed]


def _adapted(model: object) -> object:
    """What an installed package makes of a model of its own library; any other model unchanged."""
    if isinstance(model, LatentModel | Quantised):
        return model
    found = {name: own for name, adapt in plugins("adapters").items() if (own := adapt(model)) is not None}
    if len(found) > 1:
        raise InputError(f"several installed adapters take a {type(model).__name__}: {', '.join(found)}; call one.")
    return next(iter(found.values()), model)


SCALES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "variance": (lambda s: s, False),
    "standard deviation": (torch.square, False),
    "precision": (torch.reciprocal, False),
    "squared variance": (torch.sqrt, False),
    "log-variance": (torch.exp, True),
    "log standard deviation": (lambda s: (2 * s).exp(), True),
}
"""What an encoder may return in place of a variance: how it becomes one, and whether it may be negative."""


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

    def build_spec(self) -> ModelSpec:
        spec = self.model.spec
        shape = spec.image_shape or self.sample_shape
        return replace(spec, image_shape=shape, prior=self.normal_prior or spec.prior)

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

    @property
    def corrections(self) -> dict[str, str]:
        """What was not taken as the encoder returned it, and why, as the entries of `Report.skipped`."""
        if bool((self.second < 0).any()):
            return {"variances as returned": "some are negative, so all were read as log-variances"}
        return (
            {"variances of 0": "they were replaced by the smallest that is computed with"} if self.zero_variance else {}
        )

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
        return bool(((output < -1e-4) | (output > 1 + 1e-4)).any())  # a little may be rounding
    return False


def drawable_shape(model: LatentModel, outputs: int) -> tuple[int, int, int] | None:
    """(channels, height, width) of decoded images with this many numbers, if they can be drawn."""
    if model.image_shape is None:
        return None
    channels, height, width = model.image_shape
    return (channels, height, width) if channels != 2 and channels * height * width == outputs else None


def likelihood_is_known(model: LatentModel) -> bool:
    """Whether log p(x|z) can be computed."""
    gaussian = model.likelihood == "gaussian" and model.precision is not None
    return gaussian or model.likelihood == "bernoulli" or model.log_likelihood is not None


def sample_log_likelihood(sample: EncodedSample, rows: Tensor | None = None) -> Callable[[Tensor, Tensor], Tensor]:
    """(x, z) -> log p(x|z) of each row; `rows` are the samples that x and z belong to, by default all."""
    model = sample.model
    if model.log_likelihood is not None:
        return _user_log_likelihood(sample, model.log_likelihood, rows)
    assert model.likelihood is not None
    kind, precision = model.likelihood, model.precision
    return lambda x, z: log_likelihood(kind, x, sample.decode(z, rows), precision)


def _user_log_likelihood(sample: EncodedSample, function: LogLikelihood, rows: Tensor | None) -> LogLikelihood:
    """A user's log-likelihood, called with the floating-point type of its networks, or with tokens as integers."""
    dtype = sample.mean.dtype
    given = [] if not sample.model.conditional or sample.auxiliary is None else [sample.auxiliary]
    given = given if rows is None else [values[rows] for values in given]
    networks = sample.model.trained_networks()

    def call(x: Tensor, z: Tensor) -> Tensor:
        with evaluation_mode(networks):
            found = call_with_tokens("log_likelihood", function, x.to(dtype), z.to(dtype), *given)
        if found.shape != (len(z),):
            raise Skipped(f"log_likelihood must return a number per row, got {tuple(found.shape)} for {len(z)} rows")
        return found.to(z)

    return call


def weights_are_initial(model: LatentModel, *, certain: bool = False) -> bool:
    """Whether no step of training can have been made; False if weights have changed or cannot be seen."""
    networks = model.trained_networks()
    return bool(networks) and networks_are_initial(networks, certain=certain)


def networks_are_initial(networks: Sequence[nn.Module], *, certain: bool = False) -> bool:
    """Normalisation layers at exactly 1 and 0; or weights, or biases, that fill exactly the interval they start in.

    PyTorch draws the weights and biases of linear, convolutional and recurrent layers uniformly within a bound that
    depends on the number of inputs. Training moves some of them out of it; of a few biases, perhaps none. Weights may
    be initialised by other rules, so biases alone are enough. Keras, flax and haiku start biases at zero; Keras draws
    weights uniformly within the bound of Glorot & Bengio 2010.

    Args:
        networks: modules with all weights of a model.
        certain: ask for more than chance explains: 100 weights within their bound, and no bias that contradicts it.

    >>> networks_are_initial([nn.Sequential(nn.Linear(5, 64), nn.ReLU(), nn.Linear(64, 5))])
    True
    """
    layers = [layer for network in networks for layer in network.modules()]
    normalisation = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
    scales = [
        (value, start)
        for layer in layers
        if isinstance(layer, normalisation)
        for value, start in ((layer.weight, 1.0), (layer.bias, 0.0))
        if isinstance(value, Tensor)
    ]
    if scales:
        return all(bool((value == start).all()) for value, start in scales) and not certain
    found = [one for layer in layers for one in _bounded(layer)]
    weights = [one.values / one.bound for one in found if not one.bias]
    biases = [one.values / one.bound for one in found if one.bias]
    fewest = 100 if certain else 32  # fewer give no verdict
    zero, own = all(bool((value == 0).all()) for value in biases), _is_uniform(weights, fewest)
    glorot = zero and _is_uniform([one.values / one.glorot for one in found if one.glorot], fewest)
    if certain:
        return glorot or (own and (zero or _is_uniform(biases, fewest=1)))
    return own or glorot or (zero and sum(map(len, biases)) >= 12) or _is_uniform(biases, fewest=12)


class _Weights(NamedTuple):
    """Weights or biases of a layer, with the bounds within which they may start."""

    values: Tensor
    bound: float
    bias: bool = False
    glorot: float = 0.0


def _bounded(layer: nn.Module) -> Iterator[_Weights]:
    """Weights and biases of a layer, of PyTorch or with the names that its layers have."""
    known = (nn.Linear, nn.modules.conv._ConvNd, torch.jit.ScriptModule)
    values = {name: value.detach() for name, value in layer.named_parameters(recurse=False)}
    weight, bias = values.get("weight"), values.get("bias")
    if isinstance(layer, nn.RNNBase):
        for name, value in values.items():
            yield _Weights(value.flatten(), 1 / math.sqrt(layer.hidden_size), "bias" in name)
    elif (
        weight is not None
        and weight.ndim > 1
        and weight.numel()
        and (isinstance(layer, known) or type(layer) is nn.Module)
    ):
        bound = 1 / math.sqrt(max(1, weight[0].numel()))
        glorot = math.sqrt(6 / max(1, weight[0].numel() + weight[:, 0].numel()))
        yield _Weights(weight.flatten(), bound, glorot=glorot)
        if bias is not None:
            yield _Weights(bias.flatten(), bound, bias=True)


def _is_uniform(parts: list[Tensor], fewest: int) -> bool:
    """Whether numbers fill [-1, 1] and none is outside."""
    if sum(map(len, parts)) < fewest:
        return False
    values = torch.cat([part.double() for part in parts])
    inside = bool((values.abs() <= 1 + 1e-5).all())
    return inside and abs(float(values.std()) * math.sqrt(3) - 1) < 0.25  # the spread of a uniform distribution
