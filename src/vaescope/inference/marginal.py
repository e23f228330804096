"""log p(x) by quadrature, importance sampling or change of variables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.core import randomness
from vaescope.core.checks import choice, whole_number
from vaescope.core.errors import InputError
from vaescope.distributions import DiagonalGaussian, FullGaussian, Normal, Prior, quadrature
from vaescope.inference.derivatives import Decoder, jacobians
from vaescope.inference.geometry import check_support
from vaescope.inference.joint import (
    InvertibleDecoder,
    Problem,
    latent_dimension,
    matched_nodes,
    prepare,
    transform_nodes,
)
from vaescope.inference.projection import find_mode, find_preimage


def fit_generalised_pareto(excess: Float[Tensor, "N m"]) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Shape k and scale σ of the tail (Zhang & Stephens 2009), with the weak prior on k of PSIS.

    Args:
        excess: positive values in ascending order.
    """
    count = excess.shape[1]
    grid = 30 + int(math.sqrt(count))
    index = torch.arange(1, grid + 1, dtype=excess.dtype, device=excess.device)
    quartile = excess[:, int(count / 4 + 0.5) - 1].clamp_min(torch.finfo(excess.dtype).tiny)
    b = (1 - (grid / (index - 0.5)).sqrt()) / (3 * quartile[:, None]) + 1 / excess[:, -1:]
    k = torch.log1p(-b[:, :, None] * excess[:, None, :]).mean(-1)
    profile = count * (torch.log(-b / k) - k - 1)
    weights = torch.softmax(profile, dim=1)
    best = (b * weights).sum(1)
    shape = torch.log1p(-best[:, None] * excess).mean(-1)
    scale = -shape / best
    return (count * shape + 10 * 0.5) / (count + 10), scale


def smooth(log_weights: Float[Tensor, "N S"]) -> tuple[Float[Tensor, "N S"], Float[Tensor, " N"]]:
    """Log-weights with their largest values smoothed, and the k̂ of each row.

    Estimates with k̂ below 0.7 are reliable. A row with constant weights has k̂ = -inf.
    """
    samples = log_weights.shape[1]
    tail = min(samples // 5, math.ceil(3 * math.sqrt(samples)))
    ordered, index = (log_weights - log_weights.amax(1, keepdim=True)).sort(dim=1)
    cutoff = ordered[:, -tail - 1].exp()
    excess = (ordered[:, -tail:].exp() - cutoff[:, None]).clamp_min(0)
    flat = excess[:, -1] <= 1e-12 * (1 + cutoff)
    safe = torch.where(flat[:, None], torch.linspace(0.1, 1, tail, dtype=excess.dtype, device=excess.device), excess)
    k, scale = fit_generalised_pareto(safe)
    probability = (torch.arange(tail, dtype=excess.dtype, device=excess.device) + 0.5) / tail
    quantiles = scale[:, None] * torch.expm1(-k[:, None] * torch.log1p(-probability)) / k[:, None]
    smoothed = (cutoff[:, None] + quantiles).clamp(max=1).log()
    ordered = torch.cat([ordered[:, :-tail], torch.where(flat[:, None], ordered[:, -tail:], smoothed)], dim=1)
    result = torch.empty_like(ordered).scatter_(1, index, ordered)
    return result + log_weights.amax(1, keepdim=True), torch.where(flat, -math.inf, k)


METHODS = ("quadrature", "importance", "flow")
LARGEST_DIM = 8  # latents that quadrature supports
ORDERS = (5, 9, 15, 25, 41)
LARGEST_GRID = 20_000
SAMPLES = 4000
FREEDOM = 5.0  # degrees of freedom of the Student proposal: heavier tails than any posterior with a Gaussian prior
RESOLVED = 1e-10  # change from one quadrature order to the next


@dataclass(frozen=True, eq=False)
class LogMarginal:
    """log p(x) of each point with its error.

    `stderr` is the standard error (importance), the change between the last two quadrature orders (quadrature), or
    zero (flow). `pareto_k` is the k̂ of importance sampling; values above 0.7 mean that the estimate is unreliable.
    """

    value: Float[Tensor, " N"]
    stderr: Float[Tensor, " N"]
    pareto_k: Float[Tensor, " N"] | None


def log_marginal(
    decoder: Decoder,
    x: Float[Tensor, "N ..."],
    *,
    precision: float | Float[Tensor, " N"],
    prior: Prior | None = None,
    method: str = "quadrature",
    start: Float[Tensor, "N d"] | None = None,
    latent_dim: int | None = None,
    proposal: FullGaussian | None = None,
    samples: int = SAMPLES,
    seed: int = 0,
) -> LogMarginal:
    """log p(x) = log ∫ p(x|z) p₀(z) dz of each point.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        x: observations.
        precision: γ² = 1 / decoder variance; one number, or one for each observation.
        prior: N(0, I) by default.
        method: `quadrature` places Gauss–Hermite nodes by the Laplace covariance at the mode; up to eight latents and
            one mode. `importance` is Pareto-smoothed importance sampling for any number of latents. `flow` is the
            change of variables, the γ → ∞ value, for invertible decoders with as many outputs as latents; it ignores
            the precision.
        start: latents from which to search for the mode.
        latent_dim: the number of latents; needed only if the decoder takes codes of several sizes.
        proposal: a Gaussian (in u) for importance sampling, instead of a Student distribution with the Laplace
            covariance.
        samples: draws per point of importance sampling.
        seed: of importance sampling.

    >>> x = torch.zeros(1, 1, dtype=torch.float64)
    >>> log_marginal(lambda z: z, x, precision=1.0).value  # log N(0; 0, 2)
    tensor([-1.2655], dtype=torch.float64)
    """
    choice("method", method, METHODS)
    prior = Normal() if prior is None else prior
    guess = start if proposal is None else proposal.mean
    dim = latent_dimension(decoder, x, prior, start=guess, latent_dim=latent_dim)
    problem, guess = prepare(decoder, x, precision, prior, start, dim)
    if method == "flow":
        return _flow(problem, guess)
    if method == "importance" and proposal is not None:
        return _importance(problem, proposal.mean, proposal.scale, samples, seed, freedom=math.inf)
    mode = find_mode(problem, guess)
    factor = torch.linalg.cholesky(torch.linalg.inv(problem.laplace_precision(mode)))
    if method == "importance":
        return _importance(problem, mode, factor, samples, seed, freedom=FREEDOM)
    return _quadrature(problem, mode, factor)


def _quadrature(problem: Problem, mode: Tensor, factor: Tensor) -> LogMarginal:
    if problem.dim > LARGEST_DIM:
        raise InputError(
            f"method 'quadrature' supports up to {LARGEST_DIM} latents, got {problem.dim}; use method='importance'."
        )
    orders = [o for o in ORDERS if o**problem.dim <= LARGEST_GRID] or [3]
    orders = orders if len(orders) > 1 else [max(2, orders[0] - 1), orders[0]]
    value = _integrate(problem, mode, factor, orders[0])
    error = torch.full_like(value, math.inf)
    unresolved = torch.arange(len(value), device=value.device)
    for order in orders[1:]:
        finer = _integrate(problem.take(unresolved), mode[unresolved], factor[unresolved], order)
        error[unresolved] = (finer - value[unresolved]).abs()
        value[unresolved] = finer
        unresolved = unresolved[error[unresolved] > RESOLVED]
        if not len(unresolved):
            break
    return LogMarginal(value, error, None)


def _integrate(problem: Problem, mode: Tensor, factor: Tensor, order: int) -> Tensor:
    """log |A| (2π)^{d/2} Σ_q w_q exp(log p(x, u_q) + ½ ‖t_q‖²), u_q = mode + A t_q."""
    nodes, weights = quadrature.hermite_grid(problem.dim, order, mode)
    correction = weights.log() + 0.5 * nodes.square().sum(-1)
    values = []
    for rows in problem.chunks(len(nodes)):
        joint = problem.take(rows).log_joint(transform_nodes(mode[rows], factor[rows], nodes))
        values.append(torch.logsumexp(joint + correction, dim=1))
    log_volume = factor.diagonal(dim1=1, dim2=2).log().sum(-1) + 0.5 * problem.dim * math.log(2 * math.pi)
    return torch.cat(values) + log_volume


def _importance(
    problem: Problem, mean: Tensor, factor: Tensor, samples: int, seed: int, *, freedom: float
) -> LogMarginal:
    """Weights p(x, u) / q(u); q is a Student distribution, or a Gaussian if `freedom` is infinite."""
    whole_number("samples", samples, minimum=100)
    generator = randomness.generator(seed, "importance")
    log_volume = factor.diagonal(dim1=1, dim2=2).log().sum(-1)
    values, errors, shapes = [], [], []
    for rows in problem.chunks(samples):
        noise = draw_student(len(mean[rows]), samples, problem.dim, freedom, generator).to(mean)
        u = mean[rows].unsqueeze(1) + torch.einsum("nij,nqj->nqi", factor[rows], noise)
        log_q = log_student(noise, freedom) - log_volume[rows, None]
        weights, k = smooth(problem.take(rows).log_joint(u) - log_q)
        value = torch.logsumexp(weights, dim=1) - math.log(samples)
        relative = (weights - value[:, None]).exp()
        values.append(value)
        errors.append(relative.std(dim=1) / math.sqrt(samples))
        shapes.append(k)
    return LogMarginal(torch.cat(values), torch.cat(errors), torch.cat(shapes))


def draw_student(points: int, samples: int, dim: int, freedom: float, generator: torch.Generator) -> Tensor:
    """(points, samples, dim) draws of the standard Student distribution; normal if `freedom` is infinite."""
    noise = torch.randn(points, samples, dim, generator=generator, dtype=torch.float64)
    if math.isinf(freedom):
        return noise
    half = torch.full((points, samples, 1), freedom / 2, dtype=torch.float64)
    return noise * (half / torch._standard_gamma(half, generator=generator)).sqrt()


def log_student(t: Tensor, freedom: float) -> Tensor:
    """log-density of the standard multivariate Student distribution; normal if `freedom` is infinite."""
    d, squares = t.shape[-1], t.square().sum(-1)
    if math.isinf(freedom):
        return -0.5 * squares - 0.5 * d * math.log(2 * math.pi)
    constant = math.lgamma((freedom + d) / 2) - math.lgamma(freedom / 2) - 0.5 * d * math.log(freedom * math.pi)
    return constant - 0.5 * (freedom + d) * torch.log1p(squares / freedom)


def _flow(problem: Problem, guess: Tensor | None) -> LogMarginal:
    """log p₀(g(x)) - log |det J(g(x))| (Reizinger et al. 2022, Eq. 4)."""
    if problem.x.shape[1] != problem.dim:
        raise InputError(f"method 'flow' needs as many outputs as latents, got {problem.x.shape[1]} and {problem.dim}.")
    z = inverse_latents(problem, guess, "method 'flow'")
    log_det = torch.cat([torch.linalg.slogdet(J).logabsdet for J in jacobians(problem.decoder, z)])
    value = problem.prior.log_density(z).sum(-1) - log_det
    return LogMarginal(value, torch.zeros_like(value), None)


def inverse_latents(problem: Problem, guess: Float[Tensor, "N d"] | None, name: str) -> Float[Tensor, "N d"]:
    """g(x): the latents that decode to x.

    Args:
        problem: as many outputs as latents, or more.
        guess: a start in u, exact for a decoder with its own inverse.
        name: of what needs them, for the error if x is not in the decoder's image.
    """
    square = problem.x.shape[1] == problem.dim
    known = guess is not None and square and isinstance(problem.decoder, InvertibleDecoder)
    u = guess if guess is not None and known else find_preimage(problem, guess)
    residual = (problem.output(u) - problem.x).norm(dim=1)
    outside = ~(residual <= 1e-6 * (1 + problem.x.norm(dim=1)))
    if bool(outside.any()):
        raise InputError(
            f"{name} needs x in the decoder's image, but {int(outside.sum())} of {len(u)} points are not "
            f"(the first is row {int(outside.nonzero()[0])})."
        )
    z = problem.prior.to_support(u)
    check_support(z, problem.prior, "g(x)")
    return z


LogLikelihood = Callable[[Tensor, Tensor], Tensor]
"""(rows, z) -> log p(x|z): row i of z (N, d) is a code of point rows[i]."""
Curvature = Callable[[Tensor], Tensor]
"""(P, d) codes, one per point -> (P, d, d) curvatures of -log p(x|z)."""

NEWTON_STEPS = 30  # towards the mode, if the curvature of the likelihood is known
STEPS = 240
ASCENT_DRAWS = 8  # per point and step, mirrored
FIRST_STEP = 0.3  # initial step size, in standard deviations of the starting posterior
SECOND_STEP = 0.05  # initial step size of a second, shorter ascent, which should gain nothing
LAST_STEP = 0.005
CONVERGED = 0.1  # nats that the second ascent may gain
ELBO_DRAWS = 256  # codes for the reported ELBOs, the same for both posteriors
PROPOSALS = 1000  # draws per point of importance sampling
CODES_AT_ONCE = 512  # decoded codes in memory at a time


@dataclass(frozen=True, eq=False)
class SampledGap:
    """log p(x) - ELBO = family + amortisation at each point, in nats; `amortisation` is a lower bound."""

    log_marginal: Float[Tensor, " N"]
    elbo: Float[Tensor, " N"]
    best_elbo: Float[Tensor, " N"]
    best: DiagonalGaussian
    pareto_k: Float[Tensor, " N"]
    converged: Bool[Tensor, " N"]
    """Whether the best posterior was found; otherwise `family` is too large and `amortisation` too small."""

    @property
    def family(self) -> Float[Tensor, " N"]:
        return self.log_marginal - self.best_elbo

    @property
    def amortisation(self) -> Float[Tensor, " N"]:
        return self.best_elbo - self.elbo


def sampled_gap(
    log_likelihood: LogLikelihood,
    posterior: DiagonalGaussian,
    prior: Normal,
    *,
    curvature: Curvature | None = None,
    seed: int = 0,
) -> SampledGap:
    """Split the gap of an encoder.

    Args:
        log_likelihood: (rows, z) -> log p(x|z), where z[i] is a code of point rows[i].
        posterior: the encoder's posteriors, one per point.
        prior: one for all points, or with a row per point.
        curvature: of -log p(x|z), at one code per point; it shapes the proposals of importance sampling.
        seed: of all draws.

    >>> x = torch.zeros(4, 1, dtype=torch.float64)
    >>> q = DiagonalGaussian(x + 0.3, 0 * x + 0.5)
    >>> found = sampled_gap(lambda rows, z: -0.5 * ((x[rows] - z) ** 2).sum(1), q, Normal())
    >>> bool((found.family.abs() < 0.1).all()), round(float(found.amortisation[0]), 2)
    (True, 0.09)
    """
    problem = _Problem(log_likelihood, prior, posterior.mean.shape[1], randomness.generator(seed, "sampled gap"))
    noise = matched_nodes(problem.dim, max(ELBO_DRAWS, 8 * problem.dim))
    elbo = problem.elbo(posterior, noise)
    start, start_elbo = posterior, elbo
    if curvature is not None:
        at_mode = _at_mode(problem, posterior, curvature)
        start, start_elbo = _better(start, start_elbo, at_mode, problem.elbo(at_mode, noise))
    first = _ascend(problem, start, FIRST_STEP, STEPS)
    second = _ascend(problem, first, SECOND_STEP, STEPS // 3)
    elbos = problem.elbo(first, noise), problem.elbo(second, noise)
    converged = elbos[1] - elbos[0] < CONVERGED
    best, best_elbo = _better(*_better(start, start_elbo, first, elbos[0]), second, elbos[1])
    value, k = _importance_estimate(problem, best, curvature)
    return SampledGap(value, elbo, best_elbo, best, k, converged)


def _better(
    first: DiagonalGaussian, first_elbo: Tensor, second: DiagonalGaussian, second_elbo: Tensor
) -> tuple[DiagonalGaussian, Tensor]:
    """The posterior with the higher ELBO at each point, and that ELBO."""
    higher = second_elbo > first_elbo
    pairs = ((second.mean, first.mean), (second.variance, first.variance))
    best = DiagonalGaussian(*(torch.where(higher[:, None], *pair) for pair in pairs))
    return best, torch.where(higher, second_elbo, first_elbo)


def _at_mode(problem: _Problem, start: DiagonalGaussian, curvature: Curvature) -> DiagonalGaussian:
    """Eq. 12 at the mode of log p(x, z): Gauss-Newton steps from the encoder's mean, shortened if they fail."""
    rows = torch.arange(len(start.mean))
    prior_precision = problem.prior_precision(start.mean)
    z, size = start.mean.clone(), torch.ones(len(start.mean), 1).to(start.mean)
    for _ in range(NEWTON_STEPS):
        with torch.enable_grad():
            here = z.clone().requires_grad_()
            value = problem.log_joint(rows, here)
            (slope,) = torch.autograd.grad(value.sum(), here)
        step = torch.linalg.lstsq(curvature(z) + prior_precision, slope.unsqueeze(2)).solution.squeeze(2)
        with torch.no_grad():
            trial = z + size * step
            better = (problem.log_joint(rows, trial) >= value)[:, None]
        z, size = torch.where(better, trial, z), torch.where(better, (2 * size).clamp(max=1), size / 4)
    return DiagonalGaussian(z, 1 / (curvature(z) + prior_precision).diagonal(dim1=1, dim2=2))


@dataclass(frozen=True, eq=False)
class _Problem:
    log_likelihood: LogLikelihood
    prior: Normal
    dim: int
    generator: torch.Generator

    def log_joint(self, rows: Tensor, z: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
        prior = Normal(*(_select_rows(value, rows) for value in (self.prior.mean, self.prior.variance)))
        return self.log_likelihood(rows, z) + prior.log_density(z).sum(1)

    def log_joints(self, z: Float[Tensor, "P S d"]) -> Float[Tensor, "P S"]:
        """log p(x, z) of S codes per point, in chunks."""
        rows = torch.arange(len(z)).repeat_interleave(z.shape[1])
        pairs = zip(rows.split(CODES_AT_ONCE), z.flatten(0, 1).split(CODES_AT_ONCE), strict=True)
        return torch.cat([self.log_joint(r, part) for r, part in pairs]).reshape(z.shape[:2])

    def elbo(self, q: DiagonalGaussian, noise: Float[Tensor, "S d"]) -> Float[Tensor, " P"]:
        with torch.no_grad():
            return self.log_joints(_reparametrise(q.mean, q.variance, noise)).mean(1) + q.entropy()

    def prior_precision(self, like: Float[Tensor, "P d"]) -> Float[Tensor, "P d d"]:
        """Σ†⁻¹ at each point."""
        return torch.diag_embed((1 / torch.as_tensor(self.prior.variance).to(like)).expand(like.shape))


def _ascend(problem: _Problem, start: DiagonalGaussian, first_step: float, steps: int) -> DiagonalGaussian:
    """Adam on the reparametrised ELBO, in units of the starting posterior, with a decaying step size."""
    scale = start.variance.sqrt()
    shifts = torch.zeros_like(start.mean).requires_grad_()
    logs = torch.zeros_like(start.mean).requires_grad_()
    adam = torch.optim.Adam([shifts, logs], lr=first_step, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.ExponentialLR(adam, (LAST_STEP / first_step) ** (1 / steps))
    with torch.enable_grad():
        for _ in range(steps):
            mean, variance = start.mean + scale * shifts, start.variance * logs.exp()
            codes = _reparametrise(mean, variance, _mirrored_noise(ASCENT_DRAWS, problem).to(mean))
            rows = torch.arange(len(codes)).repeat_interleave(codes.shape[1])
            joint = problem.log_joint(rows, codes.flatten(0, 1)).reshape(codes.shape[:2])
            adam.zero_grad()
            (-(joint.mean(1) + DiagonalGaussian(mean, variance).entropy()).sum()).backward()
            for value in (shifts, logs):
                assert value.grad is not None
                value.grad.nan_to_num_(0.0, 0.0, 0.0)
            adam.step()
            schedule.step()
    return DiagonalGaussian((start.mean + scale * shifts).detach(), (start.variance * logs.exp()).detach())


@torch.no_grad()
def _importance_estimate(
    problem: _Problem, best: DiagonalGaussian, curvature: Curvature | None
) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """log p(x) by importance sampling from Student distributions around the best posteriors, and k̂."""
    factor = torch.diag_embed(best.variance.sqrt())
    if curvature is not None:
        precision = curvature(best.mean) + problem.prior_precision(best.mean)
        lower, failed = torch.linalg.cholesky_ex(precision)
        eye = torch.eye(problem.dim).to(best.mean).expand_as(precision)
        inverse = torch.linalg.solve_triangular(lower, eye, upper=False).mT
        valid = (failed == 0) & inverse.isfinite().all(-1).all(-1)
        factor = torch.where(valid[:, None, None], inverse, factor)
    noise = draw_student(len(best.mean), PROPOSALS, problem.dim, FREEDOM, problem.generator).to(best.mean)
    codes = best.mean.unsqueeze(1) + torch.einsum("pij,psj->psi", factor, noise)
    log_q = log_student(noise, FREEDOM) - torch.linalg.slogdet(factor).logabsdet[:, None]
    weights, k = smooth((problem.log_joints(codes) - log_q).double())
    return (torch.logsumexp(weights, dim=1) - math.log(PROPOSALS)).to(best.mean), k


def _mirrored_noise(count: int, problem: _Problem) -> Float[Tensor, "S d"]:
    half = torch.randn(count // 2, problem.dim, generator=problem.generator, dtype=torch.float64)
    return torch.cat([half, -half])


def _reparametrise(mean: Tensor, variance: Tensor, noise: Float[Tensor, "S d"]) -> Float[Tensor, "P S d"]:
    return mean.unsqueeze(1) + variance.sqrt().unsqueeze(1) * noise.to(mean)


def _select_rows(value: float | Tensor, rows: Tensor) -> float | Tensor:
    """A parameter of the prior at some points: the same for all, or a row per point."""
    return value[rows] if isinstance(value, Tensor) and value.ndim == 2 and len(value) > 1 else value
