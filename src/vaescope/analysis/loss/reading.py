"""A user's loss, read: which objective it is, its faults, and the model that it trains as other products take it."""

from __future__ import annotations

import math
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Laplace, Poisson

from vaescope.adapters import from_callables
from vaescope.analysis.loss.call import Objective, Tensors, Words, read_objective, working_example
from vaescope.analysis.loss.identify import Scales, close
from vaescope.analysis.loss.measure import Identified, identify
from vaescope.analysis.loss.probe import Space, gradients
from vaescope.analysis.models import as_models
from vaescope.analysis.samples import as_arrays
from vaescope.core import randomness, validation
from vaescope.core.errors import InputError, first_line
from vaescope.protocol import LatentModel, ModelSpec, WrappedModel

# faults ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Intrinsic:
    """Weights without reductions and without coefficients: 1 or 2 for a squared error, 1 for the KL."""

    reconstruction: float
    kl: float
    explicit: bool
    """Whether one of the terms has a weight in the code."""


def intrinsic(found: Identified) -> Intrinsic:
    w = {"reconstruction": found.reconstruction.weight, "kl": found.divergence.weight}
    bare = {}
    for term, weight in w.items():
        bare[term] = abs(weight) / found.reductions[term].divisor(found.space)
    explicit = False
    for coefficient in found.coefficients.values():
        if coefficient.effect in ("the KL", "the reconstruction", "both"):
            explicit |= coefficient.effect != "both" and coefficient.value != 1
            if coefficient.proportional:
                for term, name in (("kl", "the KL"), ("reconstruction", "the reconstruction")):
                    if coefficient.effect in (name, "both"):
                        bare[term] /= abs(coefficient.value)
    return Intrinsic(bare["reconstruction"], bare["kl"], explicit or not all(map(_natural, bare.values())))


def _natural(weight: float) -> bool:
    """Whether a weight is one that a formula has without a coefficient."""
    return any(close(weight, v) for v in (0.5, 1.0, 2.0))


def divided_axes(found: Identified, term: str, bare: float) -> tuple[int, ...]:
    """Axes of a sample over which a term is averaged; all of them if it is divided by n as a number, such as 784.

    Args:
        found: what was identified.
        term: reconstruction or kl.
        bare: its weight without reductions and coefficients.
    """
    axes = found.reductions[term].averaged_axes(found.space)
    by_number = found.size_is_written and not _natural(bare) and _natural(bare * found.space.sizes["n"])
    return tuple(k for k, size in enumerate(found.space.x.shape[1:]) if size > 1) if by_number and not axes else axes


def faults(found: Identified, y: Tensor | None) -> tuple[str, ...]:
    """The names of all faults.

    Args:
        found: what was identified.
        y: an output of the decoder, if there is one.
    """
    named = [*found.divergence.faults] if not found.divergence.detached else []
    known, kl = found.reconstruction, found.divergence
    if kl.detached:
        named.append("kl_detached")
    if known.detached:
        named.append("reconstruction_detached")
    if known.likelihood == "swapped":
        named.append("arguments_swapped")
    named += _reduction_faults(found)
    if kl.recognised and not kl.detached and kl.weight and not kl.faults:
        if kl.weight * known.weight < 0:
            named.append("kl_wrong_sign")
        bare = intrinsic(found)
        if close(bare.kl, 2.0) and not close(bare.reconstruction, 2.0):
            named.append("kl_missing_half")
    if ineffective(found):
        named.append("coefficient_without_effect")
    named += _output_faults(found, y)
    if found.noise is not None:
        if found.noise.kind == "not_normal":
            named.append("noise_not_normal")
        elif found.noise.kind == "normal" and found.noise.scale != "std":
            named.append("noise_not_std")
        if found.noise.shared:
            named.append("noise_shared")
        if found.noise.kind == "none":
            named.append("noise_absent")
    return tuple(dict.fromkeys(named))


def ineffective(found: Identified) -> tuple[str, ...]:
    """Coefficients that change nothing."""
    return tuple(
        name
        for name, c in found.coefficients.items()
        if c.effect == "nothing" and not re.fullmatch(Words.counter, name.lower())
    )


def _reduction_faults(found: Identified) -> list[str]:
    """Where the two terms are reduced differently."""
    r, k = found.reductions["reconstruction"], found.reductions["kl"]
    if not found.ratio or (found.fixes_scale and close(found.ratio, 1.0)):
        return []
    bare, named = intrinsic(found), []
    if r.batch is not None and k.batch is not None and r.batch != k.batch and len(found.space.x) > 1:
        alone = "reconstruction_averaged_over_batch" if r.batch < k.batch else "kl_averaged_over_batch"
        named += [alone] if _natural(bare.reconstruction) and _natural(bare.kl) else []
        named.append("depends_on_batch_size")
    averaged = divided_axes(found, "reconstruction", bare.reconstruction)
    divided = divided_axes(found, "kl", bare.kl)
    weights = (abs(found.reconstruction.weight), bare.reconstruction)
    undone = _natural(weights[0]) and (
        not _natural(weights[1]) or close(replace(r, batch=0, latents=0).divisor(found.space), 1.0)
    )
    if set(averaged) - set(divided) and not undone:
        named.append("reconstruction_averaged_over_pixels")
    if set(divided) - set(averaged):
        named.append("kl_divided_by_pixels")
    if k.latents == -1 and found.space.sizes["d"] > 1:
        named.append("kl_averaged_over_latents")
    return named


def _output_faults(found: Identified, y: Tensor | None) -> list[str]:
    known = found.reconstruction
    if known.output == "twice":
        return ["sigmoid_twice"]
    if y is None or known.output != "logit" or y.numel() < 8 or not math.isfinite(float(y.sum())):
        return []
    if not bool(((y >= 0) & (y <= 1)).all()):
        return []
    if known.likelihood in ("bernoulli", "gaussian", "laplace"):
        return ["sigmoid_twice"]
    total = y.sum(known.class_axis)
    return ["softmax_twice"] if bool((total - 1).abs().max() < 1e-4) else []


# what a loss says of its model ------------------------------------------------------------------


@dataclass(frozen=True)
class ObjectiveSpec:
    """What a loss says of the model that it trains.

    Args:
        name: what the loss is called.
        likelihood, output, scale: see `vs.Audit`.
        precision, beta: None where the likelihood has none, or is not known.
        ratio: weight of the KL over that of the reconstruction, at unit variance or scale.
        latent_dim: 0 if it is not known.
    """

    name: str
    likelihood: str
    output: str
    scale: str
    precision: float | None
    beta: float | None
    ratio: float | None
    latent_dim: int = 0

    def mean(self, y: Tensor) -> Tensor:
        """The mean of p(x|z) where the loss reads y otherwise, as logits or log-rates."""
        if self.output == "logit":
            return y.softmax(-1) if self.likelihood in ("categorical", "multinomial") else y.sigmoid()
        changes: dict[str, Callable[[Tensor], Tensor]] = {
            "log_rate": torch.exp,
            "log_probability": torch.exp,
            "tanh": torch.tanh,
        }
        return changes.get(self.output, lambda y: y)(y)

    def applied_to(self, spec: ModelSpec, decode: Callable[[Tensor], Tensor]) -> ModelSpec:
        """What is known of a model, with this likelihood, and β = 1 where the variance can take its place.

        Args:
            spec: what is known of it otherwise.
            decode: z -> mean of p(x|z), for likelihoods that the spec has no name for.
        """
        ratio = self.ratio if self.ratio is not None and self.ratio > 0 else 1.0
        if self.likelihood == "gaussian":  # with any β it is the ELBO of the precision γ²/β
            return replace(spec, likelihood="gaussian", precision=1 / ratio, beta=1.0)
        if self.likelihood == "bernoulli":
            return replace(spec, likelihood="bernoulli", precision=None, beta=ratio)
        spec = replace(spec, likelihood=None, precision=None)
        families: dict[str, Callable[[Tensor], Distribution]] = {  # w_r |x - y| + w_k KL has the scale w_k / w_r
            "laplace": lambda mean: Laplace(mean, ratio),
            "poisson": lambda mean: Poisson(mean.clamp(min=1e-30), validate_args=False),
            "categorical": lambda mean: Categorical(probs=mean),
        }
        if self.likelihood not in families:
            return spec
        family, weight = families[self.likelihood], 1.0 if self.likelihood == "laplace" else ratio

        def log_likelihood(x: Tensor, z: Tensor) -> Tensor:
            p = family(decode(z))
            return p.log_prob(x.reshape(p.batch_shape)).flatten(1).sum(1)

        def draw(z: Tensor, generator: torch.Generator) -> Tensor:
            with randomness.seeded(generator):
                return family(decode(z)).sample().flatten(1)

        return replace(spec, log_likelihood=log_likelihood, sample_observations=draw, beta=weight)

    def model(
        self, encoder: Callable[..., object], decoder: Callable[[Tensor], Tensor], latent_dim: int
    ) -> LatentModel:
        """A model from the networks that the loss trains.

        Args:
            encoder: x -> mu and the encoder's second output, or one tensor with both halves along its last axis.
            decoder: z -> y, as the loss reads it.
            latent_dim: number of latents.
        """
        variance_of = Scales.variance[self.scale]

        def encode(x: Tensor) -> tuple[Tensor, Tensor]:
            mu, second = moments(encoder(x))
            return mu, variance_of(second)

        def decode(z: Tensor) -> Tensor:
            return self.mean(decoder(z))

        networks = [part for part in (encoder, decoder) if isinstance(part, nn.Module)]
        spec = self.applied_to(ModelSpec(latent_dim=latent_dim, name=self.name, returns_variances=True), decode)
        return from_callables(encode=encode, decode=decode, spec=spec, networks=networks or None)


def moments(found: object) -> tuple[Tensor, Tensor]:
    """mu and the encoder's second output."""
    parts = found.chunk(2, -1) if isinstance(found, Tensor) else found
    if not isinstance(parts, tuple | list) or len(parts) < 2:
        raise InputError("the encoder must return mu and its second output; write encoder=lambda x: (mu, s).")
    return parts[0], parts[1]


@dataclass(frozen=True, eq=False)
class TrainedModel(WrappedModel):
    """A model with the likelihood, the precision and β of its loss in place of its own."""

    model: LatentModel
    loss: ObjectiveSpec

    def build_spec(self) -> ModelSpec:
        spec = self.model.spec
        if self.model.conditional and self.loss.likelihood not in ("gaussian", "bernoulli"):
            return spec  # its likelihood needs the auxiliary input
        return self.loss.applied_to(spec, self.model.decode)


class HasObjective(ABC):
    """A loss that was read before, such as the result of `vs.audit`."""

    @property
    @abstractmethod
    def objective_spec(self) -> ObjectiveSpec:
        """What the loss says of its model."""


def models_with_loss(models: object, loss: object | None, x: object | None) -> list[LatentModel]:
    """One model or several as a list, with the likelihood, the precision and β of the loss that trained them.

    Args:
        models: anything that `as_models` takes; with a loss also a pair of networks, encoder and decoder.
        loss: anything that `vs.audit` takes, or its result; None leaves models as they are.
        x: samples.
    """
    if loss is None:
        return as_models(models)
    pair = models if isinstance(models, tuple | list) and len(models) == 2 else ()
    networks = [part for part in pair if callable(part) and not isinstance(part, LatentModel)]
    found = [] if len(networks) == 2 else as_models(models)
    rows = None if x is None else read_tensor(x, "x")
    if networks and rows is None:
        raise InputError("x is required to read the loss of an encoder and a decoder.")
    if found:
        latent_dim, y = found[0].latent_dim, None
    else:
        assert rows is not None
        y, latent_dim = _example(networks[0], networks[1], rows)
    objective = loss.objective_spec if isinstance(loss, HasObjective) else _objective(loss, rows, y, latent_dim)
    return [TrainedModel(m, objective) for m in found] or [objective.model(networks[0], networks[1], latent_dim)]


def _example(encoder: Callable[..., object], decoder: Callable[..., object], x: Tensor) -> tuple[Tensor, int]:
    """What the decoder returns for some samples, and the number of latents."""
    sample = x[:4].float() if x.is_floating_point() else x[:4]
    try:
        with torch.no_grad():
            mu = moments(encoder(sample))[0]
            y = decoder(mu)
    except InputError:
        raise
    except Exception as error:  # the user's networks raise anything
        raise InputError(f"the encoder and the decoder fail on x {tuple(x.shape)}: {first_line(error)}") from None
    if not isinstance(y, Tensor):
        raise InputError(f"the decoder must return the y that the loss takes, got {type(y).__name__}.")
    return y, math.prod(mu.shape[1:])


def _objective(loss: object, x: Tensor | None, y: Tensor | None, latent_dim: int) -> ObjectiveSpec:
    """Of a loss that is to be the whole of what was trained."""
    read = read_loss(loss, x=x, y=y, latent_dim=latent_dim)
    found, spec = read.found, read.spec
    if found.ratio is None or not found.ratio > 0 or spec.likelihood in ("none", "other"):
        raise InputError(
            f"{spec.name} is not the loss of a VAE with a known likelihood: see vs.audit({spec.name}, x=x)."
        )
    if found.reductions["reconstruction"].batch != found.reductions["kl"].batch:
        raise InputError(
            f"β of {spec.name} depends on the batch size: with a batch as in training, pass "
            f"loss=vs.audit({spec.name}, x=batch, latent_dim={latent_dim})."
        )
    return spec


@dataclass(frozen=True, eq=False)
class LossReading:
    """A loss as a function of named tensors, and what was identified.

    Args:
        objective: the loss.
        found: what it is.
        bare: its weights without reductions and coefficients.
        y: an output of the decoder, if there is one.
    """

    objective: Objective
    found: Identified
    bare: Intrinsic
    y: Tensor | None
    latents_known: bool

    @property
    def precision(self) -> float:
        """γ² of the error as it is written: 2 for a sum of squares, 1 for half of it."""
        near = [v for v in (0.5, 1.0, 2.0) if math.isclose(self.bare.reconstruction, v, rel_tol=1e-5)]
        return near[0] if near and self.found.reconstruction.likelihood == "gaussian" else 1.0

    @property
    def beta(self) -> float | None:
        """β at the precision of the written error."""
        ratio = self.found.ratio
        return None if ratio is None else ratio * (1.0 if self.found.fixes_scale else self.precision)

    @property
    def spec(self) -> ObjectiveSpec:
        """What the loss says of its model."""
        known = self.found.reconstruction
        gaussian, beta = known.likelihood == "gaussian", self.beta
        return ObjectiveSpec(
            name=self.objective.title,
            likelihood={"swapped": "none", "absent": "none"}.get(known.likelihood, known.likelihood),
            output={"twice": "logit", "sample": "mean"}.get(known.output, known.output),
            scale=self.found.divergence.scale,
            precision=self.precision if gaussian and beta is not None else None,
            beta=beta if gaussian or self.found.fixes_scale else None,
            ratio=self.found.ratio,
            latent_dim=self.found.space.sizes["d"] if self.latents_known else 0,
        )


def read_loss(
    loss: object,
    *,
    x: Tensor | None = None,
    y: Tensor | None = None,
    latent_dim: int | None = None,
    arguments: str | Mapping[str, str] | None = None,
    keywords: Mapping[str, object] | None = None,
    total: int | str | None = None,
    others: Mapping[str, Tensor] | None = None,
    model: nn.Module | None = None,
    batch: Callable[[Tensor], object] | None = None,
    encoder: str | None = None,
    decoder: str | None = None,
) -> LossReading:
    """The loss as a function of named tensors, and what it is; arguments as those of `vs.audit`."""
    probes = None if x is None else x[: len(x) if len(x) <= 64 else 16]
    given = {role: torch.as_tensor(v) for role, v in (others or {}).items()}
    given = {role: v.detach().double() if v.is_floating_point() else v.detach() for role, v in given.items()}
    width = math.prod(probes.shape[1:]) if probes is not None else 12
    latents = (
        (latent_dim,) if latent_dim else tuple(given["z"].shape[1:]) if "z" in given else (3 if width != 3 else 4,)
    )
    with torch.inference_mode(False), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of user code at shapes that it was not written for
        objective, found = _identify(
            loss,
            probes,
            y,
            latents,
            given,
            arguments=arguments,
            keywords=dict(keywords or {}),
            total=total,
            model=model,
            batch=batch,
            encoder=encoder,
            decoder=decoder,
        )
    if y is None and objective.parts is not None:
        y = objective.parts.y
    known = bool(latent_dim) or objective.parts is not None or "z" in given
    return LossReading(objective, found, intrinsic(found), y, known)


def read_tensor(values: object, name: str) -> Tensor:
    """Samples as a tensor: integers stay integers."""
    values = as_arrays(values, name)
    array = (
        values if isinstance(values, Tensor) else torch.from_numpy(np.ascontiguousarray(validation.array(values, name)))
    )
    if array.ndim < 2 or len(array) < 1:
        raise InputError(f"{name} must have a row per sample and at least one column, got shape {tuple(array.shape)}.")
    array = array.detach().cpu()
    return array.double() if array.is_floating_point() else array.to(torch.long)


def _check_gradient(objective: Objective, example: Tensors) -> None:
    """Refuse a loss whose derivatives cannot be computed at all."""
    try:
        gradients(objective, example, [role for role in ("y", "mu", "s") if role in objective.roles])
    except Exception as error:  # user code may raise anything
        raise InputError(
            f"{objective.title} has a value but its gradient cannot be computed ({type(error).__name__}: "
            f"{first_line(error)}); compute the loss with torch operations that do not change tensors in place."
        ) from None


def _spaces(
    x: Tensor | None, y: Tensor | None, latents: tuple[int, ...], others: Mapping[str, Tensor]
) -> Iterator[Space]:
    """Shapes and ranges to try, the most likely first."""
    for samples in _samples(x):
        data = samples.shape[1:]
        classes = int(samples.max()) + 1 if not samples.is_floating_point() else 0
        shapes = [tuple(y.shape[1:])] if y is not None else []
        if y is None:
            shapes = [(*data, classes), (classes, *data)] if classes else [tuple(data), (math.prod(data),)]
        for outputs in dict.fromkeys(shapes):
            for s in ("real", "positive"):
                for name in ("real", "unit", "simplex", "positive"):
                    yield Space(samples, outputs, latents, name, s, others)


def _samples(x: Tensor | None) -> list[Tensor]:
    if x is None:
        random = torch.Generator().manual_seed(0)
        drawn = 0.05 + 0.9 * torch.rand(8, 12, generator=random, dtype=torch.float64)
        return [drawn, (drawn > 0.5).double(), (5 * drawn).long()]
    return [x] if x.is_floating_point() else [x.double(), x]


def _identify(
    loss: object,
    x: Tensor | None,
    y: Tensor | None,
    latents: tuple[int, ...],
    others: Mapping[str, Tensor],
    *,
    arguments: str | Mapping[str, str] | None,
    keywords: Mapping[str, object],
    total: int | str | None,
    model: nn.Module | None,
    batch: Callable[[Tensor], object] | None,
    encoder: str | None,
    decoder: str | None,
) -> tuple[Objective, Identified]:
    """The loss as a function of named tensors, and what it is."""
    groups: dict[tuple[torch.dtype, tuple[int, ...]], list[Space]] = {}
    for space in _spaces(x, y, latents, others):
        groups.setdefault((space.x.dtype, space.outputs), []).append(space)
    problem: InputError | None = None
    for group in groups.values():
        examples = [space.draw(0, far=False) for space in group]
        try:
            objective = read_objective(
                loss,
                examples,
                arguments=arguments,
                keywords=keywords,
                total=total,
                model=model,
                batch=batch,
                encoder=encoder,
                decoder=decoder,
            )
        except InputError as error:
            problem = problem or error
            continue
        if (parts := objective.parts) is not None:
            group = [replace(space, outputs=tuple(parts.y.shape[1:]), latents=parts.latents) for space in group]
            examples = [space.draw(0, far=False) for space in group]
        example, why = working_example(objective, examples)
        if example is None:
            problem = problem or InputError(
                f"{objective.title} has no finite value at any tensors of these shapes: {why}."
            )
            continue
        _check_gradient(objective, example)
        return objective, identify(objective, next(s for s, e in zip(group, examples, strict=True) if e is example))
    assert problem is not None
    if x is None and (flat := re.search(r"shape '\[-1, (\d+)\]' is invalid", str(problem))):  # as in x.view(-1, 784)
        width = int(flat[1])
        if width % 12 and width <= 1_000_000:
            return _identify(
                loss,
                0.05 + 0.9 * torch.rand(8, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
                y,
                latents,
                others,
                arguments=arguments,
                keywords=keywords,
                total=total,
                model=model,
                batch=batch,
                encoder=encoder,
                decoder=decoder,
            )
    if x is None and " failed on a batch of x " in str(problem):
        raise InputError(
            "x is required, samples as the model takes them: x=torch.rand(16, 1, 28, 28) for such images (--data FILE, "
            "or --shape 1 28 28)."
        )
    raise problem
