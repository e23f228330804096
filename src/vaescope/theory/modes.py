"""The mode of log p(x, u): batched Levenberg–Marquardt over points, from several starts."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.theory.problem import Problem

STARTS = 8
STEPS = 200
PREIMAGE_PRECISIONS = (10.0, 1e3, 1e6)
NEWTON_STEPS = 8


def find_mode(problem: Problem, start: Float[Tensor, "N d"] | None = None) -> Float[Tensor, "N d"]:
    """The u that maximises log p(x, u), from the given start or the best of several."""
    if start is not None:
        return _levenberg_marquardt(problem, start)
    best, best_value = None, None
    for candidate in _starts(problem):
        u = _levenberg_marquardt(problem, candidate)
        value = problem.log_joint(u.unsqueeze(1)).squeeze(1)
        if best is None or best_value is None:
            best, best_value = u, value
        better = value > best_value
        best, best_value = torch.where(better[:, None], u, best), torch.where(better, value, best_value)
    assert best is not None
    return best


def find_preimage(problem: Problem, start: Float[Tensor, "N d"] | None = None) -> Float[Tensor, "N d"]:
    """The u with f(z(u)) = x, whatever the problem's precision; that with f nearest to x if there are more outputs.

    Modes at rising precisions approach it, and Newton steps, kept where they bring f closer to x, end there.
    """
    u = find_mode(problem.with_precision(PREIMAGE_PRECISIONS[0]), start)
    for precision in PREIMAGE_PRECISIONS[1:]:
        u = _levenberg_marquardt(problem.with_precision(precision), u)
    for _ in range(NEWTON_STEPS):
        output, J = problem.linearise(u)
        trial = u + _newton_step(J, (problem.x - output).unsqueeze(-1)).squeeze(-1)
        closer = (problem.output(trial) - problem.x).norm(dim=1) < (output - problem.x).norm(dim=1)
        u = torch.where(closer[:, None], trial, u)
    return u


def _newton_step(J: Float[Tensor, "N n d"], residual: Float[Tensor, "N n 1"]) -> Float[Tensor, "N d 1"]:
    if J.shape[1] == J.shape[2]:
        return torch.linalg.solve_ex(J, residual).result
    return torch.linalg.lstsq(J, residual).solution


def _starts(problem: Problem) -> list[Tensor]:
    """The prior's centre and draws from the prior, shared by all points."""
    generator = randomness.generator(0, "starts")
    draws = problem.prior.sample(STARTS - 1, problem.dim, generator=generator, dtype=torch.float64)
    centre = torch.full((1, problem.dim), problem.prior.unbounded_centre(), dtype=torch.float64)
    starts = torch.cat([centre, problem.prior.from_support(draws)]).to(problem.x)
    return [start.expand(len(problem.x), -1) for start in starts]


def _levenberg_marquardt(problem: Problem, start: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
    """Maximise log p(x, u); converged points drop out of the batch."""
    u = start.clone()
    damping = torch.full((len(u),), 1e-3, dtype=u.dtype, device=u.device)
    value = problem.log_joint(u.unsqueeze(1)).squeeze(1)
    active = torch.arange(len(u), device=u.device)
    for _ in range(STEPS):
        if not len(active):
            break
        part = problem.take(active)
        step, decrement = _step(part, u[active], damping[active])
        trial = u[active] + step
        trial_value = part.log_joint(trial.unsqueeze(1)).squeeze(1)
        better = trial_value >= value[active]
        u[active] = torch.where(better[:, None], trial, u[active])
        value[active] = torch.where(better, trial_value, value[active])
        damping[active] = torch.where(better, damping[active] / 5, damping[active] * 4).clamp(1e-14, 1e12)
        active = active[(decrement > 1e-12) & (damping[active] < 1e10)]
    return u


def _step(problem: Problem, u: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
    """A damped Gauss–Newton step and its predicted gain."""
    steps, gains = [], []
    for part in problem.chunks(problem.dim):
        chunk = problem.take(part)
        output, J = chunk.linearise(u[part])
        slope = torch.func.grad(lambda v, chunk=chunk: chunk.log_prior(v).sum())(u[part])
        gradient = slope + chunk.precision[:, None] * torch.einsum("nij,ni->nj", J, chunk.x - output)
        curvature = chunk.laplace_precision_of(u[part], J)
        diagonal = curvature.diagonal(dim1=1, dim2=2)
        damped = curvature + torch.diag_embed(damping[part, None] * diagonal)
        step = torch.linalg.solve(damped, gradient)
        steps.append(step)
        gains.append((gradient * step).sum(-1))
    return torch.cat(steps), torch.cat(gains)
