"""What lies between log p(x) and the ELBO: exactly where that is possible, by sampling otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness, theory
from vaescope.adapters.networks import asked
from vaescope.adapters.repaired import Viewed
from vaescope.diagnosis.evidence import DRAWS, Sample, Skipped, stated_beta
from vaescope.distributions import DiagonalGaussian, Normal
from vaescope.distributions.likelihoods import gaussian_log_likelihood
from vaescope.errors import InputError

POINTS = 32  # at which the gap is split; half as many for every latent beyond two
LARGEST_EXACT = 4  # latents in use up to which the best posterior is solved for,
LARGEST_OUTPUT = 4096  # and numbers of an observation
OUTPUTS = 2**15  # numbers of all observations, where the best posterior is climbed to
FEWEST = 4
LARGEST_CLIMBED = 64  # latents in use up to which it is
BERNOULLI_FLOOR = 1e-7  # of a pixel's probability: decoders in float32 give 0 and 1


@dataclass(frozen=True, eq=False)
class Split:
    """The gap per point, in nats: log p(x) - ELBO = family + amortisation."""

    log_marginal: Float[Tensor, " N"]
    elbo: Float[Tensor, " N"]
    family: Float[Tensor, " N"]
    amortisation: Float[Tensor, " N"]
    contrast: Float[Tensor, " N"] | None
    """c_IMA at the best posteriors, where they were solved for."""
    pareto_k: float | None
    note: str
    precision: float | None = None
    """γ² by maximum likelihood at the best posteriors: what the encoder loses is not counted as noise."""

    def mean(self, name: str) -> tuple[float, float]:
        """Mean and its standard error."""
        values = getattr(self, name)
        return float(values.mean()), float(values.std() / max(1, len(values)) ** 0.5) if len(values) > 1 else math.nan


def split(sample: Sample) -> Split:
    """The gap in parts."""
    model = sample.model
    if isinstance(model, Viewed) and model.normal is not None:
        raise Skipped("the gap is split for models with a normal prior")
    if not sample.used:
        raise Skipped("no latent is in use")
    likelihood = getattr(model, "likelihood", None)
    own = getattr(model, "log_likelihood", None) is not None
    known = likelihood == "gaussian" and model.precision is not None and not own
    if not known and likelihood != "bernoulli" and not own:
        raise Skipped("the likelihood is not known; give precision=, likelihood= or log_likelihood= to the adapter")
    n, u = sample.x.shape[1], len(sample.used)
    if known and u <= LARGEST_EXACT and n <= LARGEST_OUTPUT and not getattr(model, "auxiliary_dim", 0):
        return _exact(sample)
    if u > LARGEST_CLIMBED:
        raise Skipped(f"more than {LARGEST_CLIMBED} latents in use take too long")
    return _sampled(sample)


def _exact(sample: Sample) -> Split:
    points = POINTS // 2 ** max(0, len(sample.used) - 2)
    found = _Parts.of(sample, points)
    split = theory.gap(
        sample.of_used(found.prior_mean[0]),
        sample.x[:points],
        found.posterior,
        precision=float(sample.model.precision),
        prior=Normal(found.prior_mean[0, sample.used], found.prior_variance[0, sample.used]),
    )
    return Split(
        split.log_marginal,
        split.elbo - found.lost,
        split.family,
        split.amortisation + found.lost,
        split.contrast,
        None if split.pareto_k is None else float(split.pareto_k.max()),
        _note(sample, found),
        _precision(sample, found, DiagonalGaussian(split.projection.mean, split.projection.variance)),
    )


def _sampled(sample: Sample) -> Split:
    points = max(FEWEST, min(POINTS, OUTPUTS // sample.x.shape[1]))
    x = sample.x[:points]
    found = _Parts.of(sample, points)
    log_likelihood = _log_likelihood(sample)
    base, used = found.prior_mean, torch.tensor(sample.used)
    weighed = getattr(sample.model, "log_likelihood", None) is None

    def whole(rows: Tensor, v: Float[Tensor, "N u"]) -> Float[Tensor, "N d"]:
        return base[rows].to(v).index_copy(1, used, v)

    def curvature(v: Float[Tensor, "P u"]) -> Float[Tensor, "P u u"]:
        J = theory.jacobian(sample.of_used(base.mean(0)), v)
        J = J * sample.weights(sample.of_used(base.mean(0)), v)
        return (sample.model.precision or 1.0) * J.mT @ J

    try:
        split = theory.sampled_gap(
            lambda rows, v: log_likelihood(x[rows], whole(rows, v)),
            found.posterior,
            Normal(found.prior_mean[:, sample.used], found.prior_variance[:, sample.used]),
            curvature=curvature if weighed else None,
        )
    except (RuntimeError, NotImplementedError, InputError) as error:
        raise Skipped(f"the decoder could not be differentiated ({str(error).splitlines()[0][:120]})") from None
    if not bool(split.log_marginal.isfinite().all()):
        raise Skipped("the likelihood of these samples is not finite")
    climbed = f"By sampling at {len(x)} samples: the encoder may lose more than is told, and the family less."
    if not bool(split.converged.all()):
        climbed += f" The climb had not ended at {int((~split.converged).sum())} of them."
    return Split(
        split.log_marginal.double(),
        split.elbo.double() - found.lost,
        split.family.double(),
        split.amortisation.double() + found.lost,
        None,
        float(split.pareto_k.max()),
        f"{climbed} {_note(sample, found)}".strip(),
        _precision(sample, found, split.best),
    )


@dataclass(frozen=True, eq=False)
class _Parts:
    """Posteriors of latents in use, and what those of the others cost."""

    posterior: DiagonalGaussian
    prior_mean: Float[Tensor, "P d"]
    prior_variance: Float[Tensor, "P d"]
    lost: Float[Tensor, " P"]

    @classmethod
    def of(cls, sample: Sample, points: int) -> _Parts:
        seen, used = sample.seen, sample.used
        values = (seen.mean, seen.variance, seen.prior_mean, seen.prior_variance)
        mean, variance, prior_mean, prior_variance = (t[:points].double() for t in values)
        idle = [k for k in range(mean.shape[1]) if k not in used]
        ratio = variance[:, idle] / prior_variance[:, idle]
        away = (mean[:, idle] - prior_mean[:, idle]) ** 2 / prior_variance[:, idle]
        lost = 0.5 * (ratio - 1 - ratio.log() + away).sum(1)
        return cls(DiagonalGaussian(mean[:, used], variance[:, used]), prior_mean, prior_variance, lost)


@torch.no_grad()
def _precision(sample: Sample, found: _Parts, best: DiagonalGaussian) -> float | None:
    """n / E‖x - f(z)‖² under the best posteriors; None where x is not what is decoded."""
    places, generator, errors = torch.tensor(sample.used), randomness.generator(0, "best posteriors"), []
    for _ in range(DRAWS):
        noise = torch.randn(best.mean.shape, generator=generator, dtype=best.mean.dtype)
        z = found.prior_mean.index_copy(1, places, best.mean + best.variance.sqrt() * noise)
        output, x = sample.decode(z), sample.x[: len(z)]
        if output.shape != x.shape or not bool(output.isfinite().all()):
            return None
        errors.append((x - output).square().sum(1))
    return sample.x.shape[1] / max(float(torch.stack(errors).mean()), 1e-300)


def _note(sample: Sample, found: _Parts) -> str:
    words = []
    if len(sample.used) < found.prior_mean.shape[1]:
        words.append("Latents at their prior are held at its mean.")
    if stated_beta(sample.model) != 1:
        words.append(f"It was trained with β = {stated_beta(sample.model):g}, which is part of what the encoder loses.")
    return " ".join(words)


def _log_likelihood(sample: Sample) -> Any:
    """(x, z) -> log p(x|z) of every row."""
    model = sample.model
    if getattr(model, "log_likelihood", None) is not None:
        own, like = model.log_likelihood, sample.seen.mean.dtype

        def given(x: Tensor, z: Tensor) -> Tensor:
            """In the precision of its networks; where that fails, in that of the samples."""
            found: Tensor = asked("log_likelihood", own, x.to(like), z.to(like))
            if found.shape != (len(z),):
                raise Skipped(f"log_likelihood must give a number per row, got {tuple(found.shape)} for {len(z)} rows")
            return found.to(z)

        return given
    if getattr(model, "likelihood", None) == "gaussian":
        precision = torch.tensor(float(model.precision), dtype=torch.float64)
        return lambda x, z: gaussian_log_likelihood((x - sample.decode(z)).square().sum(1), x.shape[1], precision)
    if getattr(model, "likelihood", None) == "bernoulli":

        def bernoulli(x: Tensor, z: Tensor) -> Tensor:
            p = sample.decode(z).clamp(BERNOULLI_FLOOR, 1 - BERNOULLI_FLOOR)
            return (torch.xlogy(x, p) + torch.special.xlog1py(1 - x, -p)).sum(1)

        return bernoulli
    raise Skipped("the likelihood is not known")
