"""The gap for any likelihood and many latents, by sampling and gradient ascent instead of quadrature.

`gap` computes the best posterior exactly, for a Gaussian likelihood and few latents. Here the best diagonal Gaussian is
found by gradient ascent from the encoder's posterior, so its ELBO is a lower bound on the optimum, and log p(x) is
estimated by importance sampling around it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope import randomness
from vaescope.distributions import DiagonalGaussian, Normal
from vaescope.theory.marginal import FREEDOM, draw_student, log_student
from vaescope.theory.pareto import smooth
from vaescope.theory.rules import matched_nodes

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
    value, k = _importance(problem, best, curvature)
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
def _importance(
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
