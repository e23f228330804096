"""A damped Newton method for the ELBO of a Gaussian, batched over points."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.theory.derivatives import along_axes, as_columns, push_forward
from vaescope.theory.families import Family
from vaescope.theory.problem import CHUNK_NUMBERS, Problem, transform_nodes
from vaescope.theory.rules import Rule, increasing_orders, rule

TOLERANCE = 1e-10  # of the gradient norm, in units of the posterior
STEPS = 60
COARSE_STEPS = 12  # steps with the Hessian of the coarse rule


def maximise(
    problem: Problem, shape: Family, mean: Tensor, factor: Tensor, fine: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """Maximise the ELBO under this quadrature rule; returns mean, factor and the norm of the gradient."""
    coarse = rule(problem.dim, increasing_orders(problem.dim)[0], mean)
    value, gradient = _value_and_gradient(problem, shape, mean, factor, fine)
    active = torch.arange(len(mean), device=mean.device)
    for iteration in range(STEPS):
        active = active[gradient[active].norm(dim=1) > TOLERANCE]
        if not len(active):
            break
        part = problem.take(active)
        # the Hessian of the coarse rule suffices for a direction; the few points that it fails on get the fine one
        hessian = _hessian(part, shape, mean[active], factor[active], coarse if iteration < COARSE_STEPS else fine)
        step = _ascent_direction(hessian, gradient[active], problem.dim)
        moved = _line_search(part, shape, mean[active], factor[active], value[active], gradient[active], step, fine)
        gain = (moved[2] - value[active]).abs()
        stuck = (gain == 0) & (moved[3].norm(dim=1) >= gradient[active].norm(dim=1))
        mean[active], factor[active], value[active], gradient[active] = moved
        active = active[~stuck]
    return mean, factor, gradient.norm(dim=1)


def _ascent_direction(hessian: Tensor, gradient: Tensor, dim: int) -> Tensor:
    """Newton's step with the absolute values of all curvatures, bounded away from zero.

    Scales change by at most a factor of e² per step. Means are not limited: if columns of the Jacobian are nearly
    parallel, the posterior is much longer than any diagonal Gaussian and the mean has far to go.
    """
    values, vectors = torch.linalg.eigh(-hessian)
    largest = values.abs().amax(-1, keepdim=True)
    values = values.abs().clamp_min(1e-14 * largest)
    along = torch.einsum("nji,nj->ni", vectors, gradient) / values
    step = torch.einsum("nij,nj->ni", vectors, along)
    widest = step[:, dim:].abs().amax(1, keepdim=True)
    return step * (2 / widest.clamp_min(1e-300)).clamp(max=1)


def _line_search(
    problem: Problem,
    shape: Family,
    mean: Tensor,
    factor: Tensor,
    value: Tensor,
    gradient: Tensor,
    step: Tensor,
    fine: Rule,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Shorten the step of each point until its ELBO increases (or, at rounding level, its gradient decreases)."""
    best = [mean.clone(), factor.clone(), value.clone(), gradient.clone()]
    active, length = torch.arange(len(mean), device=mean.device), 1.0
    norms = gradient.norm(dim=1)
    while len(active) and length > 1e-6:
        d = problem.dim
        a, b = length * step[active, :d], length * step[active, d:]
        m = mean[active] + torch.einsum("nij,nj->ni", factor[active], a)
        L = factor[active] @ shape.factor(b)
        v, g = _value_and_gradient(problem.take(active), shape, m, L, fine)
        slack = 1e-13 * (1 + value[active].abs())
        increases = v > value[active] + slack
        flattens = (v >= value[active] - slack) & (g.norm(dim=1) < norms[active])
        accepted = increases | flattens
        for store, new in zip(best, (m, L, v, g), strict=True):
            store[active[accepted]] = new[accepted]
        active, length = active[~accepted], length / 4
    return best[0], best[1], best[2], best[3]


def _value_and_gradient(
    problem: Problem, shape: Family, mean: Tensor, factor: Tensor, fine: Rule
) -> tuple[Tensor, Tensor]:
    """The ELBO without constants, and its gradient in p."""
    nodes, weights = fine
    features = shape.features(nodes)
    values, gradients = [], []
    for rows in problem.chunks(len(nodes)):
        part = problem.take(rows)
        L = factor[rows]

        def total(u: Tensor, part: Problem = part) -> tuple[Tensor, Tensor]:
            misfit = part.misfit(u)
            return misfit.sum(), misfit

        slope, misfit = torch.func.grad(total, has_aux=True)(transform_nodes(mean[rows], L, nodes))
        whitened = torch.einsum("nij,nqi->nqj", L, slope)
        values.append(misfit @ weights)
        gradients.append(torch.einsum("q,qdp,nqd->np", weights, features, whitened))
    regular = _regular_gradient(problem, shape, mean, factor)
    value = torch.cat(values) + _regular(problem, shape, mean, factor, torch.zeros_like(regular))
    return value, torch.cat(gradients) + regular


def _hessian(problem: Problem, shape: Family, mean: Tensor, factor: Tensor, coarse: Rule) -> Tensor:
    """The Hessian in p: second derivatives of the misfit at the nodes, in the family's features."""
    nodes, weights = coarse
    features = shape.features(nodes)
    chunks = []
    for rows in problem.chunks(2 * len(nodes) * problem.dim):
        part, L = problem.take(rows), factor[rows]
        gradient, columns = _misfit_derivatives(part, transform_nodes(mean[rows], L, nodes))
        second = torch.einsum("nia,nqij,njb->nqab", L, columns, L)
        first = torch.einsum("q,qdp,nqd->np", weights, features, torch.einsum("nij,nqi->nqj", L, gradient))
        hessian = torch.einsum("q,qap,nqab,qbr->npr", weights, features, second, features)
        # a scale enters as exp(b), so its second derivative includes the first
        logs = shape.log_scales()
        hessian[:, logs, logs] += first[:, logs]
        chunks.append(hessian)
    return torch.cat(chunks) + _regular_hessian(problem, shape, mean, factor)


def _misfit_derivatives(
    problem: Problem, u: Float[Tensor, "N Q d"]
) -> tuple[Float[Tensor, "N Q d"], Float[Tensor, "N Q d d"]]:
    """Gradient and Hessian of the misfit at every node: in one pass, or for large outputs one column at a time."""

    def slope_of(own: Problem) -> Callable[[Tensor], Tensor]:
        return torch.func.grad(lambda u: own.misfit(u).sum())

    d = problem.dim
    points, directions = along_axes(u)
    if u.numel() * problem.x.shape[1] <= CHUNK_NUMBERS:
        gradients, columns = push_forward(slope_of(problem.repeat(d)), points, directions)
        return gradients[: len(u)], as_columns(columns, d)
    found = [push_forward(slope_of(problem), u, direction) for direction in directions.chunk(d)]
    return found[0][0], torch.stack([column for _, column in found], dim=-1)


# the part of the ELBO that does not depend on the decoder: prior and entropy -------------------


def _regular(problem: Problem, shape: Family, mean: Tensor, factor: Tensor, p: Tensor) -> Tensor:
    d = problem.dim
    moved = mean + torch.einsum("...ij,...j->...i", factor, p[..., :d])
    variance = (factor @ shape.factor(p[..., d:])).square().sum(-1)
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + shape.log_det(p[..., d:])
    return problem.prior.expected_log_density(moved, variance).sum(-1) + log_det


def _regular_gradient(problem: Problem, shape: Family, mean: Tensor, factor: Tensor) -> Tensor:
    zero = torch.zeros(len(mean), shape.size, dtype=mean.dtype, device=mean.device)
    gradient: Tensor = torch.func.grad(lambda p: _regular(problem, shape, mean, factor, p).sum())(zero)
    return gradient


def _regular_hessian(problem: Problem, shape: Family, mean: Tensor, factor: Tensor) -> Tensor:
    size = shape.size
    rows = max(1, CHUNK_NUMBERS // (8 * size * problem.dim**2))
    chunks = []
    for m, L in zip(mean.split(rows), factor.split(rows), strict=True):
        means, factors = m.repeat(size, 1), L.repeat(size, 1, 1)
        slope = torch.func.grad(lambda p, m=means, L=factors: _regular(problem, shape, m, L, p).sum())
        zero = torch.zeros(len(m), size, dtype=m.dtype, device=m.device)
        chunks.append(as_columns(push_forward(slope, *along_axes(zero))[1], size))
    return torch.cat(chunks)
