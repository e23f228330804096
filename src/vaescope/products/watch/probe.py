"""A small batch of samples on which a model is measured again and again, always with the same noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vaescope.analysis.encoding import (
    DIFFERENCE_STEP,
    SMALLEST_VARIANCE,
    EncodedSample,
    model_input,
    output_weights,
    prior_rows,
)
from vaescope.analysis.models import sample_log_likelihood
from vaescope.analysis.posteriors import posteriors_of
from vaescope.analysis.samples import read_samples, spread_rows
from vaescope.core import randomness, validation
from vaescope.core.errors import InputError
from vaescope.distributions import Normal
from vaescope.distributions.likelihoods import log_likelihood, optimal_precision
from vaescope.distributions.posteriors import kl_per_latent
from vaescope.inference import linear
from vaescope.inference.geometry import contrast_of_matrix
from vaescope.products.watch.row import Bound, LatentState, WeightState
from vaescope.protocol import LatentModel
from vaescope.regime.classify import PosteriorStatistics, kinds


@dataclass(frozen=True, eq=False)
class Measured:
    """A model on the probe samples."""

    bound: Bound
    latents: LatentState
    precision: float | None
    not_finite: tuple[str, ...]
    sample: EncodedSample | None
    """None if the encoder's outputs are not finite."""


class Probe:
    """Samples with noise that is drawn once.

    Args:
        model: the model that is watched.
        x: samples; at most `count` of them are used, from all over x.
        auxiliary: of an iVAE, one per sample.
        count: samples that are encoded at every measurement.
    """

    def __init__(self, model: LatentModel, x: object, auxiliary: object | None, *, count: int, name: str = "x") -> None:
        given = read_samples(model, x, auxiliary)
        samples, chosen = given.x, given[spread_rows(len(given), count)]
        self.x = chosen.x
        self.auxiliary = None if chosen.auxiliary is None else torch.as_tensor(chosen.auxiliary)
        validation.tensor(self.x, name)  # finite, or one line that says where it is not
        self.facts = DataFacts.of(validation.tensor(samples[spread_rows(len(samples), 512)], name).flatten(1))
        self._noise: Tensor | None = None

    def noise(self, like: Tensor) -> Tensor:
        if self._noise is None or self._noise.shape != like.shape:
            self._noise = torch.randn(like.shape, generator=randomness.generator(0, "watch"))
        return self._noise.to(like)

    @torch.no_grad()
    def measure(self, model: LatentModel) -> Measured:
        """The ELBO, its parts, and the posteriors."""
        inputs = model_input(self.x, model)
        mean, variance = model.encode(inputs) if self.auxiliary is None else model.encode(inputs, self.auxiliary)
        prior = model.prior_at(self.auxiliary, like=mean)
        if not isinstance(prior, Normal):
            raise InputError(f"a watch needs a Gaussian prior, got {type(prior).__name__}.")
        log_variance = _range(variance.log())
        if not bool((mean.isfinite() & variance.isfinite() & (variance >= 0)).all()):
            nothing, latents = Bound(math.nan, math.nan, math.nan, math.nan), mean.shape[1]
            state = LatentState((math.nan,) * latents, ("passive",) * latents, log_variance)
            return Measured(nothing, state, None, ("encoder",), None)
        positive = variance.clamp_min(torch.finfo(variance.dtype).tiny)
        fixed = prior_rows(prior, mean)
        sample = EncodedSample(model, np.arange(len(mean)), inputs, mean, positive, fixed[0], fixed[1], self.auxiliary)
        kl = kl_per_latent(mean.double(), positive.double(), Normal(sample.prior_mean.double(), sample.prior_variance))
        bound, precision = self._bound(sample, kl.sum(1))
        means = kl.mean(0)
        finite = torch.where(means < 1e30, means, torch.inf).tolist()
        found = kinds(PosteriorStatistics.for_kinds(posteriors_of(sample)))
        broken = () if math.isfinite(bound.error) or not model.has_decoder else ("decoder",)
        return Measured(bound, LatentState(tuple(finite), tuple(found), log_variance), precision, broken, sample)

    def _bound(self, sample: EncodedSample, kl: Float[Tensor, " N"]) -> tuple[Bound, float | None]:
        """The bound, and the precision: the model's own, or the best for its errors where it states none."""
        model, total = sample.model, float(kl.mean())
        if not model.has_decoder:
            return Bound(math.nan, total, math.nan, math.nan), None
        z = sample.mean + sample.variance.sqrt() * self.noise(sample.mean)
        output = sample.decode(z)
        sample.check_output(output)
        error = (sample.x.flatten(1) - output).double().square()
        mean_error = float(error.mean())
        precision = model.precision
        if precision is None and model.likelihood == "gaussian":
            precision = float(optimal_precision(error.sum(1).mean(), error.shape[1]))
        fit = _log_likelihood(sample, z, output, precision)
        elbo = fit - kl
        explained = 1 - mean_error / self.facts.variance if self.facts.variance else math.nan
        bound = Bound(float(fit.mean()), total, mean_error, explained, tuple(elbo.tolist()))
        return bound, precision

    @torch.no_grad()
    def contrast(self, sample: EncodedSample, used: list[int]) -> float | None:
        """Mean c_IMA at eight codes, latents in use; None where it cannot be computed.

        Derivatives are central differences, all in one call of the decoder: exact ones take several times as long.
        """
        if len(used) < 2 or not sample.model.has_decoder:
            return None
        part = sample.random_subset(8)
        offsets = DIFFERENCE_STEP * torch.eye(part.mean.shape[1]).to(part.mean)[used] * part.prior_variance[0].sqrt()
        points = part.mean.unsqueeze(1) + torch.cat([offsets, -offsets])
        owner = torch.arange(len(part)).repeat_interleave(points.shape[1])
        output = part.decode(points.flatten(0, 1), owner).double().unflatten(0, points.shape[:2])
        ahead, behind = output.chunk(2, 1)
        columns = (ahead - behind).mT * output_weights(part.model.likelihood, part.decoded.double())
        local = contrast_of_matrix(columns)
        finite = local[local.isfinite()]
        return float(finite.mean()) if len(finite) else None

    def encoder_gap(self, sample: EncodedSample, beta: float, precision: float | None) -> float | None:
        r"""Nats per sample that better posterior means would gain: ½ Σ_k σ_k² g_k² / β.

        g is the gradient of the objective with respect to the means, and β/σ² its curvature at the optimum (Eq. 12 of
        the projection). The gradient is averaged over a pair of draws z = μ ± σε.
        """
        if not sample.model.has_decoder or sample.model.likelihood is None or not beta:
            return None
        part = sample.random_subset(64)
        with torch.enable_grad():
            mean = part.mean.detach().requires_grad_()
            offset = part.variance.sqrt() * self.noise(sample.mean)[: len(mean)]
            try:
                draws = (mean + offset, mean - offset)
                ahead, behind = (_log_likelihood(part, z, part.decode(z), precision).sum() / 2 for z in draws)
                (gradient,) = torch.autograd.grad(ahead + behind, mean)
            except (RuntimeError, InputError):  # a decoder that detaches its output
                return None
        pull = beta * (part.mean - part.prior_mean) / part.prior_variance
        gain = (part.variance * (gradient - pull).square()).sum(1).mean() / (2 * beta)
        return float(gain)


def _log_likelihood(sample: EncodedSample, z: Tensor, output: Tensor, precision: float | None) -> Float[Tensor, " N"]:
    """log p(x|z) of every sample; NaN where the likelihood is not known."""
    model = sample.model
    x = sample.x.flatten(1)
    if model.log_likelihood is not None:
        return sample_log_likelihood(sample)(sample.x, z).double()
    if model.likelihood is None:
        return torch.full((len(x),), math.nan, dtype=torch.float64)
    return log_likelihood(model.likelihood, x.double(), output.double(), precision)


def _range(values: Tensor) -> tuple[float, float]:
    low, high = values.aminmax()
    return float(low), float(high)


# the data -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class DataFacts:
    """What rules need to know about x."""

    rows: Float[Tensor, "N n"]
    deviation: Float[Tensor, " n"]
    mean: Float[Tensor, " n"]

    @classmethod
    def of(cls, rows: Float[Tensor, "N n"]) -> DataFacts:
        rows = rows.double()
        return cls(rows, rows.std(0, correction=0), rows.mean(0))

    @property
    def dim(self) -> int:
        return self.rows.shape[1]

    @cached_property
    def variance(self) -> float:
        """Mean variance of a number of x."""
        return float(self.deviation.square().mean())

    @cached_property
    def range(self) -> tuple[float, float]:
        return _range(self.rows)

    @cached_property
    def eigenvalues(self) -> Float[Tensor, " k"]:
        """Variances of the principal components, largest first."""
        return _eigenvalues(self.rows - self.mean)

    @cached_property
    def bernoulli_eigenvalues(self) -> Float[Tensor, " k"]:
        """Variances of directions of x in units of the Bernoulli variance p (1 - p) of each number, largest first."""
        scale = (self.mean * (1 - self.mean)).clamp_min(SMALLEST_VARIANCE).sqrt()
        return _eigenvalues((self.rows - self.mean) / scale)

    def residual(self, latents: int) -> float:
        """Mean squared error of a number of x after as many principal components."""
        return float(self.eigenvalues[latents:].sum()) / self.dim

    def critical_beta(self, likelihood: str | None, precision: float | None) -> float | None:
        """The β above which the collapsed state of any VAE is stable: the largest variance over that of the noise.

        At a collapsed posterior, a weak code along w gains ½ wᵀCw / β in log-likelihood and costs ½ wᵀDw, with C the
        covariance of x and D that of the likelihood's score, so it pays exactly if wᵀCw / wᵀDw > β.
        """
        if likelihood == "bernoulli":
            return float(self.bernoulli_eigenvalues[0])
        return None if precision is None else float(self.eigenvalues[0]) * precision

    def linear_kl(self, likelihood: str | None, precision: float | None, beta: float, latents: int) -> float:
        """KL of the code of an optimal linear VAE, in nats per sample; infinite for an unknown likelihood.

        Args:
            likelihood: gaussian or bernoulli (to second order in the logits).
            precision: γ² of the decoder if it is fixed; None if it is learned.
            beta: weight of the KL.
            latents: how many there are.
        """
        if likelihood == "bernoulli":
            return linear.total_kl(self.bernoulli_eigenvalues.numpy(), beta, latents)
        if likelihood != "gaussian":
            return math.inf
        noise = self.learned_variance(beta, latents) if precision is None else 1 / precision
        return linear.total_kl(self.eigenvalues.numpy(), beta * noise, latents) if noise > 0 else math.inf

    def learned_variance(self, beta: float, latents: int) -> float:
        """The decoder variance that a linear VAE learns at this β."""
        return linear.noise_variance(self.eigenvalues.numpy(), latents, columns=self.dim, beta=beta)


def _eigenvalues(rows: Float[Tensor, "N n"]) -> Float[Tensor, " k"]:
    """Of the covariance, largest first."""
    return torch.from_numpy(linear.spectrum_of_rows(rows.numpy()).eigenvalues.copy())


class Weights:
    """The weights of some networks.

    Args:
        parameters: modules, or the tensors that the optimiser updates.
    """

    def __init__(self, parameters: object) -> None:
        self.modules, self.tensors = _split(parameters)
        self._before: tuple[int, list[Tensor]] | None = None
        self._change: float | None = None

    @torch.no_grad()
    def state(self) -> tuple[WeightState, tuple[str, ...]]:
        """The present state, and what is not finite."""
        gradients = [p.grad for p in self.tensors if p.grad is not None]
        norm, gradient_norm = _norm(self.tensors), _norm(gradients) if gradients else None
        largest = max((float(g.abs().max()) for g in gradients if g.numel()), default=None)
        share, layer = self._zero_units()
        found = [("weights", norm), ("gradients", gradient_norm)]
        broken = tuple(name for name, value in found if value is not None and not math.isfinite(value))
        state = WeightState(norm, gradient_norm, largest, share, layer, self._change)
        self._change = None
        return state, broken

    def _zero_units(self) -> tuple[float | None, str]:
        """The largest share of units whose weights all have a gradient of exactly zero, in layers of at least eight."""
        found: list[tuple[float, str]] = []
        for module in self.modules:
            for name, layer in module.named_modules():
                if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd):
                    gradient = layer.weight.grad
                    if gradient is not None and len(gradient) >= 8:
                        found.append((float((gradient.flatten(1) == 0).all(1).float().mean()), name))
        return max(found, default=(None, ""), key=lambda pair: pair[0] or 0.0)

    # change per step --------------------------------------------------------------------------

    @torch.no_grad()
    def remember(self, step: int) -> None:
        """Keep a part of the weights, to compare it after the next step."""
        self._before = step, [_part(p).clone() for p in self._matrices]

    def compare(self, step: int) -> float | None:
        """Relative change of the weights per step since `remember`; None if there is nothing to compare."""
        nothing = self._before is None or step <= self._before[0]  # at most calls, which should cost little
        return None if nothing else self._compare(step)

    @torch.no_grad()
    def _compare(self, step: int) -> float | None:
        assert self._before is not None
        before, self._before = self._before, None
        now = [_part(p) for p in self._matrices]
        differences = [a - b for a, b in zip(now, before[1], strict=True)]
        size = _norm(before[1])
        self._change = _norm(differences) / (size * (step - before[0])) if size > 0 else None
        return self._change

    @property
    def _matrices(self) -> list[Tensor]:
        """Biases start at zero, and scales are few: matrices show the size of a step."""
        return [p for p in self.tensors if p.ndim > 1] or list(self.tensors)


def _split(parameters: object) -> tuple[list[nn.Module], list[Tensor]]:
    """Modules, and all tensors that are trained."""
    given: Iterable[object] = parameters if isinstance(parameters, Iterable) else [parameters]
    listed = [parameters] if isinstance(parameters, nn.Module | Tensor) else list(given)
    modules = [item for item in listed if isinstance(item, nn.Module)]
    tensors: list[Tensor] = [p for module in modules for p in module.parameters() if p.requires_grad]
    tensors += [item for item in listed if isinstance(item, Tensor)]
    if len(modules) + sum(isinstance(item, Tensor) for item in listed) < len(listed):
        raise InputError(
            f"parameters must be modules or tensors, got {type(listed[0]).__name__}; write parameters=network, or "
            "parameters=network.parameters()."
        )
    return modules, list({id(p): p for p in tensors}.values())


def _part(weight: Tensor) -> Tensor:
    """About 4096 numbers of a weight, which are compared between two steps."""
    flat = weight.detach().flatten()
    return flat[:: max(1, flat.numel() // 4096)]


def _norm(values: Sequence[Tensor]) -> float:
    """The Euclidean norm of all numbers together."""
    if not values:
        return 0.0
    return float(torch.stack([n.to("cpu", torch.float64) for n in torch._foreach_norm(list(values))]).norm())
