"""The ELBO's gap under any likelihood and with many latents, by sampling and gradients instead of quadrature.

`gap` solves for the best posterior exactly, and needs a Gaussian likelihood and a handful of latents. Here the best
diagonal Gaussian is climbed to from the encoder's own (so that its ELBO is a lower bound of the optimum), and log p(x)
is by importance sampling around it.
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
"""(rows, z) -> log p(x|z): z (N, d) belongs to the points whose places are `rows` (N,)."""

NEWTON_STEPS = 30  # to the mode, where the likelihood's curvature is known
STEPS = 240
CLIMB = 8  # draws per point and step, mirrored
FIRST_STEP = 0.3  # in deviations of the posterior that it starts from
SECOND_STEP = 0.05  # of a second, shorter climb, which should gain nothing
LAST_STEP = 0.005
SETTLED = 0.1  # nats that it may gain
FRESH = 256  # codes for the ELBOs that are told, the same for both posteriors
PROPOSED = 1000  # draws per point of importance sampling
DECODED = 512  # codes that are decoded at a time, at most


@dataclass(frozen=True, eq=False)
class SampledGap:
    """log p(x) - ELBO = family + amortisation of every point, in nats; `amortisation` is at least what is told."""

    log_marginal: Float[Tensor, " N"]
    elbo: Float[Tensor, " N"]
    best_elbo: Float[Tensor, " N"]
    best: DiagonalGaussian
    pareto_k: Float[Tensor, " N"]
    converged: Bool[Tensor, " N"]
    """Whether the best posterior was reached; elsewhere `family` is too large and `amortisation` too small."""

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
    curvature: Callable[[Float[Tensor, "N d"]], Float[Tensor, "N d d"]] | None = None,
    seed: int = 0,
) -> SampledGap:
    """Split the gap of these posteriors; `curvature` (of -log p(x|z), at a code per point) shapes the proposals.

    >>> x = torch.zeros(4, 1, dtype=torch.float64)
    >>> q = DiagonalGaussian(x + 0.3, 0 * x + 0.5)
    >>> found = sampled_gap(lambda rows, z: -0.5 * ((x[rows] - z) ** 2).sum(1), q, Normal())
    >>> bool((found.family.abs() < 0.1).all()), round(float(found.amortisation[0]), 2)
    (True, 0.09)
    """
    problem = _Problem(log_likelihood, prior, posterior.mean.shape[1], randomness.generator(seed, "sampled gap"))
    noise = matched_nodes(problem.dim, max(FRESH, 8 * problem.dim))
    own = problem.elbo(posterior, noise)
    start, height = posterior, own
    if curvature is not None:
        start, height = _better(
            start, height, near := _at_mode(problem, posterior, curvature), problem.elbo(near, noise)
        )
    almost = _climbed(problem, start, FIRST_STEP, STEPS)
    best = _climbed(problem, almost, SECOND_STEP, STEPS // 3)
    heights = problem.elbo(almost, noise), problem.elbo(best, noise)
    converged = heights[1] - heights[0] < SETTLED
    found, top = _better(*_better(start, height, almost, heights[0]), best, heights[1])
    value, k = _importance(problem, found, curvature)
    return SampledGap(value, own, top, found, k, converged)


def _better(
    first: DiagonalGaussian, its: Tensor, second: DiagonalGaussian, other: Tensor
) -> tuple[DiagonalGaussian, Tensor]:
    """Of two posteriors the one with the higher ELBO, at every point: a climb that led down is none."""
    rise = (other > its)[:, None]
    pairs = ((second.mean, first.mean), (second.variance, first.variance))
    return DiagonalGaussian(*(torch.where(rise, *pair) for pair in pairs)), torch.where(other > its, other, its)


def _at_mode(problem: _Problem, start: DiagonalGaussian, curvature: Callable[[Tensor], Tensor]) -> DiagonalGaussian:
    """Eq. 12 at the mode of log p(x, z): Gauss-Newton steps from the encoder's mean, halved where they lead down."""
    rows = torch.arange(len(start.mean))
    own = torch.diag_embed((1 / torch.as_tensor(problem.prior.variance).to(start.mean)).expand(start.mean.shape))
    z, size = start.mean.clone(), torch.ones(len(start.mean), 1).to(start.mean)
    for _ in range(NEWTON_STEPS):
        with torch.enable_grad():
            here = z.clone().requires_grad_()
            height = problem.log_joint(rows, here)
            (slope,) = torch.autograd.grad(height.sum(), here)
        step = torch.linalg.lstsq(curvature(z) + own, slope.unsqueeze(2)).solution.squeeze(2)
        with torch.no_grad():
            there = z + size * step
            up = (problem.log_joint(rows, there) >= height)[:, None]
        z, size = torch.where(up, there, z), torch.where(up, (2 * size).clamp(max=1), size / 4)
    return DiagonalGaussian(z, 1 / (curvature(z) + own).diagonal(dim1=1, dim2=2))


@dataclass(frozen=True, eq=False)
class _Problem:
    log_likelihood: LogLikelihood
    prior: Normal
    dim: int
    generator: torch.Generator

    def log_joint(self, rows: Tensor, z: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
        prior = Normal(*(_of_rows(value, rows) for value in (self.prior.mean, self.prior.variance)))
        return self.log_likelihood(rows, z) + prior.log_density(z).sum(1)

    def many(self, z: Float[Tensor, "P S d"]) -> Float[Tensor, "P S"]:
        """log p(x, z) of S codes per point, a part at a time."""
        rows = torch.arange(len(z)).repeat_interleave(z.shape[1])
        pairs = zip(rows.split(DECODED), z.flatten(0, 1).split(DECODED), strict=True)
        return torch.cat([self.log_joint(r, part) for r, part in pairs]).reshape(z.shape[:2])

    def elbo(self, q: DiagonalGaussian, noise: Float[Tensor, "S d"]) -> Float[Tensor, " P"]:
        with torch.no_grad():
            return self.many(_placed(q.mean, q.variance, noise)).mean(1) + _entropy(q.variance)


def _climbed(problem: _Problem, start: DiagonalGaussian, first_step: float, steps: int) -> DiagonalGaussian:
    """Adam on the reparametrised ELBO, in units of the posterior that it starts from, with steps that shrink."""
    scale = start.variance.sqrt()
    places = torch.zeros_like(start.mean).requires_grad_()
    logs = torch.zeros_like(start.mean).requires_grad_()
    adam = torch.optim.Adam([places, logs], lr=first_step, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.ExponentialLR(adam, (LAST_STEP / first_step) ** (1 / steps))
    with torch.enable_grad():
        for _ in range(steps):
            mean, variance = start.mean + scale * places, start.variance * logs.exp()
            codes = _placed(mean, variance, _mirrored(CLIMB, problem).to(mean))
            rows = torch.arange(len(codes)).repeat_interleave(codes.shape[1])
            joint = problem.log_joint(rows, codes.flatten(0, 1)).reshape(codes.shape[:2])
            adam.zero_grad()
            (-(joint.mean(1) + _entropy(variance)).sum()).backward()
            for value in (places, logs):
                assert value.grad is not None
                value.grad.nan_to_num_(0.0, 0.0, 0.0)
            adam.step()
            schedule.step()
    return DiagonalGaussian((start.mean + scale * places).detach(), (start.variance * logs.exp()).detach())


@torch.no_grad()
def _importance(
    problem: _Problem, best: DiagonalGaussian, curvature: Callable[[Tensor], Tensor] | None
) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """log p(x) by Student draws around the best posterior, and k̂."""
    factor = torch.diag_embed(best.variance.sqrt())
    if curvature is not None:
        own = torch.diag_embed((1 / torch.as_tensor(problem.prior.variance).to(best.mean)).expand(best.mean.shape))
        bent = curvature(best.mean) + own
        lower, failed = torch.linalg.cholesky_ex(bent)
        eye = torch.eye(problem.dim).to(best.mean).expand_as(bent)
        inverse = torch.linalg.solve_triangular(lower, eye, upper=False).mT
        sound = (failed == 0) & inverse.isfinite().all(-1).all(-1)
        factor = torch.where(sound[:, None, None], inverse, factor)
    noise = draw_student(len(best.mean), PROPOSED, problem.dim, FREEDOM, problem.generator).to(best.mean)
    codes = best.mean.unsqueeze(1) + torch.einsum("pij,psj->psi", factor, noise)
    log_q = log_student(noise, FREEDOM) - torch.linalg.slogdet(factor).logabsdet[:, None]
    weights, k = smooth((problem.many(codes) - log_q).double())
    return (torch.logsumexp(weights, dim=1) - math.log(PROPOSED)).to(best.mean), k


def _mirrored(count: int, problem: _Problem) -> Float[Tensor, "S d"]:
    half = torch.randn(count // 2, problem.dim, generator=problem.generator, dtype=torch.float64)
    return torch.cat([half, -half])


def _placed(mean: Tensor, variance: Tensor, noise: Float[Tensor, "S d"]) -> Float[Tensor, "P S d"]:
    return mean.unsqueeze(1) + variance.sqrt().unsqueeze(1) * noise.to(mean)


def _entropy(variance: Float[Tensor, "P d"]) -> Float[Tensor, " P"]:
    return 0.5 * (math.log(2 * math.pi * math.e) + variance.log()).sum(1)


def _of_rows(value: float | Tensor, rows: Tensor) -> float | Tensor:
    """A prior's parameter at some points: a row per point, or the same for all."""
    return value[rows] if isinstance(value, Tensor) and value.ndim == 2 and len(value) > 1 else value
