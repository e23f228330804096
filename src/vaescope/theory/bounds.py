"""Bounds proved in the papers: on the KL to the true posterior, on its mean and variances, on the eigenvalues of Σ*."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import validation
from vaescope.distributions import Normal, Prior
from vaescope.errors import InputError
from vaescope.theory.assumptions import check_domination, check_lipschitz, check_log_concave
from vaescope.theory.derivatives import Decoder, jacobians

STANDARD_NORMAL = (0.5, 0.5 * math.log(2 * math.pi))  # (D, E) with -log N(u; 0, 1) = D u² + E


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

    Args:
        mean: means of q.
        variance: variances of q.
        latent: g(x), the latents that decode to x.
        log_marginal: log p(x).
        lipschitz_inverse: a Lipschitz constant of g.
        precision: γ² = 1 / decoder variance.
        prior: N(0, I) by default.
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
    """An upper bound on the KL of the *optimal* diagonal q. Reizinger et al. 2022, Prop. 7 (Eq. 43).

    Args:
        latent: g(x), the latents that decode to x.
        log_marginal: log p(x).
        lipschitz: a Lipschitz constant of the decoder f.
        precision: γ² = 1 / decoder variance.
        domination: (D, E) with -log p₀(u) <= D u² + E for every latent; the default is that of N(0, 1).
    """
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
    """The limit of `kl_upper_bound` as γ → ∞ at x = f(z). Reizinger et al. 2022, Eq. 44.

    Args:
        decoder: a bijection of latents (N, d) and outputs (N, d).
        z: points at which to evaluate.
        lipschitz: a Lipschitz constant of the decoder.
        prior: N(0, I) by default.
        domination: see `kl_upper_bound`.
    """
    prior = Normal() if prior is None else prior
    check_lipschitz(lipschitz=lipschitz)
    check_domination(prior, domination)
    log_det = torch.cat([_log_det(J) for J in jacobians(decoder, z)])
    log_marginal = prior.log_density(z).sum(1) - log_det
    d, (D, E) = z.shape[1], domination
    return d * (0.5 * lipschitz**2 + E - 0.5) + D * z.square().sum(1) + log_marginal


def _log_det(J: Float[Tensor, "N n d"]) -> Float[Tensor, " N"]:
    if J.shape[1] != J.shape[2]:
        raise InputError(f"Eq. 44 needs as many outputs as latents, got {J.shape[1]} outputs of {J.shape[2]} latents.")
    return torch.linalg.slogdet(J).logabsdet


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

    Args:
        latent: g(x), the latents that decode to x.
        lipschitz: C, a Lipschitz constant of the decoder f.
        lipschitz_inverse: B, a Lipschitz constant of g.
        precision: γ² = 1 / decoder variance.
        share: ν, above 0 and at most 1.
        domination: see `kl_upper_bound`.
        log_mode: M, the largest value of log p₀ of a latent; the default is that of N(0, 1).
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
    whose statement is for any centre, not only for μ. For one latent and the centre μ the two agree.

    Args:
        variance: of the latents.
        outputs: n, the number of outputs.
        second_derivative: K, a bound on every |∂²f_l/∂z_i∂z_j|.
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

    Args:
        J: Jacobian of the decoder at each point.
        prior_variance: variance of each latent under the prior, at each point.
        precision: γ² = 1 / decoder variance.

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
    """`eigenvalue_bounds` of a decoder at each point; the prior's variance is the inverse of its curvature at z.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points at which to evaluate.
        precision: γ² = 1 / decoder variance.
        prior: N(0, I) by default; log-concave at z.
    """
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
