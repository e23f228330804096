"""The gap between log p(x) and the ELBO of a model: exact if that is possible, by sampling otherwise."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import theory
from vaescope.analysis.encoding import EncodedSample, declared_beta, gauss_newton
from vaescope.analysis.likelihood import FEWEST, UNKNOWN, CodeMoments, mean_and_error, measure_moments
from vaescope.analysis.models import RepairedModel, likelihood_is_known, sample_log_likelihood
from vaescope.analysis.posteriors import Posteriors
from vaescope.core import randomness
from vaescope.core.budget import Budget
from vaescope.core.errors import InputError, Skipped, could_not_differentiate
from vaescope.distributions import DiagonalGaussian, Normal
from vaescope.inference.gap import QUADRATURE_ORDERS, quadrature_gap, sampled_gap


@dataclass(frozen=True, eq=False)
class ElboGap:
    """log p(x) - ELBO = family + amortization at each point, in nats."""

    log_marginal: Float[Tensor, " N"]
    elbo: Float[Tensor, " N"]
    family: Float[Tensor, " N"]
    amortization: Float[Tensor, " N"]
    contrast: Float[Tensor, " N"] | None
    """c_IMA at the best posteriors, if they are exact."""
    pareto_k: float | None
    note: str
    precision: float | None = None
    """γ² by maximum likelihood at the best posteriors, so that errors of the encoder do not count as noise."""
    excess_error: float | None = None
    """Squared error of reconstructions from the encoder's means over that from the best means, median over points."""
    codes: CodeMoments | None = None
    """Moments of the best posteriors, over all samples."""

    def mean(self, name: str) -> tuple[float, float]:
        """Mean of one part over points, and its standard error."""
        return mean_and_error(getattr(self, name))

    def to_data(self) -> dict[str, object]:
        names = ["log_marginal", "elbo", "family", "amortization"] + ([] if self.contrast is None else ["contrast"])
        parts: dict[str, object] = {n: dict(zip(("mean", "stderr"), self.mean(n), strict=True)) for n in names}
        return parts | {"pareto_k": self.pareto_k, "excess_error": self.excess_error, "note": self.note}


def measure_gap(sample: EncodedSample, used: list[int], budget: Budget) -> ElboGap:
    """The gap and its parts at as many samples as there is time for."""
    check_gap(sample, used)
    return gap_at(sample, used, affordable_points(sample, decodes_per_point(sample, used), budget))


def check_gap(sample: EncodedSample, used: list[int]) -> None:
    """Raise `Skipped` if the gap cannot be computed."""
    model = sample.model
    if isinstance(model, RepairedModel) and model.normal_prior is not None:
        raise Skipped("the gap is only computed for normal priors")
    if model.prior_density is not None:
        raise Skipped("the prior is given by functions; log p(x) is estimated without the parts of the gap")
    if model.posterior_density is not None:
        raise Skipped("the posterior is given by functions; log p(x) is estimated without the parts of the gap")
    if model.posterior_family != "diagonal":
        raise Skipped("encode returns the marginals of q(z|x), not q itself")
    if not used:
        raise Skipped("no latent is in use")
    if not likelihood_is_known(model):
        raise Skipped(UNKNOWN)
    if len(used) > 64:
        raise Skipped("more than 64 latents in use would take too long")


def gap_at(sample: EncodedSample, used: list[int], points: int) -> ElboGap:
    """The gap and its parts at the first `points` of the sample's random subset."""
    chosen, exact = _Points.of(sample.random_subset(points), used), _is_exact(sample, used)
    own = measure_moments(sample, used) if len(sample) >= FEWEST else None
    sample, contrast, k = chosen.sample, None, None
    model, x, index = sample.model, sample.observations, torch.tensor(used)
    base = chosen.base.mean(0)

    def decoder(v: Float[Tensor, "N u"]) -> Tensor:
        """The decoder as a function of the latents in use, with the others at their mean prior mean."""
        return sample.decode(base.to(v).expand(len(v), -1).index_copy(1, index, v))

    def curvature(v: Float[Tensor, "P u"]) -> Float[Tensor, "P u u"]:
        """Gauss-Newton curvature of -log p(x|z)."""
        with torch.no_grad():
            output = decoder(v).double()
        return (model.precision or 1.0) * gauss_newton(theory.jacobian(decoder, v), model.likelihood, output)

    def log_likelihood(rows: Tensor, v: Tensor) -> Tensor:
        return sample_log_likelihood(sample, rows)(x[rows], chosen.codes(rows, v))

    try:
        if exact:
            found = quadrature_gap(log_likelihood, chosen.posterior, chosen.prior, curvature)
            contrast = theory.ima_contrast(decoder, found.best.mean)
        else:
            plain = model.log_likelihood is None and not model.conditional
            found = sampled_gap(log_likelihood, chosen.posterior, chosen.prior, curvature=curvature if plain else None)
    except (RuntimeError, NotImplementedError, InputError) as error:
        raise could_not_differentiate(error) from None
    if not bool(found.log_marginal.isfinite().all()):
        raise Skipped("the likelihood of these samples is not finite")
    if found.pareto_k is None:
        notes = [f"By quadrature at {len(x)} samples."]
    else:
        k = float(found.pareto_k.max())
        notes = [f"Estimated by sampling at {len(x)} samples: amortization is a lower bound, family an upper bound."]
        if not bool(found.converged.all()):
            notes.append(f"The best posterior was not found at {int((~found.converged).sum())} of them.")
    if len(used) < chosen.base.shape[1]:
        notes.append("Latents that are not in use are held at their prior mean.")
    if (beta := declared_beta(model)) != 1:
        notes.append(f"The model was trained with β = {beta:g}, which contributes to the loss of the encoder.")
    return ElboGap(
        found.log_marginal.double(),
        found.elbo.double() - chosen.unused_kl,
        found.family.double(),
        found.amortization.double() + chosen.unused_kl,
        contrast,
        k,
        " ".join(notes),
        chosen.precision(found.best),
        chosen.excess_error(found.best),
        None if own is None else chosen.moments(own, found.best),
    )


def _is_exact(sample: EncodedSample, used: list[int]) -> bool:
    model = sample.model
    return model.log_likelihood is None and len(used) <= max(QUADRATURE_ORDERS) and not model.conditional


def decodes_per_point(sample: EncodedSample, used: list[int]) -> int:
    """About how often the decoder is called for one sample."""
    return 60 * QUADRATURE_ORDERS[len(used)][0] ** len(used) if _is_exact(sample, used) else 6000


def affordable_points(sample: EncodedSample, decodes: int, budget: Budget) -> int:
    """How many samples there is time for: from 4 to 32, in a quarter of the time left."""
    per_point = decodes * seconds_per_decode(sample)
    budget.need(4 * per_point)
    return int(max(4, min(32, 0.25 * budget.left / max(per_point, 1e-9))))


def seconds_per_decode(sample: EncodedSample) -> float:
    """The time that it takes to decode a code and differentiate, measured at a few codes; a first call may compile."""
    codes, seconds, log_p = sample.mean[:64].double(), [], None
    rows = torch.arange(len(codes))
    if not sample.model.has_decoder:
        log_p = sample_log_likelihood(sample, rows)
    for _ in range(2):
        started = time.monotonic()
        with torch.enable_grad():
            z = codes.clone().requires_grad_()
            output = sample.decode(z, slice(0, len(z))) if log_p is None else log_p(sample.observations[rows], z)
            if output.requires_grad:
                torch.autograd.grad(output.sum(), z, allow_unused=True)  # leaves no gradients in the user's networks
        seconds.append((time.monotonic() - started) / len(codes))
        if seconds[0] * len(codes) < 0.1:  # nothing was compiled
            break
    return min(seconds)


@dataclass(frozen=True, eq=False)
class _Points:
    """Samples with the posteriors of latents in use; the other latents are held at their prior mean."""

    sample: EncodedSample
    used: list[int]
    posterior: DiagonalGaussian
    prior: Normal
    """Of the latents in use, a row per sample."""
    base: Float[Tensor, "P d"]
    """Prior means of all latents."""
    unused_kl: Float[Tensor, " P"]
    """KL of the other latents, which is lost."""

    @classmethod
    def of(cls, sample: EncodedSample, used: list[int]) -> _Points:
        values = (sample.mean, sample.variance, sample.prior_mean, sample.prior_variance)
        mean, variance, prior_mean, prior_variance = (value.double().cpu() for value in values)
        unused = [k for k in range(mean.shape[1]) if k not in used]
        others = Posteriors(*(v[:, unused].numpy() for v in (mean, variance, prior_mean, prior_variance)))
        return cls(
            sample,
            used,
            DiagonalGaussian(mean[:, used], variance[:, used]),
            Normal(prior_mean[:, used], prior_variance[:, used]),
            prior_mean,
            torch.from_numpy(others.kl.sum(1)),
        )

    def codes(self, rows: Tensor, v: Float[Tensor, "N u"]) -> Float[Tensor, "N d"]:
        """Codes of these rows with the latents in use at v."""
        return self.base[rows].to(v).index_copy(1, torch.tensor(self.used), v)

    def moments(self, own: CodeMoments, best: DiagonalGaussian) -> CodeMoments:
        """Of the best posteriors: those of the encoder over all samples, changed as at these points.

        Points are few, but what changes with better posteriors varies less between them than codes do: nothing does if
        the encoder is optimal.
        """
        centre, width = (torch.as_tensor(v).to(best.mean) for v in (self.prior.mean, self.prior.variance))
        here, there = ((q.mean - centre) / width.sqrt() for q in (self.posterior, best))
        squares = [shift.square() + q.variance / width for shift, q in ((here, self.posterior), (there, best))]
        ratio, root = squares[1].mean(0) / squares[0].mean(0), len(here) ** 0.5
        shifted, changed = there - here, (squares[1] - ratio * squares[0]) / squares[0].mean(0)
        mean_error, square_error = (values.std(0).numpy() / root for values in (shifted, changed))
        factor = ratio.numpy()
        return CodeMoments(
            own.latents,
            own.mean + shifted.mean(0).numpy(),
            np.hypot(own.mean_error, mean_error),
            own.square * factor,
            np.hypot(factor * own.square_error, own.square * square_error),
        )

    @torch.no_grad()
    def precision(self, best: DiagonalGaussian) -> float | None:
        """n / E‖x - f(z)‖² under these posteriors; None without outputs, or if they and x differ in shape."""
        if not self.sample.model.has_decoder:
            return None
        generator, errors, x = randomness.generator(0, "best posteriors"), [], self.sample.observations
        for _ in range(16):
            noise = torch.randn(best.mean.shape, generator=generator, dtype=best.mean.dtype)
            output = self.sample.decode(self.codes(torch.arange(len(x)), best.sample(noise)))
            if output.shape != x.shape or not bool(output.isfinite().all()):
                return None
            errors.append((x - output).square().sum(1))
        return x.shape[1] / max(float(torch.stack(errors).mean()), 1e-300)

    @torch.no_grad()
    def excess_error(self, best: DiagonalGaussian) -> float | None:
        """None if outputs and x differ in shape, or if a likelihood of the user says what an error is."""
        if self.sample.model.log_likelihood is not None:
            return None
        x, rows = self.sample.observations, torch.arange(len(self.sample))
        outputs = [self.sample.decode(self.codes(rows, mean)) for mean in (self.posterior.mean, best.mean)]
        if any(output.shape != x.shape for output in outputs):
            return None
        own, least = ((x - output).double().square().sum(1) for output in outputs)
        ratio = own / least.clamp(min=1e-300)
        return float(ratio.median()) if bool(ratio.isfinite().all()) else None
