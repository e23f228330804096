"""ELBO*, solved and not trained: the information projection of the true posterior on Gaussians.

For a fixed decoder the best Gaussian of every observation maximises a smooth function of a few
numbers (Reizinger et al. 2022, Eqs. 7 and 8). Expectations are quadratures, so there is no noise,
and a damped Newton method started at the mode with the variances of Eq. 12 needs a few steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.distributions import FullGaussian, Normal, Posterior, Prior, kl
from vaescope.errors import InputError
from vaescope.theory.derivatives import Decoder, check_latents
from vaescope.theory.families import Family, make_family
from vaescope.theory.modes import find_mode
from vaescope.theory.optimal import check_support
from vaescope.theory.problem import Problem, make_problem, place
from vaescope.theory.rules import Rule, ladder, rule

TOLERANCE = 1e-10  # of the gradient's norm, in units of the posterior
ACCEPTED = 1e-8  # a point with a larger gradient at the end is marked as not converged
RESOLVED = 1e-9  # change of the ELBO from one quadrature order to the next
STEPS = 60
PATIENT = 12  # steps with a coarse Hessian


@dataclass(frozen=True, eq=False)
class Projection:
    """The best Gaussian of every point. Points with `converged` False are to be left out.

    `mean` and `variance` are those of the latents z; `posterior` is the Gaussian itself, in the
    unbounded coordinate u (the same thing unless the prior is bounded).
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
    precision: float,
    prior: Prior | None = None,
    start: Float[Tensor, "N d"] | None = None,
    latent_dim: int | None = None,
    family: str = "diagonal",
) -> Projection:
    """The Gaussian q of the family that maximises the ELBO of every x, and that ELBO.

    `start` is a guess of the latents, such as g(x) or an encoder's means; without it, the best of
    several searches is taken. `latent_dim` is needed only when neither `start` nor the decoder
    (its attribute `dim`) says it. `family` is `diagonal`, `isotropic` or `full`.

    >>> W = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    >>> x = torch.ones(1, 2, dtype=torch.float64)
    >>> project(lambda z: z @ W.T, x, precision=1.0, latent_dim=2).variance
    tensor([[0.2000, 0.5000]], dtype=torch.float64)
    """
    prior = Normal() if prior is None else prior
    dim = latent_dimension(decoder, start, latent_dim)
    problem, guess = prepare(decoder, x, precision, prior, start, dim)
    shape = make_family(family, dim)
    mode = find_mode(problem, guess)
    mean, factor = mode, _first_factor(problem, mode, family)
    norms = torch.full_like(mode[:, 0], math.inf)
    errors = norms.clone()
    todo = torch.arange(len(mode), device=mode.device)
    orders = ladder(dim)
    for position, order in enumerate(orders):
        part = problem.take(todo)
        mean[todo], factor[todo], norms[todo] = _newton(part, shape, mean[todo], factor[todo], rule(dim, order, x))
        if position == 0:
            continue  # the lowest order only warms up
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
    precision: float,
    prior: Prior | None = None,
) -> Float[Tensor, " N"]:
    """The ELBO of any Gaussian posterior (in u), by the finest quadrature used here."""
    prior = Normal() if prior is None else prior
    posterior = as_full(posterior)
    dim = posterior.mean.shape[-1]
    problem = make_problem(decoder, x, precision=precision, prior=prior, dim=dim, probe=posterior.mean)
    return _elbo(problem, posterior.mean, posterior.scale, rule(dim, ladder(dim)[-1], posterior.mean))


def as_full(posterior: Posterior) -> FullGaussian:
    """Any Gaussian as one with a Cholesky factor."""
    if isinstance(posterior, FullGaussian):
        return posterior
    return FullGaussian(posterior.mean, torch.diag_embed(posterior.marginal_variance.sqrt()))


def latent_dimension(decoder: Decoder, start: Tensor | None, latent_dim: int | None) -> int:
    """d, from whatever says it."""
    known = latent_dim or (start.shape[-1] if start is not None else None) or getattr(decoder, "dim", None)
    if known is None:
        raise InputError("latent_dim is needed: neither start nor the decoder says how many latents there are.")
    return int(known)


def prepare(
    decoder: Decoder, x: Tensor, precision: float, prior: Prior, start: Tensor | None, dim: int
) -> tuple[Problem, Tensor | None]:
    """The problem, and the start in the coordinate u (from the decoder's own inverse, if it has one)."""
    if start is not None:
        check_latents(start, "start")
        check_support(start, prior, "start")
    probe = torch.full((1, dim), prior.unbounded_centre(), dtype=x.dtype, device=x.device)
    probe = prior.from_support(start[:1]) if start is not None else probe
    problem = make_problem(decoder, x, precision=precision, prior=prior, dim=dim, probe=probe)
    if start is None and hasattr(decoder, "inverse") and problem.x.shape[1] == dim:
        guess = prior.from_support(decoder.inverse(problem.x))
        start_u = guess if bool(guess.isfinite().all()) else None
    else:
        start_u = None if start is None else prior.from_support(start.to(problem.x))
    return problem, start_u


def _first_factor(problem: Problem, mode: Tensor, family: str) -> Tensor:
    """Eq. 12 in u for the diagonal, its analogues for the other families."""
    precision = problem.laplace_precision(mode)
    if family == "full":
        return torch.linalg.cholesky(torch.linalg.inv(precision))
    diagonal = precision.diagonal(dim1=1, dim2=2)
    diagonal = diagonal.mean(-1, keepdim=True).expand_as(diagonal) if family == "isotropic" else diagonal
    return torch.diag_embed(diagonal.rsqrt())


# Newton's method ------------------------------------------------------------------------------


def _newton(problem: Problem, shape: Family, mean: Tensor, factor: Tensor, fine: Rule) -> tuple[Tensor, Tensor, Tensor]:
    """Climb to the maximum at this quadrature; returns mean, factor and the gradient's norm."""
    coarse = rule(problem.dim, ladder(problem.dim)[0], mean)
    value, gradient = _value_and_gradient(problem, shape, mean, factor, fine)
    active = torch.arange(len(mean), device=mean.device)
    for iteration in range(STEPS):
        active = active[gradient[active].norm(dim=1) > TOLERANCE]
        if not len(active):
            break
        part = problem.take(active)
        # the coarse rule's Hessian serves every order, it only has to point the way; for the few
        # points it leads astray the fine one is worth its price
        hessian = _hessian(part, shape, mean[active], factor[active], coarse if iteration < PATIENT else fine)
        step = _ascent(hessian, gradient[active], problem.dim)
        moved = _line_search(part, shape, mean[active], factor[active], value[active], gradient[active], step, fine)
        gain = (moved[2] - value[active]).abs()
        stuck = (gain == 0) & (moved[3].norm(dim=1) >= gradient[active].norm(dim=1))
        mean[active], factor[active], value[active], gradient[active] = moved
        active = active[~stuck]
    return mean, factor, gradient.norm(dim=1)


def _ascent(hessian: Tensor, gradient: Tensor, dim: int) -> Tensor:
    """Newton's step with every curvature turned downhill and kept away from zero.

    Scales may change by a factor of e² at a time; means may go far, as they must where columns of
    the Jacobian are nearly parallel and the posterior is much longer than any diagonal Gaussian.
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
    """Shorten the step of every point until its ELBO rises (or, at rounding level, its gradient falls)."""
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
        rises = v > value[active] + slack
        settles = (v >= value[active] - slack) & (g.norm(dim=1) < norms[active])
        good = rises | settles
        for store, new in zip(best, (m, L, v, g), strict=True):
            store[active[good]] = new[good]
        active, length = active[~good], length / 4
    return best[0], best[1], best[2], best[3]


def _value_and_gradient(
    problem: Problem, shape: Family, mean: Tensor, factor: Tensor, fine: Rule
) -> tuple[Tensor, Tensor]:
    """The ELBO without its constants, and its gradient in p."""
    nodes, weights = fine
    features = shape.features(nodes)
    values, gradients = [], []
    for rows in problem.chunks(len(nodes)):
        part = problem.take(rows)
        L = factor[rows]

        def total(u: Tensor, part: Problem = part) -> tuple[Tensor, Tensor]:
            misfit = part.misfit(u)
            return misfit.sum(), misfit

        slope, misfit = torch.func.grad(total, has_aux=True)(place(mean[rows], L, nodes))
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
    parts = []
    for rows in problem.chunks(2 * len(nodes) * problem.dim):
        part, L = problem.take(rows), factor[rows]
        slope = torch.func.grad(lambda u, part=part: part.misfit(u).sum())
        u = place(mean[rows], L, nodes)
        columns = []
        for k in range(problem.dim):
            direction = torch.zeros_like(u)
            direction[..., k] = 1
            pushed = torch.func.jvp(slope, (u,), (direction,))
            gradient = pushed[0]
            columns.append(pushed[1])
        second = torch.einsum("nia,nqij,njb->nqab", L, torch.stack(columns, dim=-1), L)
        first = torch.einsum("q,qdp,nqd->np", weights, features, torch.einsum("nij,nqi->nqj", L, gradient))
        hessian = torch.einsum("q,qap,nqab,qbr->npr", weights, features, second, features)
        # a scale enters as exp(b): its second derivative adds the first
        logs = shape.log_scales()
        hessian[:, logs, logs] += first[:, logs]
        parts.append(hessian)
    return torch.cat(parts) + _regular_hessian(problem, shape, mean, factor)


# the part of the ELBO that needs no decoder: prior and entropy ---------------------------------


def _regular(problem: Problem, shape: Family, mean: Tensor, factor: Tensor, p: Tensor) -> Tensor:
    d = problem.dim
    moved = mean + torch.einsum("...ij,...j->...i", factor, p[..., :d])
    variance = (factor @ shape.factor(p[..., d:])).square().sum(-1)
    log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + shape.log_det(p[..., d:])
    return problem.prior.expected_log_density(moved, variance).sum(-1) + log_det


def _regular_gradient(problem: Problem, shape: Family, mean: Tensor, factor: Tensor) -> Tensor:
    zero = torch.zeros(len(mean), shape.size, dtype=mean.dtype, device=mean.device)
    return torch.func.grad(lambda p: _regular(problem, shape, mean, factor, p).sum())(zero)


def _regular_hessian(problem: Problem, shape: Family, mean: Tensor, factor: Tensor) -> Tensor:
    slope = torch.func.grad(lambda p: _regular(problem, shape, mean, factor, p).sum())
    zero = torch.zeros(len(mean), shape.size, dtype=mean.dtype, device=mean.device)
    columns = []
    for k in range(shape.size):
        direction = torch.zeros_like(zero)
        direction[:, k] = 1
        columns.append(torch.func.jvp(slope, (zero,), (direction,))[1])
    return torch.stack(columns, dim=-1)


def _elbo(problem: Problem, mean: Tensor, factor: Tensor, fine: Rule) -> Tensor:
    posterior = FullGaussian(mean, factor)
    return problem.expected_misfit(mean, factor, fine) + problem.constant - kl(posterior, problem.prior)


def _result(problem: Problem, mean: Tensor, factor: Tensor, norms: Tensor, errors: Tensor, order: int) -> Projection:
    posterior = FullGaussian(mean, factor)
    value = _elbo(problem, mean, factor, rule(problem.dim, order, mean))
    z_mean, z_variance = problem.prior.moments(mean, posterior.marginal_variance)
    converged = (norms <= ACCEPTED) & value.isfinite()
    return Projection(z_mean, z_variance, value, converged, norms, errors, posterior)
