"""ELBO*, computed instead of trained: the information projection of the true posterior onto Gaussians.

For a fixed decoder, the best Gaussian of each observation maximises a smooth function of a few numbers (Reizinger et
al. 2022, Eqs. 7 and 8). Expectations are quadratures, so there is no sampling noise, and a damped Newton method that
starts at the mode with the variances of Eq. 12 needs a few steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.distributions import FullGaussian, Normal, Posterior, Prior, kl
from vaescope.theory.derivatives import Decoder
from vaescope.theory.families import make_family
from vaescope.theory.modes import find_mode
from vaescope.theory.newton import maximise
from vaescope.theory.problem import Problem, latent_dimension, make_problem, prepare
from vaescope.theory.rules import Rule, increasing_orders, rule

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
