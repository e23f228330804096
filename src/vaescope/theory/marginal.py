"""log p(x) by quadrature, importance sampling or change of variables."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.distributions import FullGaussian, Normal, Prior, quadrature
from vaescope.errors import InputError
from vaescope.theory.derivatives import Decoder, jacobians
from vaescope.theory.modes import find_mode, find_preimage
from vaescope.theory.optimal import check_support
from vaescope.theory.pareto import smooth
from vaescope.theory.problem import InvertibleDecoder, Problem, latent_dimension, prepare, transform_nodes
from vaescope.validation import choice, whole_number

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
