"""What is measured of a model before anything is judged: each part by itself, or the reason why it could not be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import metrics, randomness, theory
from vaescope.adapters import Arrays
from vaescope.diagnosis.rotation import Rotation, best_rotation
from vaescope.distributions import DiagonalGaussian, Normal
from vaescope.errors import InputError
from vaescope.orthogonality import column_angles, column_contrast
from vaescope.regime.model import Encoded, encode, spread_samples

POINTS = 64  # at which the decoder is differentiated
GAP_POINTS = 32  # at which the gap is split; half as many for every latent beyond two
LARGEST_SPLIT = 4  # latents in use up to which the best posterior is solved for
LARGEST_OUTPUT = 4096  # numbers of an observation up to which it is
DRAWS = 16  # of z, for the error of reconstructions
WEIGHT_FLOOR = 1e-4  # variance of a Bernoulli pixel, at least


class Skipped(Exception):
    """Why an analysis could not be made."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """The decoder's Jacobian at some codes, columns of latents in use."""

    contrast: float
    stderr: float
    angles: np.ndarray
    """(u, u) mean angles between columns, in degrees."""
    rank: int
    """Directions of data that latents in use move, at a typical code."""
    rotation: Rotation


@dataclass(frozen=True)
class Noise:
    """What reconstructions and posteriors say of the decoder's variance and of β."""

    precision: float
    """γ² by maximum likelihood: dimensions over mean squared error of z ~ q."""
    declared: float | None
    implied: float | None
    """γ²/β that the posteriors' widths imply, by Eq. 12."""
    explained: float
    """Share of the variance of x that reconstructions explain."""
    likelihood: str | None

    @property
    def beta(self) -> float | None:
        """The effective β; under a Bernoulli likelihood the declared precision is 1, pixels being weighed already."""
        return None if self.declared is None or not self.implied else self.declared / self.implied


@dataclass(frozen=True, eq=False)
class Split:
    """The gap per point, in nats: log p(x) - ELBO = family + amortisation."""

    log_marginal: Float[Tensor, " N"]
    elbo: Float[Tensor, " N"]
    family: Float[Tensor, " N"] | None
    amortisation: Float[Tensor, " N"] | None
    contrast: Float[Tensor, " N"] | None
    pareto_k: float | None
    note: str

    def mean(self, name: str) -> tuple[float, float]:
        """Mean and its standard error."""
        values = getattr(self, name)
        return float(values.mean()), float(values.std() / max(1, len(values)) ** 0.5)


@dataclass(frozen=True, eq=False)
class Sample:
    """Some samples with their posteriors, in float64, and the latents in use among them."""

    model: Any
    seen: Encoded
    used: list[int]

    @property
    def x(self) -> Tensor:
        return self.seen.x.flatten(1).double()

    def decode(self, z: Float[Tensor, "N d"]) -> Float[Tensor, "N n"]:
        """In the precision asked for, by networks that may know another one only."""
        out: Tensor = self.model.decode(z if self.follows else z.to(self.seen.mean.dtype))
        return out.flatten(1).to(z.dtype)

    @cached_property
    def follows(self) -> bool:
        """Whether the networks compute in float64 when they are given it."""
        try:
            with torch.no_grad():
                return bool(self.model.decode(self.seen.mean[:1].double()).dtype == torch.float64)
        except (RuntimeError, TypeError):
            return False

    def of_used(self, base: Float[Tensor, " d"]) -> Any:
        """The decoder as a function of latents in use, the others at `base`."""
        places = torch.tensor(self.used)

        def decode(v: Float[Tensor, "N u"]) -> Float[Tensor, "N n"]:
            z = base.to(v).expand(len(v), -1).index_copy(1, places, v)
            return self.decode(z)

        return decode


def sample_of(model: Any, x: Any, u: Any, used: list[int], count: int) -> Sample:
    """Samples from all over x; float64 where the model's networks follow."""
    if isinstance(model, Arrays):
        raise Skipped("posteriors alone have no decoder")
    if not getattr(model, "decodes", True):
        raise Skipped("the model was given without a decoder")
    seen = spread_samples(model, x, u, count)
    return Sample(model, seen, used)


def geometry(sample: Sample) -> Geometry:
    if len(sample.used) < 1:
        raise Skipped("no latent is in use")
    mean = sample.seen.mean[:POINTS]
    decode = sample.of_used(mean.mean(0))
    try:
        J = theory.jacobian(decode, mean[:, sample.used]).double()
    except (RuntimeError, NotImplementedError, InputError) as error:
        raise Skipped(f"the decoder could not be differentiated ({str(error).splitlines()[0][:120]})") from None
    if not bool(J.isfinite().all()):
        raise Skipped("the decoder's derivatives are not finite")
    if J.shape[1] < J.shape[2]:
        raise Skipped("the decoder has fewer outputs than latents in use")
    contrasts = column_contrast(J)
    finite = contrasts[contrasts.isfinite()]
    singular = torch.linalg.svdvals(J)
    rank = int((singular > 1e-3 * singular[:, :1]).sum(1).float().median())
    return Geometry(
        contrast=float(finite.mean()) if len(finite) else math.inf,
        stderr=float(finite.std() / len(finite) ** 0.5) if len(finite) > 1 else math.nan,
        angles=column_angles(J).nanmean(0).numpy(),
        rank=rank,
        rotation=best_rotation(J),
    )


def noise(sample: Sample) -> Noise:
    """Errors of draws, and what the widths of posteriors imply."""
    model, seen = sample.model, sample.seen
    likelihood = getattr(model, "likelihood", None)
    generator = randomness.generator(0, "diagnosis")
    x = sample.x
    errors = torch.zeros(len(x), dtype=torch.float64)
    with torch.no_grad():
        for _ in range(DRAWS):
            drawn = torch.randn(seen.mean.shape, generator=generator, dtype=seen.mean.dtype)
            output = sample.decode(seen.mean + seen.variance.sqrt() * drawn).double()
            if output.shape != x.shape:
                raise Skipped(f"the decoder gives {output.shape[1]} numbers where x has {x.shape[1]}")
            errors += (x - output).square().sum(1) / DRAWS
    total = float((x - x.mean(0)).square().sum(1).mean())
    explained = 1 - float(errors.mean()) / total if total > 0 else math.nan
    return Noise(
        precision=x.shape[1] / max(float(errors.mean()), 1e-300),
        declared=1.0 if likelihood == "bernoulli" else model.precision,
        implied=None if likelihood is None else _implied(sample, likelihood),
        explained=explained,
        likelihood=likelihood,
    )


def _implied(sample: Sample, likelihood: str) -> float | None:
    """Median over latents in use and samples of (1/σ² - 1/σ†²) / ‖c‖², pixels weighed as their likelihood does."""
    if not sample.used:
        return None
    mean = sample.seen.mean[:POINTS]
    decode = sample.of_used(mean.mean(0))
    try:
        J = theory.jacobian(decode, mean[:, sample.used]).double()
    except (RuntimeError, NotImplementedError, InputError):
        return None
    if likelihood == "bernoulli":
        with torch.no_grad():
            output = decode(mean[:, sample.used]).double()
        J = J / (output * (1 - output)).clamp(min=WEIGHT_FLOOR).sqrt().unsqueeze(2)
    told = 1 / sample.seen.variance[:POINTS, sample.used].double()
    told = told - 1 / sample.seen.prior_variance[:POINTS, sample.used].double()
    ratios = told / J.square().sum(1)
    clear = (told > 1) & ratios.isfinite()  # narrower than half of the prior: otherwise the prior decides
    return float(ratios[clear].median()) if bool(clear.any()) else None


def split(sample: Sample) -> Split:
    """The gap: in parts where few latents are in use, else as a whole."""
    model, seen = sample.model, sample.seen
    if getattr(model, "likelihood", None) != "gaussian" or model.precision is None:
        raise Skipped("the gap is split for Gaussian likelihoods of a known precision")
    if not isinstance(model.prior, Normal) or getattr(model, "conditional", False):
        raise Skipped("the gap is split for models with a prior N(m, s²)")
    if not sample.used:
        raise Skipped("no latent is in use")
    points = GAP_POINTS // 2 ** max(0, len(sample.used) - 2) if len(sample.used) <= LARGEST_SPLIT else GAP_POINTS
    x = sample.x[:points]
    if x.shape[1] > LARGEST_OUTPUT:
        raise Skipped(f"observations of more than {LARGEST_OUTPUT} numbers take too long")
    mean, variance = (t[:points].double() for t in (seen.mean, seen.variance))
    prior_mean, prior_variance = (t[0].double() for t in (seen.prior_mean, seen.prior_variance))
    precision = float(model.precision)
    if len(sample.used) > LARGEST_SPLIT:
        return _whole(sample, x, mean, variance, precision)
    places = sample.used
    passive = [k for k in range(mean.shape[1]) if k not in places]
    decode = sample.of_used(prior_mean)
    posterior = DiagonalGaussian(mean[:, places], variance[:, places])
    prior = Normal(prior_mean[places], prior_variance[places])
    found = theory.gap(decode, x, posterior, precision=precision, prior=prior)
    lost = _kl(mean[:, passive], variance[:, passive], prior_mean[passive], prior_variance[passive])
    return Split(
        found.log_marginal,
        found.elbo - lost,
        found.family,
        found.amortisation + lost,
        found.contrast,
        None if found.pareto_k is None else float(found.pareto_k.max()),
        "Latents at their prior are held at its mean." if passive else "",
    )


def _whole(sample: Sample, x: Tensor, mean: Tensor, variance: Tensor, precision: float) -> Split:
    """log p(x) by importance sampling from the model's own posteriors."""
    posterior = DiagonalGaussian(mean, variance)
    found = theory.log_marginal(
        sample.decode,
        x,
        precision=precision,
        prior=sample.model.prior,
        method="importance",
        proposal=theory.projection.as_full(posterior),
    )
    bound = theory.elbo(sample.decode, x, posterior, precision=precision, prior=sample.model.prior)
    k = None if found.pareto_k is None else float(found.pareto_k.max())
    note = f"More than {LARGEST_SPLIT} latents are in use, so that the gap is not split."
    return Split(found.value, bound, None, None, None, k, note)


def _kl(mean: Tensor, variance: Tensor, prior_mean: Tensor, prior_variance: Tensor) -> Float[Tensor, " N"]:
    ratio = variance / prior_variance
    return 0.5 * (ratio - 1 - ratio.log() + (mean - prior_mean) ** 2 / prior_variance).sum(1)


def eq12(sample: Sample) -> np.ndarray | None:
    """(d,) σ² over its near-deterministic value, the median over samples; None where it cannot be known."""
    if getattr(sample.model, "likelihood", None) != "gaussian" or sample.model.precision is None:
        return None
    mean = sample.seen.mean[:POINTS]
    try:
        norms = theory.column_norms(sample.decode, mean).double()
    except (RuntimeError, NotImplementedError, InputError):
        return None
    best = 1 / (1 / sample.seen.prior_variance[:POINTS].double() + sample.model.precision * norms.square())
    return (sample.seen.variance[:POINTS].double() / best).median(0).values.numpy()


def stability(models: list[Any], x: Any, u: Any) -> metrics.Stability:
    """Of mean codes, between every two models."""
    codes = [encode(model, x, u).mean for model in models]
    return metrics.stability(codes)
