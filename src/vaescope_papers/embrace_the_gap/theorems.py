"""Statements that are proved in the paper, and their assumptions: bounds, existence of the optimum, next variance.

Arguments have the same meaning everywhere: `latent` is g(x), the latents that decode to x; `precision` is γ² = 1 /
decoder variance; `lipschitz` and `lipschitz_inverse` are Lipschitz constants C of the decoder f and B of its inverse g;
`domination` is (D, E) with -log p₀(u) <= D u² + E for every latent, by default that of N(0, 1); `log_mode` is M, the
largest value of log p₀ of a latent, by default that of N(0, 1); and the default prior is N(0, I).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, Prior
from vaescope.inference.derivatives import Decoder, jacobians
from vaescope.inference.expansion import Taylor, along, expand_misfit, mean_offset

STANDARD_NORMAL = (0.5, 0.5 * math.log(2 * math.pi))  # (D, E) with -log N(u; 0, 1) = D u² + E


# assumptions ----------------------------------------------------------------------------------


def check_lipschitz(*, lipschitz: float | None = None, lipschitz_inverse: float | None = None) -> None:
    """Constants must be > 0, and those of f and of g = f⁻¹ must have a product of at least 1."""
    given = {"lipschitz": lipschitz, "lipschitz_inverse": lipschitz_inverse}
    for name, value in given.items():
        if value is not None and value != float("inf"):
            validation.number(name, value, above=0.0)
    if lipschitz is not None and lipschitz_inverse is not None and lipschitz * lipschitz_inverse < 1 - 1e-9:
        raise InputError(
            f"lipschitz * lipschitz_inverse must be at least 1 for a map and its inverse, got {lipschitz:g} * "
            f"{lipschitz_inverse:g}."
        )


def check_log_concave(prior: Prior) -> None:
    """Assumption 1 (i) of Reizinger et al. 2022: supported on all of R, with (log p₀)'' <= 0."""
    if prior.bounds is not None:
        raise InputError("the bound needs a prior that is supported on all of R; this one is bounded.")
    if bool((prior.curvature(examined_points(prior)) < -1e-9).any()):
        raise InputError("the bound needs a log-concave prior; this one is not.")


def check_domination(prior: Prior, domination: tuple[float, float]) -> None:
    """-log p₀(u) <= D u² + E, as Prop. 7 of Reizinger et al. 2022 assumes."""
    D, E = domination
    check_log_concave(prior)
    points = examined_points(prior)
    if bool((-prior.log_density(points) > D * points.square() + E + 1e-9).any()):
        raise InputError(
            f"domination must satisfy -log p(u) <= D u² + E for every u; D = {D:g}, E = {E:g} does not for this prior."
        )


def examined_points(prior: Prior) -> Tensor:
    """Points of every latent, 6 standard deviations to either side of the prior's mean, (401, d) or (401, 1)."""
    mean, variance = (torch.as_tensor(value, dtype=torch.float64) for value in prior.mean_and_variance())
    steps = torch.linspace(-6, 6, 401, dtype=torch.float64).unsqueeze(1)
    return mean + variance.sqrt() * steps


# bounds ---------------------------------------------------------------------------------------


def kl_lower_bound(
    mean: Float[Tensor, "N d"],
    variance: Float[Tensor, "N d"],
    *,
    latent: Float[Tensor, "N d"],
    log_marginal: Float[Tensor, " N"],
    lipschitz_inverse: float,
    precision: float,
    prior: Prior | None = None,
) -> Float[Tensor, " N"]:
    """A lower bound on KL[q(z|x) || p(z|x)] for any diagonal q and a log-concave prior.

    Reizinger et al. 2022, Prop. 6 (Eq. 42), for as many observed dimensions as latents.
    """
    prior = Normal() if prior is None else prior
    gamma2 = validation.precision(precision)
    check_lipschitz(lipschitz_inverse=lipschitz_inverse)
    check_log_concave(prior)
    d = mean.shape[1]
    constant = -0.5 * d * (math.log(gamma2) + 1) + log_marginal
    spread = (latent - mean).square().sum(1) + variance.sum(1)
    entropy_and_prior = -(0.5 * variance.log() + prior.log_density(mean)).sum(1)
    return entropy_and_prior + constant + 0.5 * gamma2 * spread / lipschitz_inverse**2


def kl_upper_bound(
    *,
    latent: Float[Tensor, "N d"],
    log_marginal: Float[Tensor, " N"],
    lipschitz: float,
    precision: float,
    domination: tuple[float, float] = STANDARD_NORMAL,
) -> Float[Tensor, " N"]:
    """An upper bound on the KL of the *optimal* diagonal q. Reizinger et al. 2022, Prop. 7 (Eq. 43)."""
    gamma2 = validation.precision(precision)
    check_lipschitz(lipschitz=lipschitz)
    d = latent.shape[1]
    D, E = domination
    return d * (0.5 * lipschitz**2 + E - 0.5) + D * (latent.square().sum(1) + d / gamma2) + log_marginal


def kl_upper_limit(
    decoder: Decoder,
    z: Float[Tensor, "N d"],
    *,
    lipschitz: float,
    prior: Prior | None = None,
    domination: tuple[float, float] = STANDARD_NORMAL,
) -> Float[Tensor, " N"]:
    """The limit of `kl_upper_bound` as γ → ∞ at x = f(z), for a bijective decoder. Reizinger et al. 2022, Eq. 44."""
    prior = Normal() if prior is None else prior
    check_lipschitz(lipschitz=lipschitz)
    check_domination(prior, domination)
    J = torch.cat(list(jacobians(decoder, z)))
    if J.shape[1] != J.shape[2]:
        raise InputError(f"Eq. 44 needs as many outputs as latents, got {J.shape[1]} outputs of {J.shape[2]} latents.")
    log_det = torch.linalg.slogdet(J).logabsdet
    log_marginal = prior.log_density(z).sum(1) - log_det
    d, (D, E) = z.shape[1], domination
    return d * (0.5 * lipschitz**2 + E - 0.5) + D * z.square().sum(1) + log_marginal


def self_consistency_bound(
    *,
    latent: Float[Tensor, "N d"],
    lipschitz: float,
    lipschitz_inverse: float,
    precision: float,
    share: float = 1.0,
    domination: tuple[float, float] = STANDARD_NORMAL,
    log_mode: float = -STANDARD_NORMAL[1],
) -> Float[Tensor, " N"]:
    r"""A bound on ‖g(x) - μ*‖² + (1 - ν) Σ_k σ*_k² of the optimal posterior. Reizinger et al. 2022, Eq. 25.

    .. math:: \frac{2 d B^2}{\gamma^2} \Big( \tfrac12 (C^2 - 1) + E
        + D \big[ \tfrac1d \|g(x)\|^2 + \tfrac1{\gamma^2} \big] + M + \tfrac12 \log \tfrac{B^2}{\nu} \Big)

    Prop. 3 is the case ν = 1, a bound on the squared distance of the mean, and ν = ½, twice which bounds the variances.

    Here `share` is ν.
    """
    gamma2 = validation.precision(precision)
    if not 0 < share <= 1:
        raise InputError(f"share must be above 0 and at most 1, got {share}; 1 bounds the mean.")
    check_lipschitz(lipschitz=lipschitz, lipschitz_inverse=lipschitz_inverse)
    d, (D, E) = latent.shape[1], domination
    level = 0.5 * (lipschitz**2 - 1) + E + log_mode + 0.5 * math.log(lipschitz_inverse**2 / share)
    spread = D * (latent.square().sum(1) / d + 1 / gamma2)
    return lipschitz_inverse**2 * 2 * d / gamma2 * (level + spread)


def taylor_bound(variance: Float[Tensor, "N d"], *, outputs: int, second_derivative: float) -> Float[Tensor, " N"]:
    r"""A bound on E‖f(z) - f(μ) - J(μ)(z - μ)‖² for z ~ N(μ, diag(σ²)).

    .. math:: \frac{n d^2}{4} K^2 \Big( 2 \sum_k \sigma_k^4 + \big(\sum_k \sigma_k^2\big)^2 \Big)

    Reizinger et al. 2022, Lemma 3 (Eq. 47), whose proof drops the products of different latents from E‖z - μ‖⁴ and
    whose statement is for any centre, not only for μ. For one latent and the centre μ the two agree. n is the number of
    outputs, and K, `second_derivative`, a bound on every |∂²f_l/∂z_i∂z_j|.
    """
    validation.number("second_derivative", second_derivative, minimum=0.0)
    d = variance.shape[1]
    moments = 2 * variance.square().sum(1) + variance.sum(1).square()
    return outputs * d**2 / 4 * second_derivative**2 * moments


def eigenvalue_bounds(
    J: Float[Tensor, "N n d"], *, prior_variance: Float[Tensor, "N d"], precision: float
) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
    r"""Lower and upper bounds on the eigenvalues of Σ*, in ascending order.

    .. math:: \Sigma^* = (\Sigma^{\dagger-1} + \gamma^2 J^\top J)^{-1}, \qquad
        \frac{1}{1/\lambda^\dagger_{min} + \gamma^2 s_i} \le \lambda^*_i \le
        \frac{1}{1/\lambda^\dagger_{max} + \gamma^2 s_i}

    with s_i the eigenvalues of JᵀJ in descending order and λ† the prior's variances. Bonheme & Grzes 2023, Eq. 12.

    >>> eigenvalue_bounds(torch.diag(torch.tensor([1.0, 3.0]))[None], prior_variance=torch.ones(1, 2), precision=1.0)[0]
    tensor([[0.1000, 0.5000]])
    """
    gamma2 = validation.precision(precision)
    squares = torch.linalg.svdvals(J) ** 2  # eigvalsh of JᵀJ would lose small values to rounding
    squares = torch.nn.functional.pad(squares, (0, J.shape[-1] - squares.shape[-1]))
    smallest, largest = prior_variance.amin(-1, keepdim=True), prior_variance.amax(-1, keepdim=True)
    return 1 / (1 / smallest + gamma2 * squares), 1 / (1 / largest + gamma2 * squares)


def covariance_bounds(
    decoder: Decoder, z: Float[Tensor, "N d"], *, precision: float, prior: Prior | None = None
) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
    """`eigenvalue_bounds` of a decoder at each point; the prior's variance is the inverse of its curvature at z."""
    prior = Normal() if prior is None else prior
    curvature = prior.curvature(z)
    if bool((curvature < 0).any()):
        raise InputError("covariance_bounds needs a prior that is log-concave at every z; this one is not.")
    variance, first, bounds = 1 / curvature, 0, []
    for J in jacobians(decoder, z):
        own = variance[first : first + len(J)]
        bounds.append(eigenvalue_bounds(J, prior_variance=own, precision=precision))
        first += len(J)
    lower, upper = zip(*bounds, strict=True)
    return torch.cat(lower), torch.cat(upper)


# existence of the optimum ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Region:
    """Every diagonal Gaussian outside has a larger KL than the reference, so that the optimum exists and is inside."""

    centre: Float[Tensor, "N d"]
    radius: Float[Tensor, " N"]
    """Of a ball around the centre that contains the mean."""
    smallest: Float[Tensor, " N"]
    largest: Float[Tensor, " N"]
    """Bounds on every standard deviation."""

    @property
    def bounded(self) -> Bool[Tensor, " N"]:
        """Whether the region is compact; False if no Lipschitz constant of g is known."""
        return self.radius.isfinite() & self.largest.isfinite()

    def contains(self, mean: Float[Tensor, "N d"], variance: Float[Tensor, "N d"]) -> Bool[Tensor, " N"]:
        deviation = variance.sqrt()
        inside = (deviation >= self.smallest[:, None]) & (deviation <= self.largest[:, None])
        return inside.all(1) & ((mean - self.centre).norm(dim=1) <= self.radius)


def optimum_region(
    *,
    latent: Float[Tensor, "N d"],
    log_marginal: Float[Tensor, " N"],
    kl: Float[Tensor, " N"],
    lipschitz_inverse: float,
    precision: float,
    log_mode: float = -STANDARD_NORMAL[1],
) -> Region:
    """The region of Prop. 2 (Eqs. 17 to 20), for a log-concave prior and as many outputs as latents.

    `kl` is the KL to the true posterior of any diagonal Gaussian, such as N(g(x), I/γ²). If g has no Lipschitz
    constant, `lipschitz_inverse` is infinite and the region is all of space.
    """
    check_lipschitz(lipschitz_inverse=lipschitz_inverse)
    gamma2, d = validation.precision(precision), latent.shape[1]
    constant = -0.5 * d * (math.log(gamma2) + 1) + log_marginal - d * log_mode
    return _region(latent, gamma2 / lipschitz_inverse**2, kl - constant)


def prior_region(
    *, log_marginal: Float[Tensor, " N"], kl: Float[Tensor, " N"], latents: int, precision: float
) -> Region:
    """A region that needs no property of the decoder: the prior N(0, I) alone makes the KL grow without bound.

    The misfit is not negative, so KL >= -Σ log σ + ½ (‖μ‖² + Σ σ²) + d/2 log 2π + c(x, γ), for as many outputs as
    latents. Prop. 2 assumes a Lipschitz inverse, which existence does not need.
    """
    gamma2 = validation.precision(precision)
    constant = -0.5 * latents * (math.log(gamma2) + 1) + log_marginal + 0.5 * latents * math.log(2 * math.pi)
    return _region(torch.zeros(len(kl), latents).to(kl), 1.0, kl - constant)


def _region(centre: Float[Tensor, "N d"], curvature: float, level: Float[Tensor, " N"]) -> Region:
    """Where Σ_k [-log σ_k + a σ_k²/2] + a ‖μ - c‖²/2 <= level. Each bracket is at least (1 + log a)/2 (Lemma 4)."""
    if curvature == 0:
        infinite = torch.full_like(level, torch.inf)
        return Region(centre, infinite, torch.zeros_like(level), infinite)
    least = 0.5 * (1 + math.log(curvature))
    d = centre.shape[1]
    radius = (2 * (level - d * least) / curvature).clamp_min(0).sqrt()
    # with y = a σ² the bracket is ½ (y - log y) + ½ log a
    small, large = _roots((2 * (level - (d - 1) * least) - math.log(curvature)).clamp_min(1))
    return Region(centre, radius, (small / curvature).sqrt(), (large / curvature).sqrt())


def _roots(level: Float[Tensor, " N"]) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """The two y > 0 with y - log y = level >= 1, by Newton's method from outside, where it converges monotonically."""
    large = 2 * level
    log_small = -level
    for _ in range(60):
        large = large - (large - large.log() - level) / (1 - 1 / large).clamp_min(1e-300)
        large = torch.where(large.isfinite(), large, 1.0).clamp_min(1)
        rest = log_small.exp()
        log_small = (log_small - (rest - log_small - level) / (rest - 1).clamp_max(-1e-300)).clamp_max(0)
    return log_small.exp(), large


# Lipschitz constants and the next order of the variance ---------------------------------------


def lipschitz_constants(decoder: Decoder, z: Float[Tensor, "N d"]) -> tuple[float, float]:
    """Largest stretch of f, and of its inverse, over the given points: lower bounds on the constants C and B.

    The second is infinite if a Jacobian has not full column rank, where the propositions of the paper say nothing.

    >>> lipschitz_constants(lambda z: z * torch.tensor([2.0, 0.5]), torch.zeros(1, 2))
    (2.0, 2.0)
    """
    values = torch.cat([torch.linalg.svdvals(J) for J in jacobians(decoder, z)])
    smallest = float(values[:, -1].min()) if values.shape[1] == z.shape[1] else 0.0
    largest = float(values[:, 0].max())
    flat = smallest <= torch.finfo(z.dtype).eps * largest
    return largest, math.inf if flat else 1 / smallest


def next_variance(
    decoder: Decoder, z: Float[Tensor, "N d"], *, precision: float, prior: Prior | None = None
) -> Float[Tensor, "N d"]:
    """σ² of the optimal posterior at x = f(z), with a relative error of order 1/γ⁴; that of Eq. 12 is 1/γ².

    The decoder is smooth, and so is the prior, which must be unbounded. NaN where the Jacobian has not full column
    rank, or where the precision is too low for an expansion.

    >>> next_variance(lambda z: 3 * z, torch.zeros(1, 2), precision=1.0)
    tensor([[0.1000, 0.1000]])
    """
    gamma2 = validation.precision(precision)
    prior = Normal() if prior is None else prior
    if prior.bounds is not None:
        raise InputError("next_variance needs an unbounded prior; with a bounded one posteriors are not Gaussian in z.")
    parts, first = [], 0
    offsets = mean_offset(decoder, z, precision=gamma2, prior=prior)
    for taylor in expand_misfit(decoder, z, prior):
        offset = offsets[first : first + len(taylor.u)]
        first += len(taylor.u)
        lengths = taylor.J.square().sum(1)
        # V_kkll = H_kk·H_ll + 2 H_kl·H_kl + 2 J_k·T_kll + 2 J_l·T_kkl
        pure = taylor.H.diagonal(dim1=2, dim2=3)
        mixed = torch.einsum("nok,nokl->nkl", taylor.J, _third_derivatives(taylor))
        fourth = torch.einsum("nok,nol->nkl", pure, pure) + 2 * (taylor.H.square().sum(1) + mixed + mixed.mT)
        moved = gamma2 * torch.einsum("nikk,ni->nk", taylor.third(), offset)
        bent = 0.5 * torch.einsum("nkl,nl->nk", fourth, 1 / lengths)
        inverse = gamma2 * lengths + taylor.curvature + moved + bent
        parts.append(torch.where((inverse > 0) & offset.isfinite(), 1 / inverse, torch.nan))
    return torch.cat(parts)


def _third_derivatives(taylor: Taylor) -> Float[Tensor, "N n d d"]:
    """T_kll."""
    u, d = taylor.u, taylor.u.shape[1]
    axes = torch.eye(d, dtype=u.dtype, device=u.device).unsqueeze(1).expand(d, *u.shape)
    second = [along(along(taylor.function, axis), axis) for axis in axes]
    rows = [torch.stack([along(bend, axis)(u) for bend in second], dim=-1) for axis in axes]
    return torch.stack(rows, dim=-2)
