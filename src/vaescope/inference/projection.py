"""ELBO*, computed instead of trained: the information projection of the true posterior onto Gaussians.

For a fixed decoder, the best Gaussian of each observation maximises a smooth function of a few numbers (Reizinger et
al. 2022, Eqs. 7 and 8). Expectations are quadratures, so there is no sampling noise, and a damped Newton method that
starts at the mode with the variances of Eq. 12 needs a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.core import randomness
from vaescope.distributions import FullGaussian, Normal, Posterior, Prior, kl
from vaescope.inference.derivatives import Decoder, along_axes, as_columns, push_forward
from vaescope.inference.joint import (
    CHUNK_NUMBERS,
    Family,
    Problem,
    Rule,
    increasing_orders,
    latent_dimension,
    make_family,
    make_problem,
    prepare,
    rule,
    transform_nodes,
)

TOLERANCE = 1e-10  # of the gradient norm, in units of the posterior
NEWTON_STEPS = 60
COARSE_STEPS = 12  # steps with the Hessian of the coarse rule


def maximise(
    problem: Problem, shape: Family, mean: Tensor, factor: Tensor, fine: Rule
) -> tuple[Tensor, Tensor, Tensor]:
    """Maximise the ELBO under this quadrature rule; returns mean, factor and the norm of the gradient."""
    coarse = rule(problem.dim, increasing_orders(problem.dim)[0], mean)
    value, gradient = _value_and_gradient(problem, shape, mean, factor, fine)
    active = torch.arange(len(mean), device=mean.device)
    for iteration in range(NEWTON_STEPS):
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


STARTS = 8
STEPS = 200
PREIMAGE_PRECISIONS = (10.0, 1e3, 1e6)
MODE_STEPS = 8


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
    for _ in range(MODE_STEPS):
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


ACCEPTED = 1e-8  # largest final gradient norm of a converged point
RESOLVED = 1e-9  # change of the ELBO from one quadrature order to the next


@dataclass(frozen=True, eq=False)
class Projection:
    """The best Gaussian of each point. Exclude points with `converged` False.

    `mean` and `variance` are those of the latents z. `posterior` is the Gaussian itself, in the unbounded coordinate u,
    which differs from z only for a bounded prior.
    """

    mean: Float[Tensor, "N d"]
    variance: Float[Tensor, "N d"]
    elbo: Float[Tensor, " N"]
    converged: Bool[Tensor, " N"]
    gradient_norm: Float[Tensor, " N"]
    quadrature_error: Float[Tensor, " N"]
    posterior: FullGaussian


def project(
    decoder: Decoder,
    x: Float[Tensor, "N ..."],
    *,
    precision: float | Float[Tensor, " N"],
    prior: Prior | None = None,
    start: Float[Tensor, "N d"] | None = None,
    latent_dim: int | None = None,
    family: str = "diagonal",
) -> Projection:
    """The Gaussian q of a family that maximises the ELBO of each x, and that ELBO.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        x: observations.
        precision: γ² = 1 / decoder variance; one number, or one for each observation.
        prior: N(0, I) by default.
        start: a guess of the latents, such as g(x) or an encoder's means; by default the best of several searches.
        latent_dim: the number of latents; needed only if the decoder takes codes of several sizes.
        family: `diagonal`, `isotropic` or `full`.

    >>> W = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    >>> x = torch.ones(1, 2, dtype=torch.float64)
    >>> project(lambda z: z @ W.T, x, precision=1.0).variance
    tensor([[0.2000, 0.5000]], dtype=torch.float64)
    """
    prior = Normal() if prior is None else prior
    dim = latent_dimension(decoder, x, prior, start=start, latent_dim=latent_dim)
    problem, guess = prepare(decoder, x, precision, prior, start, dim)
    shape = make_family(family, dim)
    mode = find_mode(problem, guess)
    mean, factor = mode, _first_factor(problem, mode, family)
    norms = torch.full_like(mode[:, 0], math.inf)
    errors = norms.clone()
    todo = torch.arange(len(mode), device=mode.device)
    orders = increasing_orders(dim)
    for position, order in enumerate(orders):
        part = problem.take(todo)
        mean[todo], factor[todo], norms[todo] = maximise(part, shape, mean[todo], factor[todo], rule(dim, order, x))
        if position == 0:
            continue  # the lowest order only gives a starting point
        above = orders[min(position + 1, len(orders) - 1)]
        compared = orders[position - 1] if above == order else above
        here, there = (
            part.expected_misfit(mean[todo], factor[todo], rule(dim, other, x)) for other in (order, compared)
        )
        errors[todo] = (here - there).abs()
        todo = todo[errors[todo] > RESOLVED]
        if not len(todo):
            break
    return _result(problem, mean, factor, norms, errors, orders[-1])


def elbo(
    decoder: Decoder,
    x: Float[Tensor, "N ..."],
    posterior: Posterior,
    *,
    precision: float | Float[Tensor, " N"],
    prior: Prior | None = None,
) -> Float[Tensor, " N"]:
    """The ELBO of any Gaussian posterior (in u), by the finest quadrature rule.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        x: observations.
        posterior: one per observation, in u, the unbounded coordinate.
        precision: γ² = 1 / decoder variance; one number, or one for each observation.
        prior: N(0, I) by default.
    """
    prior = Normal() if prior is None else prior
    posterior = as_full(posterior)
    dim = posterior.mean.shape[-1]
    problem = make_problem(decoder, x, precision=precision, prior=prior, dim=dim, probe=posterior.mean)
    return _elbo(problem, posterior.mean, posterior.scale, rule(dim, increasing_orders(dim)[-1], posterior.mean))


def as_full(posterior: Posterior) -> FullGaussian:
    """Any Gaussian in terms of its Cholesky factor."""
    if isinstance(posterior, FullGaussian):
        return posterior
    return FullGaussian(posterior.mean, torch.diag_embed(posterior.marginal_variance.sqrt()))


def _first_factor(problem: Problem, mode: Tensor, family: str) -> Tensor:
    """Eq. 12 in u for the diagonal family, its analogues for the other families."""
    precision = problem.laplace_precision(mode)
    if family == "full":
        return torch.linalg.cholesky(torch.linalg.inv(precision))
    diagonal = precision.diagonal(dim1=1, dim2=2)
    diagonal = diagonal.mean(-1, keepdim=True).expand_as(diagonal) if family == "isotropic" else diagonal
    return torch.diag_embed(diagonal.rsqrt())


def _elbo(problem: Problem, mean: Tensor, factor: Tensor, fine: Rule) -> Tensor:
    posterior = FullGaussian(mean, factor)
    return problem.expected_misfit(mean, factor, fine) + problem.constant - kl(posterior, problem.prior)


def _result(problem: Problem, mean: Tensor, factor: Tensor, norms: Tensor, errors: Tensor, order: int) -> Projection:
    posterior = FullGaussian(mean, factor)
    value = _elbo(problem, mean, factor, rule(problem.dim, order, mean))
    z_mean, z_variance = problem.prior.moments(mean, posterior.marginal_variance)
    converged = (norms <= ACCEPTED) & value.isfinite()
    return Projection(z_mean, z_variance, value, converged, norms, errors, posterior)
