"""The gap between log p(x) and the ELBO: exact if that is possible, by sampling otherwise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope import theory
from vaescope.analysis.encoding import EncodedSample, declared_beta, output_weights
from vaescope.analysis.likelihood import UNKNOWN
from vaescope.analysis.models import RepairedModel, likelihood_is_known, sample_log_likelihood
from vaescope.analysis.posteriors import Posteriors
from vaescope.core import randomness
from vaescope.core.errors import InputError, Skipped, could_not_differentiate
from vaescope.distributions import DiagonalGaussian, Normal, kl
from vaescope.distributions.quadrature import hermite_grid
from vaescope.inference.derivatives import Decoder
from vaescope.inference.marginal import sampled_gap
from vaescope.protocol import LatentModel
from vaescope.report.budget import Budget

LogLikelihood = Callable[[Tensor, Tensor], Tensor]
"""(rows, z) -> log p(x|z): row i of z is a code of point rows[i]."""
Curvature = Callable[[Tensor], Tensor]
"""(P, d) codes, one per point -> (P, d, d) expected curvatures of -log p(x|z)."""

ORDERS = {1: (7, 15, 31), 2: (4, 7, 13), 3: (3, 5, 9), 4: (3, 5)}
"""Quadrature orders by number of latents."""
STEPS = 40
MODE_STEPS = 20
TOLERANCE = 0.01  # nats
CODES_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class QuadratureGap:
    """log p(x), the ELBO and the best ELBO of each point."""

    log_marginal: Float[Tensor, " P"]
    elbo: Float[Tensor, " P"]
    best_elbo: Float[Tensor, " P"]
    best: DiagonalGaussian
    converged: Bool[Tensor, " P"]
    error: float
    """Largest change from the last quadrature order to the one before, of log p(x) and of the best ELBO."""


def quadrature_gap(
    log_likelihood: LogLikelihood,
    posterior: DiagonalGaussian,
    prior: Normal,
    curvature: Curvature,
    *,
    tolerance: float = TOLERANCE,
) -> QuadratureGap:
    """Split the gap of an encoder with at most four latents.

    Args:
        log_likelihood: (rows, z) -> log p(x|z), where z[i] is a code of point rows[i].
        posterior: the encoder's posteriors, one per point.
        prior: with a row per point.
        curvature: Gauss-Newton curvature of -log p(x|z) at one code per point.
        tolerance: nats by which the result may change at the next quadrature order.

    >>> x = torch.zeros(4, 1, dtype=torch.float64)
    >>> q = DiagonalGaussian(x + 0.3, 0 * x + 0.5)
    >>> ones = torch.ones(4, 1, 1, dtype=torch.float64)
    >>> prior = Normal(x, 0 * x + 1)
    >>> found = quadrature_gap(lambda rows, z: -0.5 * ((x[rows] - z) ** 2).sum(1), q, prior, lambda z: ones)
    >>> round(float((found.best_elbo - found.elbo)[0]), 2)
    0.09
    """
    problem = _Problem(log_likelihood, prior, curvature, posterior.mean.shape[1])
    orders = ORDERS[problem.dim]
    start = _better(problem, posterior, problem.at_mode(posterior.mean), orders[0])
    best, converged = _ascend(problem, start, orders[0], tolerance)
    coarse = problem.elbo(best, orders[0])
    error = math.inf
    for order in orders[1:]:
        fine = problem.elbo(best, order)
        error = float((fine - coarse).abs().max())
        coarse = fine
        if error <= tolerance:
            break
        best, converged = _ascend(problem, best, order, tolerance)
        coarse = problem.elbo(best, order)
    elbo = problem.elbo(posterior, order)
    better = coarse >= elbo
    best = DiagonalGaussian(*(torch.where(better[:, None], a, b) for a, b in _pairs(best, posterior)))
    value, change = problem.log_marginal(best.mean, tolerance)
    return QuadratureGap(value, elbo, torch.maximum(coarse, elbo), best, converged, max(error, change))


@dataclass(frozen=True, eq=False)
class _Problem:
    log_likelihood: LogLikelihood
    prior: Normal
    curvature: Curvature
    dim: int

    def evaluate(self, z: Float[Tensor, "P Q d"], *, slope: bool = False) -> tuple[Tensor, Tensor | None]:
        """log p(x|z) of all codes (P, Q), and its gradient in z."""
        rows = torch.arange(len(z)).repeat_interleave(z.shape[1])
        values, slopes = [], []
        for r, part in zip(rows.split(CODES_AT_ONCE), z.flatten(0, 1).split(CODES_AT_ONCE), strict=True):
            with torch.set_grad_enabled(slope):
                codes = part.detach().requires_grad_(slope)
                value = self.log_likelihood(r, codes)
                if slope and not value.requires_grad:
                    raise InputError("the decoder detaches its output from its input")
                if slope:
                    slopes.append(torch.autograd.grad(value.sum(), codes)[0])
                values.append(value.detach())
        found = torch.cat(values).reshape(z.shape[:2])
        return found, torch.cat(slopes).reshape(z.shape) if slope else None

    def elbo(self, q: DiagonalGaussian, order: int) -> Float[Tensor, " P"]:
        nodes, weights = hermite_grid(self.dim, order, q.mean)
        return self.evaluate(_codes(q, nodes))[0] @ weights - kl(q, self.prior)

    def gradients(self, q: DiagonalGaussian, order: int) -> tuple[Tensor, Tensor, Tensor]:
        """The ELBO, its gradient in the mean, and E[-∂²log p(x|z)/∂z_k²] by Stein's identity."""
        nodes, weights = hermite_grid(self.dim, order, q.mean)
        value, slope = self.evaluate(_codes(q, nodes), slope=True)
        assert slope is not None
        slope = slope.nan_to_num(0.0, 0.0, 0.0)
        pull = (q.mean - torch.as_tensor(self.prior.mean)) / torch.as_tensor(self.prior.variance)
        gradient = torch.einsum("q,pqd->pd", weights, slope) - pull
        curved = -torch.einsum("q,pqd,qd->pd", weights, slope, nodes) / q.variance.sqrt()
        return value @ weights - kl(q, self.prior), gradient, curved

    def precision(self, z: Float[Tensor, "P d"]) -> Float[Tensor, "P d d"]:
        """Σ†⁻¹ + curvature."""
        return self.curvature(z) + torch.diag_embed(1 / torch.as_tensor(self.prior.variance).to(z))

    def log_joint(self, z: Float[Tensor, "P Q d"]) -> Float[Tensor, "P Q"]:
        prior = Normal(*(torch.as_tensor(v).unsqueeze(1) for v in (self.prior.mean, self.prior.variance)))
        return self.evaluate(z)[0] + prior.log_density(z).sum(-1)

    def at_mode(self, start: Float[Tensor, "P d"]) -> DiagonalGaussian:
        """Eq. 12 at the mode of log p(x, z), by damped Gauss-Newton steps."""
        z, size = start.clone(), torch.ones(len(start), 1).to(start)
        value = self.log_joint(z.unsqueeze(1)).squeeze(1)
        for _ in range(MODE_STEPS):
            _, slope = self.evaluate(z.unsqueeze(1), slope=True)
            assert slope is not None
            pull = (z - torch.as_tensor(self.prior.mean)) / torch.as_tensor(self.prior.variance)
            step = torch.linalg.solve(self.precision(z), (slope.squeeze(1) - pull).unsqueeze(2)).squeeze(2)
            trial = z + size * step
            found = self.log_joint(trial.unsqueeze(1)).squeeze(1)
            better = found > value
            gained = float((found - value)[better].detach().max()) if bool(better.any()) else 0.0
            z, value = torch.where(better[:, None], trial, z), torch.where(better, found, value)
            size = torch.where(better[:, None], (2 * size).clamp(max=1), size / 4)
            if gained < 1e-3 and float(size.min()) > 1e-3:
                break
        return DiagonalGaussian(z, 1 / self.precision(z).diagonal(dim1=1, dim2=2))

    def log_marginal(self, mean: Float[Tensor, "P d"], tolerance: float) -> tuple[Tensor, float]:
        """log p(x) with nodes placed by the Laplace covariance, and the change at the last order."""
        factor = torch.linalg.cholesky(torch.linalg.inv(self.precision(mean)))
        log_volume = factor.diagonal(dim1=1, dim2=2).log().sum(-1) + 0.5 * self.dim * math.log(2 * math.pi)
        value, change = None, math.inf
        for order in ORDERS[self.dim]:
            nodes, weights = hermite_grid(self.dim, order, mean)
            z = mean.unsqueeze(1) + torch.einsum("pij,qj->pqi", factor, nodes)
            found = torch.logsumexp(self.log_joint(z) + weights.log() + 0.5 * nodes.square().sum(-1), 1) + log_volume
            change = math.inf if value is None else float((found - value).abs().max())
            value = found
            if change <= tolerance:
                break
        assert value is not None
        return value, change


def _codes(q: DiagonalGaussian, nodes: Float[Tensor, "Q d"]) -> Float[Tensor, "P Q d"]:
    return q.mean.unsqueeze(1) + q.variance.sqrt().unsqueeze(1) * nodes


def _pairs(a: DiagonalGaussian, b: DiagonalGaussian) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    return (a.mean, b.mean), (a.variance, b.variance)


def _better(problem: _Problem, a: DiagonalGaussian, b: DiagonalGaussian, order: int) -> DiagonalGaussian:
    higher = problem.elbo(a, order) > problem.elbo(b, order)
    return DiagonalGaussian(*(torch.where(higher[:, None], *pair) for pair in _pairs(a, b)))


def _ascend(
    problem: _Problem, start: DiagonalGaussian, order: int, tolerance: float
) -> tuple[DiagonalGaussian, Bool[Tensor, " P"]]:
    """Newton steps in the mean, fixed-point steps 1/σ² = 1/σ†² + E[-∂²log p(x|z)] in the variances, both damped."""
    q, size = start, torch.ones(len(start.mean), 1).to(start.mean)
    value, gradient, curved = problem.gradients(q, order)
    prior_precision = 1 / torch.as_tensor(problem.prior.variance).to(q.mean)
    converged = torch.zeros(len(value), dtype=torch.bool)
    for _ in range(STEPS):
        full = problem.precision(q.mean)
        step = torch.linalg.solve(full, gradient.unsqueeze(2)).squeeze(2)
        wanted = (prior_precision + curved).clamp(min=0.1 * prior_precision)
        log_step = (1 / wanted).log() - q.variance.log()
        trial = DiagonalGaussian(q.mean + size * step, q.variance * (size * log_step).clamp(-3, 3).exp())
        found = problem.gradients(trial, order)
        better = found[0] > value
        gain = torch.where(better, found[0] - value, torch.zeros_like(value))
        converged = torch.where(better, gain < tolerance / 10, converged | (size.squeeze(1) < 1e-2))
        q = DiagonalGaussian(*(torch.where(better[:, None], *pair) for pair in _pairs(trial, q)))
        value, gradient, curved = (
            torch.where(better if new.ndim == 1 else better[:, None], new, old)
            for new, old in zip(found, (value, gradient, curved), strict=True)
        )
        size = torch.where(better[:, None], (2 * size).clamp(max=1), size / 3)
        if bool(converged.all()):
            break
    return q, converged


POINTS = 32  # samples at which the gap is measured
FEWEST_POINTS = 4
DECODED = 64  # codes whose decoding is timed
QUADRATURE_DECODES = 60  # times the nodes of the lowest order: decodings per point
SAMPLED_DECODES = 6000  # decodings per point
DRAWS = 16  # of the best posterior, for its errors
LARGEST_EXACT = max(ORDERS)  # latents in use up to which expectations are quadratures
LARGEST_SAMPLED = 64  # latents in use up to which the gap is estimated


@dataclass(frozen=True, eq=False)
class ElboGap:
    """log p(x) - ELBO = family + amortisation at each point, in nats."""

    log_marginal: Float[Tensor, " N"]
    elbo: Float[Tensor, " N"]
    family: Float[Tensor, " N"]
    amortisation: Float[Tensor, " N"]
    contrast: Float[Tensor, " N"] | None
    """c_IMA at the best posteriors, if they are exact."""
    pareto_k: float | None
    note: str
    precision: float | None = None
    """γ² by maximum likelihood at the best posteriors, so that errors of the encoder do not count as noise."""
    excess_error: float | None = None
    """Squared error of reconstructions from the encoder's means over that from the best means, median over points."""

    def mean(self, name: str) -> tuple[float, float]:
        """Mean of one part over points, and its standard error."""
        values: Tensor = getattr(self, name)
        return float(values.mean()), float(values.std() / max(1, len(values)) ** 0.5) if len(values) > 1 else math.nan

    def to_data(self) -> dict[str, object]:
        names = ["log_marginal", "elbo", "family", "amortisation"] + ([] if self.contrast is None else ["contrast"])
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
    if len(used) > LARGEST_SAMPLED:
        raise Skipped(f"more than {LARGEST_SAMPLED} latents in use would take too long")


def gap_at(sample: EncodedSample, used: list[int], points: int) -> ElboGap:
    """The gap and its parts at the first `points` of the sample's random subset."""
    chosen = _Points.of(sample.random_subset(points), used)
    return _quadrature(chosen) if _is_exact(sample, used) else _sampled(chosen)


def _is_exact(sample: EncodedSample, used: list[int]) -> bool:
    model = sample.model
    return model.log_likelihood is None and len(used) <= LARGEST_EXACT and not model.conditional


def decodes_per_point(sample: EncodedSample, used: list[int]) -> int:
    """About how often the decoder is called for one sample."""
    exact = _is_exact(sample, used)
    return QUADRATURE_DECODES * ORDERS[len(used)][0] ** len(used) if exact else SAMPLED_DECODES


def affordable_points(sample: EncodedSample, decodes: int, budget: Budget) -> int:
    """How many samples there is time for."""
    per_point = decodes * seconds_per_decode(sample)
    budget.need(FEWEST_POINTS * per_point)
    return int(max(FEWEST_POINTS, min(POINTS, 0.25 * budget.left / max(per_point, 1e-9))))


def seconds_per_decode(sample: EncodedSample) -> float:
    """The time that it takes to decode a code and differentiate, measured at a few codes."""
    codes = sample.mean[:DECODED].double()
    started = time.monotonic()
    with torch.enable_grad():
        output = sample.decode(codes.clone().requires_grad_(), slice(0, len(codes)))
        if output.requires_grad:
            output.sum().backward()
    return (time.monotonic() - started) / len(codes)


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

    def decoder(self, base: Float[Tensor, " d"]) -> Decoder:
        """The decoder as a function of the latents in use, with the others at `base`."""
        index = torch.tensor(self.used)
        return lambda v: self.sample.decode(base.to(v).expand(len(v), -1).index_copy(1, index, v))

    def note(self) -> str:
        notes = []
        if len(self.used) < self.base.shape[1]:
            notes.append("Latents that are not in use are held at their prior mean.")
        if (beta := declared_beta(self.sample.model)) != 1:
            notes.append(f"The model was trained with β = {beta:g}, which contributes to the loss of the encoder.")
        return " ".join(notes)

    @torch.no_grad()
    def precision(self, best: DiagonalGaussian) -> float | None:
        """n / E‖x - f(z)‖² under these posteriors; None if outputs and x differ in shape."""
        generator, errors, x = randomness.generator(0, "best posteriors"), [], self.sample.observations
        for _ in range(DRAWS):
            noise = torch.randn(best.mean.shape, generator=generator, dtype=best.mean.dtype)
            output = self.sample.decode(self.codes(torch.arange(len(x)), best.sample(noise)))
            if output.shape != x.shape or not bool(output.isfinite().all()):
                return None
            errors.append((x - output).square().sum(1))
        return x.shape[1] / max(float(torch.stack(errors).mean()), 1e-300)

    @torch.no_grad()
    def excess_error(self, best: DiagonalGaussian) -> float | None:
        """None if outputs and x differ in shape, or if a likelihood of the user says what an error is."""
        x, rows = self.sample.observations, torch.arange(len(self.sample))
        outputs = [self.sample.decode(self.codes(rows, mean)) for mean in (self.posterior.mean, best.mean)]
        if self.sample.model.log_likelihood is not None or any(output.shape != x.shape for output in outputs):
            return None
        own, least = ((x - output).double().square().sum(1) for output in outputs)
        ratio = own / least.clamp(min=1e-300)
        return float(ratio.median()) if bool(ratio.isfinite().all()) else None


def _quadrature(points: _Points) -> ElboGap:
    decoder = points.decoder(points.base.mean(0))
    log_p, x = sample_log_likelihood(points.sample), points.sample.observations
    try:
        found = quadrature_gap(
            lambda rows, v: log_p(x[rows], points.codes(rows, v)),
            points.posterior,
            points.prior,
            lambda v: _curvature(points.sample.model, decoder, v),
        )
        contrast = theory.ima_contrast(decoder, found.best.mean)
    except (RuntimeError, NotImplementedError, InputError) as error:
        raise could_not_differentiate(error) from None
    if not bool(found.log_marginal.isfinite().all()):
        raise Skipped("the likelihood of these samples is not finite")
    return ElboGap(
        found.log_marginal,
        found.elbo - points.unused_kl,
        found.log_marginal - found.best_elbo,
        found.best_elbo - found.elbo + points.unused_kl,
        contrast,
        None,
        f"By quadrature at {len(x)} samples. {points.note()}".strip(),
        points.precision(found.best),
        points.excess_error(found.best),
    )


def _curvature(model: LatentModel, decoder: Decoder, v: Float[Tensor, "P u"]) -> Float[Tensor, "P u u"]:
    """Gauss-Newton curvature of -log p(x|z)."""
    with torch.no_grad():
        weights = output_weights(model.likelihood, decoder(v).double())
    J = theory.jacobian(decoder, v) * weights
    return (model.precision or 1.0) * J.mT @ J


def _sampled(points: _Points) -> ElboGap:
    model, x = points.sample.model, points.sample.observations
    decoder = points.decoder(points.base.mean(0))
    plain = model.log_likelihood is None and not model.conditional
    try:
        found = sampled_gap(
            lambda rows, v: sample_log_likelihood(points.sample, rows)(x[rows], points.codes(rows, v)),
            points.posterior,
            points.prior,
            curvature=(lambda v: _curvature(model, decoder, v)) if plain else None,
        )
    except (RuntimeError, NotImplementedError, InputError) as error:
        raise could_not_differentiate(error) from None
    if not bool(found.log_marginal.isfinite().all()):
        raise Skipped("the likelihood of these samples is not finite")
    note = f"Estimated by sampling at {len(x)} samples: amortisation is a lower bound, family an upper bound."
    if not bool(found.converged.all()):
        note += f" The best posterior was not found at {int((~found.converged).sum())} of them."
    return ElboGap(
        found.log_marginal.double(),
        found.elbo.double() - points.unused_kl,
        found.family.double(),
        found.amortisation.double() + points.unused_kl,
        None,
        float(found.pareto_k.max()),
        f"{note} {points.note()}".strip(),
        points.precision(found.best),
        points.excess_error(found.best),
    )
