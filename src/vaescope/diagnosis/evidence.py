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
from vaescope.errors import InputError
from vaescope.metrics.stability import Stability
from vaescope.orthogonality import column_angles, column_contrast
from vaescope.regime.model import Encoded, encode, spread_samples
from vaescope.theory.rotation import Rotation, best_rotation

POINTS = 64  # at which the decoder is differentiated, at most
ENTRIES = 2**26  # of their Jacobians
ROTATED_TOGETHER = 32  # latents for which better axes are looked for, at most
LARGEST_BY_DIFFERENCES = 64  # latents in use up to which derivatives are by differences, where there are no others
STEP = 0.01  # of a difference, in deviations of the prior
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
    rotation: Rotation | None
    """Of those latents in use that tell most, at codes where columns are independent; None where they nowhere are."""
    singular: float = 0.0
    """Share of codes at which columns depend on each other: the contrast is infinite there."""
    rotated: tuple[int, ...] = ()
    """Which latents the rotation is about, in the order of its rows."""


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
    stated_beta: float = 1.0

    @property
    def beta(self) -> float | None:
        """The effective β; under a Bernoulli likelihood the declared precision is 1, pixels being weighed already."""
        return None if self.declared is None or not self.implied else self.declared / self.implied


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
        except (RuntimeError, TypeError, InputError):
            return False

    def of_used(self, base: Float[Tensor, " d"]) -> Any:
        """The decoder as a function of latents in use, the others at `base`."""
        places = torch.tensor(self.used)

        def decode(v: Float[Tensor, "N u"]) -> Float[Tensor, "N n"]:
            z = base.to(v).expand(len(v), -1).index_copy(1, places, v)
            return self.decode(z)

        return decode

    @cached_property
    def columns(self) -> Float[Tensor, "P n u"]:
        """Jacobians of the decoder at the first codes, columns of latents in use, weighed as the likelihood does."""
        mean = self.seen.mean
        decode = self.of_used(mean.mean(0))
        try:
            with torch.no_grad():
                outputs = decode(mean[:1][:, self.used]).shape[1]
            some = mean[: min(POINTS, max(4, ENTRIES // (outputs * len(self.used))))][:, self.used]
            J = self._derivatives(decode, some).double()
            J = J * self.weights(decode, some[: len(J)])
        except (RuntimeError, NotImplementedError, InputError) as error:
            raise Skipped(f"the decoder could not be differentiated ({str(error).splitlines()[0][:160]})") from None
        if not bool(J.isfinite().all()):
            raise Skipped("the decoder's derivatives are not finite")
        return J

    def _derivatives(self, decode: Any, z: Float[Tensor, "P u"]) -> Float[Tensor, "some n u"]:
        """In forward mode; at fewer codes, by differences where the networks have none, or detach what they give."""
        try:
            return theory.jacobian(decode, z)
        except InputError:
            if z.shape[1] > LARGEST_BY_DIFFERENCES:
                raise
            width = self.seen.prior_variance[:, self.used].to(z).mean(0).sqrt()
            return theory.differences(decode, z[: max(4, POINTS // 4)], STEP * width)

    @torch.no_grad()
    def weights(self, decode: Any, z: Float[Tensor, "P u"]) -> Float[Tensor, "P n 1"] | float:
        """Square roots of what the likelihood multiplies squared changes of an output by, γ² left out."""
        if getattr(self.model, "likelihood", None) != "bernoulli":
            return 1.0
        output = decode(z).double()
        weights: Tensor = (output * (1 - output)).clamp(min=WEIGHT_FLOOR).rsqrt().unsqueeze(2)
        return weights


def sample_of(model: Any, x: Any, u: Any, used: list[int], count: int) -> Sample:
    """Samples from all over x; float64 where the model's networks follow."""
    if isinstance(getattr(model, "whole", model), Arrays):
        raise Skipped("posteriors alone have no decoder")
    if not getattr(model, "decodes", True):
        raise Skipped("the model was given without a decoder")
    seen = spread_samples(model, x, u, count)
    return Sample(model, seen, used)


def geometry(sample: Sample) -> Geometry:
    """Columns weighed as the likelihood weighs outputs: all alike unless it is Bernoulli."""
    if len(sample.used) < 1:
        raise Skipped("no latent is in use")
    J = sample.columns
    if J.shape[1] < J.shape[2]:
        raise Skipped("the decoder has fewer outputs than latents in use")
    contrasts = column_contrast(J)
    sound = contrasts.isfinite()
    finite = contrasts[sound]
    singular = torch.linalg.svdvals(J)
    rank = int((singular > 1e-3 * singular[:, :1]).sum(1).float().median())
    return Geometry(
        contrast=float(finite.mean()) if len(finite) else math.inf,
        stderr=float(finite.std() / len(finite) ** 0.5) if len(finite) > 1 else math.nan,
        angles=column_angles(J).nanmean(0).numpy(),
        rank=rank,
        rotation=best_rotation(J[sound][:, :, :ROTATED_TOGETHER]) if len(finite) else None,
        singular=1 - float(sound.double().mean()),
        rotated=tuple(sample.used[:ROTATED_TOGETHER]),
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
            if not bool(output.isfinite().all()):
                raise Skipped("the decoder gives NaN or infinity")
            if output.shape != x.shape:
                raise Skipped(f"the decoder gives {output.shape[1]} numbers where x has {x.shape[1]}")
            errors += (x - output).square().sum(1) / DRAWS
    total = float((x - x.mean(0)).square().sum(1).mean())
    explained = 1 - float(errors.mean()) / total if total > 0 else math.nan
    return Noise(
        precision=x.shape[1] / max(float(errors.mean()), 1e-300),
        declared=1.0 if likelihood == "bernoulli" else model.precision,
        implied=None if likelihood is None else _implied(sample),
        explained=explained,
        likelihood=likelihood,
        stated_beta=stated_beta(model),
    )


def _implied(sample: Sample) -> float | None:
    """Median over latents in use and samples of (1/σ² - 1/σ†²) / ‖c‖², c weighed as the likelihood does."""
    if not sample.used:
        return None
    try:
        lengths = sample.columns.square().sum(1)
    except Skipped:
        return None
    points = len(lengths)
    told = 1 / sample.seen.variance[:points, sample.used].double()
    told = told - 1 / sample.seen.prior_variance[:points, sample.used].double()
    ratios = told / lengths
    clear = (
        told * sample.seen.prior_variance[:points, sample.used] > 1
    ) & ratios.isfinite()  # narrower than half of the prior: otherwise the prior decides
    return float(ratios[clear].median()) if bool(clear.any()) else None


def eq12(sample: Sample, column_norm: np.ndarray | None) -> np.ndarray | None:
    """(d,) σ² over its near-deterministic value, the median over samples; None where it cannot be known.

    Of latents that are not in use the mean squared norm serves for all samples.
    """
    model = sample.model
    if model.precision is None or column_norm is None:
        return None
    norms = torch.as_tensor(column_norm, dtype=torch.float64).repeat(len(sample.seen.mean), 1)
    if sample.used:
        try:
            lengths = sample.columns.square().sum(1).sqrt()
        except Skipped:
            return None
        norms = norms[: len(lengths)]
        norms[:, sample.used] = lengths
    points = len(norms)
    own = 1 / sample.seen.prior_variance[:points].double()
    best = 1 / (own + model.precision / stated_beta(model) * norms.square())
    return (sample.seen.variance[:points].double() / best).median(0).values.numpy()


def stated_beta(model: Any) -> float:
    """What the KL was multiplied by, as far as the model knows."""
    return float(getattr(model, "beta", 1.0) or 1.0)


def stability(models: list[Any], samples: list[Any], u: Any) -> Stability:
    """Of mean codes, between every two models."""
    codes = [encode(model, x, u).mean for model, x in zip(models, samples, strict=True)]
    return metrics.stability(codes)
