"""Changes of a model, each a pure function from a model to a new one, which leaves the given model as it is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import theory
from vaescope.analysis.encoding import EncodedSample, gauss_newton, prior_rows
from vaescope.analysis.models import RepairedModel, sample_log_likelihood
from vaescope.core import randomness
from vaescope.distributions import Normal, Prior
from vaescope.distributions.base import LOG_2PI, PosteriorDensity, PriorDensity
from vaescope.protocol import LatentModel, LogLikelihood, ModelSpec, ObservationSampler, WrappedModel
from vaescope.regime.model import Pruned


@dataclass(frozen=True)
class Change(ABC):
    """A change with its parameters; `apply` gives the new model."""

    @abstractmethod
    def apply(self, model: LatentModel) -> LatentModel:
        """The changed model.

        Args:
            model: the model to change, which is left as it is.
        """

    @abstractmethod
    def code(self, model: LatentModel) -> str:
        """What to write in the training code to get the same.

        Args:
            model: the model that was changed.
        """

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, those of a mapping as `field/name`."""
        found: dict[str, Tensor] = {}
        for name, value in self._values().items():
            if isinstance(value, Tensor):
                found[name] = value.detach()
            elif isinstance(value, Mapping):
                found |= {f"{name}/{key}": entry.detach() for key, entry in value.items()}
        return found

    def numbers(self) -> dict[str, object]:
        """Fields that are neither tensors nor mappings, for JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self._values().items()
            if not isinstance(value, Tensor | Mapping)
        }

    def _values(self) -> dict[str, object]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


def restored(kind: str, numbers: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Change:
    """The change that `tensors` and `numbers` were taken from.

    >>> restored("NewPrecision", {"precision": 4.0}, {})
    NewPrecision(precision=4.0)
    """
    cls = next(one for one in Change.__subclasses__() if one.__name__ == kind)
    grouped: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        group, _, key = name.partition("/")
        grouped.setdefault(group, {})[key] = value
    mapped = {group: values.get("", values) if "" in values else values for group, values in grouped.items()}
    listed = {name: tuple(value) if isinstance(value, list) else value for name, value in numbers.items()}
    return cls(**listed, **mapped)


def reconstruction_loss(spec: ModelSpec) -> str:
    """The reconstruction term as code, per sample."""
    if spec.log_likelihood is not None:
        return "-log_likelihood(x, z)"
    if spec.likelihood == "bernoulli":
        return 'F.binary_cross_entropy(x_hat, x, reduction="none").flatten(1).sum(1)'
    variance = math.nan if spec.precision is None else 1 / spec.precision
    return f"((x - x_hat) ** 2).flatten(1).sum(1) / (2 * {variance:.4g})"


# what is declared about the model ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Respecified(WrappedModel):
    """A model with some fields of its spec replaced."""

    model: LatentModel
    changed: Mapping[str, object]

    @cached_property
    def _spec(self) -> ModelSpec:
        return replace(self.model.spec, **self.changed)  # type: ignore[arg-type]

    def build_spec(self) -> ModelSpec:
        return self._spec

    def prior_at(self, auxiliary: object | None = None, *, like: Tensor | None = None) -> Prior:
        own = self.changed.get("prior")
        return own if isinstance(own, Prior) else self.model.prior_at(auxiliary, like=like)


@dataclass(frozen=True)
class NewReading(Change):
    """The encoder's second output, or the decoder's output, taken for what it is."""

    scale: str = "variance"
    logits: bool = False

    def apply(self, model: LatentModel) -> LatentModel:
        return RepairedModel(model, scale=self.scale, logits=self.logits)

    def code(self, model: LatentModel) -> str:
        if self.logits:
            return "x_hat = torch.sigmoid(decoder(z))  # probabilities, not logits"
        formula = {
            "standard deviation": "std ** 2",
            "precision": "1 / precision",
            "squared variance": "squared_variance.sqrt()",
            "log-variance": "log_variance.exp()",
            "log standard deviation": "(2 * log_std).exp()",
        }.get(self.scale, "variance")
        return f"return mean, {formula}  # in encode: its second output is the {self.scale}"


@dataclass(frozen=True)
class NewPrecision(Change):
    """Another variance of a Gaussian decoder, the same for all outputs."""

    precision: float

    def apply(self, model: LatentModel) -> LatentModel:
        return Respecified(model, {"precision": self.precision})

    def code(self, model: LatentModel) -> str:
        return (
            f"variance = {1 / self.precision:.4g}  # of maximum likelihood: ((x - x_hat) ** 2).mean(), z from q(z|x)\n"
            "loss = ((x - x_hat) ** 2).flatten(1).sum(1) / (2 * variance) + kl.sum(1)"
        )


@dataclass(frozen=True)
class NewInput(Change):
    """The model as one of x, where it was trained on `scale` · x + `shift`."""

    scale: float
    shift: float

    def apply(self, model: LatentModel) -> LatentModel:
        return _Rescaled(model, self.scale, self.shift)

    def code(self, model: LatentModel) -> str:
        return f"x = {self.scale:.4g} * x {'+' if self.shift >= 0 else '-'} {abs(self.shift):.4g}  # as in training"


@dataclass(frozen=True, eq=False)
class _Rescaled(WrappedModel):
    model: LatentModel
    scale: float
    shift: float

    def build_spec(self) -> ModelSpec:
        spec = self.model.spec
        return spec if spec.precision is None else replace(spec, precision=spec.precision * self.scale**2)

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        return super().encode(self.scale * x + self.shift, auxiliary)

    def decode(self, z: Tensor) -> Tensor:
        return (super().decode(z) - self.shift) / self.scale


# latents --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rotation(Change):
    """New axes of latents with a prior that is the same in all directions: z = `axes` z', so log p(x) is unchanged."""

    axes: Float[Tensor, "d d"]
    """Orthogonal; columns are the new axes."""
    factor: Float[Tensor, " d"] | None = None
    """Of posterior variances along the new axes, which the encoder's variances along the old ones do not determine."""

    def apply(self, model: LatentModel) -> LatentModel:
        rotated = Rotated(model, self.axes)
        return rotated if self.factor is None else Widened(rotated, self.factor.log())

    def code(self, model: LatentModel) -> str:
        return "z = z @ axes  # axes: the matrix of this step; and decoder(z @ axes.T)"


@dataclass(frozen=True, eq=False)
class Rotated(WrappedModel):
    """A model with z' = axesᵀ z as its latents."""

    model: LatentModel
    axes: Float[Tensor, "d d"]

    def build_spec(self) -> ModelSpec:
        spec = self.model.spec
        return replace(
            spec,
            log_likelihood=None if spec.log_likelihood is None else self._likelihood(spec.log_likelihood),
            sample_observations=None if spec.sample_observations is None else self._sampler(spec.sample_observations),
        )

    def _likelihood(self, given: LogLikelihood) -> LogLikelihood:
        return lambda x, z: given(x, z @ self.axes.to(z).mT)

    def _sampler(self, given: ObservationSampler) -> ObservationSampler:
        return lambda z, *rest: given(z @ self.axes.to(z).mT, *rest)

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        """The best diagonal posterior in the new axes for the same full one has its precisions."""
        mean, variance = super().encode(x, auxiliary)
        axes = self.axes.to(mean)
        return mean @ axes, 1 / ((1 / variance) @ axes.square())

    def decode(self, z: Tensor) -> Tensor:
        return super().decode(z @ self.axes.to(z).mT)


@dataclass(frozen=True)
class Removal(Change):
    """Only some latents are kept; the others stay at their prior mean."""

    kept: tuple[int, ...]
    filling: Float[Tensor, " d"]

    def apply(self, model: LatentModel) -> LatentModel:
        return Pruned(model, list(self.kept), self.filling)

    def code(self, model: LatentModel) -> str:
        return f"latent_dim = {len(self.kept)}  # or vs.regime.prune(model, x), without training"


@dataclass(frozen=True)
class NewWidths(Change):
    """Posterior variances times a factor per latent."""

    factor: Float[Tensor, " d"]

    def apply(self, model: LatentModel) -> LatentModel:
        return Widened(model, self.factor.log())

    def code(self, model: LatentModel) -> str:
        factors = ", ".join(f"{value:.3g}" for value in self.factor[:8].tolist())
        more = ", ..." if len(self.factor) > 8 else ""
        return f"return mean, variance * torch.tensor([{factors}{more}])  # in encode, until the encoder is trained"


@dataclass(frozen=True, eq=False)
class Widened(WrappedModel):
    """Posterior variances times exp(log_factor)."""

    model: LatentModel
    log_factor: Float[Tensor, " d"]

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        mean, variance = super().encode(x, auxiliary)
        return mean, variance * self.log_factor.to(mean).exp()


# priors ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormalPrior(Change):
    """The normal prior that maximises the ELBO: mean and variance of the aggregate posterior, per latent."""

    mean: Float[Tensor, " d"]
    variance: Float[Tensor, " d"]

    def apply(self, model: LatentModel) -> LatentModel:
        return Respecified(model, {"prior": Normal(self.mean, self.variance)})

    def code(self, model: LatentModel) -> str:
        return (
            "prior_mean, prior_log_var = nn.Parameter(torch.zeros(latent_dim)), nn.Parameter(torch.zeros(latent_dim))\n"
            "ratio = (log_var.exp() + (mean - prior_mean) ** 2) / prior_log_var.exp()\n"
            "kl = 0.5 * (ratio + prior_log_var - log_var - 1)"
        )


@dataclass(frozen=True)
class MixturePrior(Change):
    """A mixture of normal distributions as the prior: fitted to codes, or posteriors of some samples."""

    weight: Float[Tensor, " K"]
    mean: Float[Tensor, "K d"]
    factor: Float[Tensor, "K d d"]
    """Lower Cholesky factors of the covariances."""

    def log_prob(self, z: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
        """log p(z) of each row.

        Args:
            z: latents.
        """
        weight, mean, factor = (part.to(z) for part in (self.weight, self.mean, self.factor))
        shifted = (z.unsqueeze(0) - mean.unsqueeze(1)).mT  # (K, d, N)
        squares = torch.linalg.solve_triangular(factor, shifted, upper=False).square().sum(1)
        scale = factor.diagonal(dim1=1, dim2=2).log().sum(1) + 0.5 * z.shape[1] * LOG_2PI
        return torch.logsumexp((weight.log() - scale).unsqueeze(1) - 0.5 * squares, 0)

    def sample(self, count: int) -> Float[Tensor, "N d"]:
        """Draws, by PyTorch's own generator.

        Args:
            count: how many.
        """
        chosen = torch.multinomial(self.weight, count, replacement=True)
        noise = torch.randn(count, self.mean.shape[1], 1).to(self.mean)
        return self.mean[chosen] + (self.factor[chosen] @ noise).squeeze(2)

    def apply(self, model: LatentModel) -> LatentModel:
        mean = self.weight @ self.mean
        square = (self.factor.square().sum(2) + self.mean.square()).mul(self.weight[:, None]).sum(0)
        moments = Normal(mean, (square - mean.square()).clamp(min=1e-12))
        density = PriorDensity(self.sample, self.log_prob)
        return Respecified(model, {"prior": moments, "prior_density": density})

    def code(self, model: LatentModel) -> str:
        return (
            "codes = mean + (0.5 * log_var).exp() * torch.randn_like(mean)  # of the training samples\n"
            f"prior = GaussianMixture({len(self.weight)}).fit(codes)  # sklearn.mixture; z = prior.sample(100)[0]"
        )


# posteriors -----------------------------------------------------------------------------------------


def as_sample(model: LatentModel, x: Tensor, mean: Tensor, variance: Tensor) -> EncodedSample:
    """Samples with given posteriors."""
    prior = model.prior_at(like=mean)
    assert isinstance(prior, Normal)
    rows = torch.arange(len(x)).numpy()
    return EncodedSample(model, rows, x, mean, variance, *prior_rows(prior, mean))


def kl_divergence(sample: EncodedSample) -> Float[Tensor, " N"]:
    """KL[q(z|x) || p(z)] of diagonal normal distributions, differentiable."""
    ratio = sample.variance / sample.prior_variance
    shift = (sample.mean - sample.prior_mean).square() / sample.prior_variance
    return 0.5 * (ratio + shift - ratio.log() - 1).sum(1)


@dataclass(frozen=True)
class Optimised(Change):
    """Posteriors that start at the encoder's and climb the ELBO of their own sample by some steps."""

    steps: int = 60
    rate: float = 0.1

    def apply(self, model: LatentModel) -> LatentModel:
        return _SemiAmortised(model, self.steps, self.rate)

    def code(self, model: LatentModel) -> str:
        return (
            "mean, log_var = (v.detach().requires_grad_() for v in encoder(x))\n"
            f"optimiser = torch.optim.Adam([mean, log_var], {self.rate:g})\n"
            f"for _ in range({self.steps}):  # the loss of training, with the decoder fixed\n"
            "    optimiser.zero_grad(); loss(x, mean, log_var).sum().backward(); optimiser.step()"
        )


@dataclass(frozen=True, eq=False)
class _SemiAmortised(WrappedModel):
    model: LatentModel
    steps: int
    rate: float
    draws: int = 8

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            mean, variance = super().encode(x, auxiliary)
        generator = randomness.generator(0, "semi-amortised")
        half = torch.randn((self.draws // 2, 1, mean.shape[1]), generator=generator, dtype=mean.dtype)
        noise = torch.cat([half, -half]).expand(-1, len(mean), -1)
        start = (mean.detach(), variance.detach().log())
        parameters = [value.clone().requires_grad_() for value in start]
        optimiser = torch.optim.Adam(parameters, self.rate)
        with torch.enable_grad():
            for _ in range(self.steps):
                loss = -self._elbo(x, parameters, noise).sum()
                gradients = torch.autograd.grad(loss, parameters)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                optimiser.step()
        with torch.no_grad():
            better = self._elbo(x, parameters, noise) > self._elbo(x, start, noise)
            found = [new.where(better[:, None], old) for new, old in zip(parameters, start, strict=True)]
        return found[0].detach(), found[1].detach().exp()

    def _elbo(self, x: Tensor, posterior: Sequence[Tensor], noise: Tensor) -> Float[Tensor, " N"]:
        mean, log_variance = posterior
        sample = as_sample(self.model, x, mean, log_variance.exp())
        log_p, flat = sample_log_likelihood(sample), x.flatten(1)
        fits = [log_p(flat, mean + (0.5 * log_variance).exp() * one) for one in noise]
        return torch.stack(fits).mean(0) - kl_divergence(sample)


@dataclass(frozen=True)
class FullCovariance(Change):
    """Posteriors with the covariance that the decoder's Jacobian implies at the encoder's mean: Eq. 12 for matrices."""

    def apply(self, model: LatentModel) -> LatentModel:
        return _Curved(model)

    def code(self, model: LatentModel) -> str:
        return (
            "J = torch.func.vmap(torch.func.jacfwd(decoder))(mean)  # (N, n, d)\n"
            "covariance = torch.linalg.inv(torch.eye(latent_dim) + J.mT @ J / variance)  # of q(z|x), not diagonal"
        )


@dataclass(frozen=True, eq=False)
class _Curved(WrappedModel):
    """q(z|x) = N(encoder's mean, (I/σ†² + γ² JᵀWJ)⁻¹)."""

    model: LatentModel
    last: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """Samples that were encoded last, with means and Cholesky factors of the precisions."""

    def build_spec(self) -> ModelSpec:
        density = PosteriorDensity(self._sample, self._log_prob)
        return replace(self.model.spec, posterior_density=density, posterior_family="marginals")

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        mean, factor = self._factors(x)
        return mean, torch.cholesky_inverse(factor).diagonal(dim1=1, dim2=2)

    def with_weights(self, weights: Mapping[str, Tensor]) -> LatentModel:
        return _Curved(self.model.with_weights(weights))

    @torch.no_grad()
    def _factors(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.last or self.last[0][0].shape != x.shape or not torch.equal(self.last[0][0], x):
            mean, variance = self.model.encode(x)
            sample = as_sample(self.model, x, mean, variance)
            J = theory.jacobian(lambda z: self.model.decode(z).flatten(1), mean)
            output = self.model.decode(mean).flatten(1)
            curved = (self.model.precision or 1.0) * gauss_newton(J, self.model.likelihood, output)
            self.last[:] = [(x, mean, torch.linalg.cholesky(curved + torch.diag_embed(1 / sample.prior_variance)))]
        return self.last[0][1:]

    def _sample(self, x: Tensor) -> Float[Tensor, "N d"]:
        mean, factor = self._factors(x)
        noise = torch.randn(*mean.shape, 1).to(mean)
        return mean + torch.linalg.solve_triangular(factor.mT, noise, upper=True).squeeze(2)

    def _log_prob(self, z: Tensor, x: Tensor) -> Float[Tensor, " N"]:
        mean, factor = self._factors(x)
        scaled = ((z - mean).unsqueeze(1) @ factor).squeeze(1)
        log_volume = factor.diagonal(dim1=1, dim2=2).log().sum(1)
        return log_volume - 0.5 * (scaled.square().sum(1) + z.shape[1] * LOG_2PI)


# weights --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewWeights(Change):
    """Trained weights, and the precision that belongs to them."""

    what: str
    """Which part was trained, as in the code."""
    steps: int
    rate: float
    warm_up: int
    precision: float | None
    weights: Mapping[str, Tensor]

    def apply(self, model: LatentModel) -> LatentModel:
        changed = model.with_weights(self.weights)
        return changed if self.precision is None else Respecified(changed, {"precision": self.precision})

    def code(self, model: LatentModel) -> str:
        spec = self.apply(model).spec
        weight = f"min(1.0, step / {self.warm_up}) * " if self.warm_up else ""
        lines = ["decoder.requires_grad_(False)"] if self.what == "encoder" else []
        return "\n".join(
            [
                *lines,
                f"optimiser = torch.optim.Adam({self.what}.parameters(), lr={self.rate:g})",
                f"reconstruction = {reconstruction_loss(spec)}",
                f"loss = (reconstruction + {weight}kl.sum(1)).mean()  # sums over outputs and latents, β = 1",
                f"# {self.steps} steps; keep the weights with the best loss on samples that are not trained on",
            ]
        )
