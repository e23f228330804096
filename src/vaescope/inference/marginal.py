"""log p(x) by quadrature, Pareto-smoothed importance sampling or change of variables; for annealing see `annealing`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import randomness
from vaescope.core.errors import InputError
from vaescope.core.validation import choice, integer
from vaescope.distributions import FullGaussian, Prior, quadrature
from vaescope.inference.derivatives import Decoder, jacobians
from vaescope.inference.geometry import check_support
from vaescope.inference.joint import (
    DecoderJoint,
    Gaussian,
    InvertibleDecoder,
    Joint,
    Precision,
    decoder_joint,
    find_mode,
    laplace,
    transform_nodes,
)

FREEDOM = 5.0  # degrees of freedom of the Student proposal: heavier tails than any posterior with a Gaussian prior


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
    precision: Precision,
    prior: Prior | None = None,
    method: str = "quadrature",
    start: Float[Tensor, "N d"] | None = None,
    latent_dim: int | None = None,
    proposal: FullGaussian | None = None,
    samples: int = 4000,
    seed: int = 0,
) -> LogMarginal:
    """log p(x) = log ∫ p(x|z) p₀(z) dz of each point.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        x: observations.
        precision: γ² = 1 / decoder variance; one number, one for each observation, or a `Noise`.
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
    choice("method", method, ("quadrature", "importance", "flow"))
    joint, guess = decoder_joint(
        decoder,
        x,
        precision=precision,
        prior=prior,
        start=start,
        latent_dim=latent_dim or (None if start is not None or proposal is None else proposal.mean.shape[1]),
    )
    if method == "flow":
        if joint.x.shape[1] != joint.dim:
            raise InputError(f"method 'flow' needs as many outputs as latents, got {joint.x.shape[1]} and {joint.dim}.")
        z = inverse_latents(joint, guess, "method 'flow'")
        log_det = torch.cat([torch.linalg.slogdet(J).logabsdet for J in jacobians(joint.decoder, z)])
        value = joint.prior.log_density(z).sum(-1) - log_det + joint.log_volume  # Reizinger et al. 2022, Eq. 4
        return LogMarginal(value, torch.zeros_like(value), None)
    if method == "quadrature" and joint.dim > 8:
        raise InputError(f"method 'quadrature' supports up to 8 latents, got {joint.dim}; use method='importance'.")
    generator = randomness.generator(seed, "importance")
    integer("samples", samples, minimum=100)
    given = method == "importance" and proposal is not None
    around = Gaussian(proposal.mean, proposal.scale) if given and proposal else laplace(joint, find_mode(joint, guess))
    orders = [o for o in (5, 9, 15, 25, 41) if o**joint.dim <= 20_000] or [3]
    return marginal(
        joint,
        around,
        method=method,
        orders=orders if len(orders) > 1 else [max(2, orders[0] - 1), orders[0]],
        samples=samples,
        generator=generator,
        freedom=math.inf if given else FREEDOM,
    )


def marginal(
    joint: Joint,
    around: Gaussian,
    *,
    method: str,
    orders: Sequence[int] = (),
    tolerance: float = 1e-10,
    together: bool = False,
    samples: int = 4000,
    generator: torch.Generator | None = None,
    freedom: float = FREEDOM,
    noise: Float[Tensor, "N S d"] | None = None,
) -> LogMarginal:
    """log p(x) of any p(x, u), by quadrature or importance sampling around a Gaussian N(c, A Aᵀ) of each point.

    `quadrature` is log |A| (2π)^{d/2} Σ_q w_q exp(log p(x, u_q) + ½ ‖t_q‖²) with u_q = c + A t_q, by higher and higher
    orders. `importance` averages the weights p(x, u) / q(u), where q is a Student distribution with the scale A.

    Args:
        joint: p(x, u).
        around: where most of p(u|x) is.
        method: `quadrature` or `importance`.
        orders: of quadrature, to try in turn, at least two.
        tolerance: change from one order to the next in nats at which a point is done.
        together: go on with all points while any is not done.
        samples: draws per point of importance sampling.
        generator: of these draws.
        freedom: degrees of freedom of q; infinite for a Gaussian.
        noise: the standard draws, if they are made already.
    """
    mean, factor = around.centre, around.factor
    log_volume = factor.diagonal(dim1=1, dim2=2).log().sum(-1)
    half_log = 0.5 * joint.dim * math.log(2 * math.pi)
    if method == "importance":
        parts = []
        constant = -half_log
        if not math.isinf(freedom):
            constant = math.lgamma((freedom + joint.dim) / 2) - math.lgamma(freedom / 2)
            constant -= 0.5 * joint.dim * math.log(freedom * math.pi)
        for rows in joint.chunks(samples):
            count = len(mean[rows])
            t = draw_student(count, samples, joint.dim, freedom, generator) if noise is None else noise[rows]
            t = t.to(mean)
            squares = t.square().sum(-1)
            tails = 0.5 * (freedom + joint.dim) * torch.log1p(squares / freedom)
            log_q = constant - (0.5 * squares if math.isinf(freedom) else tails) - log_volume[rows, None]
            u = transform_nodes(mean[rows], factor[rows], t)
            parts.append(smoothed_mean(joint.take(rows).log_joint(u) - log_q))
        values, errors, shapes = zip(*parts, strict=True)
        return LogMarginal(torch.cat(values), torch.cat(errors), torch.cat(shapes))
    points = torch.arange(len(mean), device=mean.device)
    value, error = torch.zeros_like(log_volume), torch.full_like(log_volume, math.inf)
    for index, order in enumerate(orders):
        nodes, weights = quadrature.hermite_grid(joint.dim, order, mean)
        correction, part, sums = weights.log() + 0.5 * nodes.square().sum(-1), joint.take(points), []
        for rows in part.chunks(len(nodes)):
            u = transform_nodes(mean[points[rows]], factor[points[rows]], nodes)
            sums.append(torch.logsumexp(part.take(rows).log_joint(u) + correction, dim=1))
        finer = torch.cat(sums) + (log_volume + half_log)[points]
        if index:
            error[points] = (finer - value[points]).abs()
        value[points] = finer
        unresolved = error[points] > tolerance
        if not bool(unresolved.any()):
            break
        points = points if together else points[unresolved]
    return LogMarginal(value, error, None)


def smoothed_mean(log_weights: Float[Tensor, "N S"]) -> tuple[Tensor, Tensor, Tensor]:
    """Log of the mean weight with the largest weights smoothed, its standard error, and k̂."""
    weights, k = smooth(log_weights)
    samples = weights.shape[1]
    value = torch.logsumexp(weights, dim=1) - math.log(samples)
    return value, (weights - value[:, None]).exp().std(dim=1) / math.sqrt(samples), k


def draw_student(points: int, samples: int, dim: int, freedom: float, generator: torch.Generator | None) -> Tensor:
    """(points, samples, dim) draws of the standard Student distribution; normal if `freedom` is infinite."""
    noise = torch.randn(points, samples, dim, generator=generator, dtype=torch.float64)
    if math.isinf(freedom):
        return noise
    half = torch.full((points, samples, 1), freedom / 2, dtype=torch.float64)
    return noise * (half / torch._standard_gamma(half, generator=generator)).sqrt()


def inverse_latents(joint: DecoderJoint, guess: Float[Tensor, "N d"] | None, name: str) -> Float[Tensor, "N d"]:
    """g(x): the latents that decode to x, or with more outputs than latents nearest to x.

    Without an inverse of the decoder's own, modes at rising precisions approach it, and Newton steps, kept where they
    bring f closer to x, end there.

    Args:
        joint: as many outputs as latents, or more; its precision does not matter.
        guess: a start in u, exact for a decoder with its own inverse.
        name: of what needs them, for the error if x is not in the decoder's image.
    """
    x = joint.x
    square = x.shape[1] == joint.dim
    if guess is not None and square and isinstance(joint.decoder, InvertibleDecoder):
        u = guess
    else:
        found = guess
        for precision in (10.0, 1e3, 1e6):
            found = find_mode(replace(joint, precision=torch.full_like(joint.precision, precision)), found)
        assert found is not None
        u = found
        for _ in range(8):
            output, J = joint.linearise(u)
            residual = (x - output).unsqueeze(-1)
            step = torch.linalg.solve_ex(J, residual).result if square else torch.linalg.lstsq(J, residual).solution
            trial = u + step.squeeze(-1)
            closer = (joint.output(trial) - x).norm(dim=1) < (output - x).norm(dim=1)
            u = torch.where(closer[:, None], trial, u)
    outside = ~((joint.output(u) - x).norm(dim=1) <= 1e-6 * (1 + x.norm(dim=1)))
    if bool(outside.any()):
        raise InputError(
            f"{name} needs x in the decoder's image, but {int(outside.sum())} of {len(u)} points are not "
            f"(the first is row {int(outside.nonzero()[0])})."
        )
    z = joint.prior.to_support(u)
    check_support(z, joint.prior, "g(x)")
    return z


# Pareto smoothing -------------------------------------------------------------------------------


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
