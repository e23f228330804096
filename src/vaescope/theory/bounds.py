"""What the papers prove with inequalities: bounds on the KL to the true posterior, and on Σ*."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import validation
from vaescope.distributions import Normal, Prior
from vaescope.theory.derivatives import Decoder, jacobians


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
    """A lower bound of KL[q(z|x) || p(z|x)] for any diagonal q and a log-concave prior.

    Reizinger et al. 2022, Prop. 6 (Eq. 42): `latent` is g(x), `lipschitz_inverse` a Lipschitz
    constant of g. For as many observed dimensions as latents.
    """
    prior = Normal() if prior is None else prior
    gamma2 = validation.precision(precision)
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
    domination: tuple[float, float] = (0.5, 0.5 * math.log(2 * math.pi)),
) -> Float[Tensor, " N"]:
    """An upper bound of the KL of the *optimal* diagonal q.

    Reizinger et al. 2022, Prop. 7 (Eq. 43): `lipschitz` is a Lipschitz constant of f, and
    `domination` = (D, E) with -log p₀(u) <= D u² + E for every latent (the default: N(0, 1)).
    """
    gamma2 = validation.precision(precision)
    d = latent.shape[1]
    D, E = domination
    return d * (0.5 * lipschitz**2 + E - 0.5) + D * (latent.square().sum(1) + d / gamma2) + log_marginal


def covariance_bounds(
    decoder: Decoder, z: Float[Tensor, "N d"], *, precision: float, prior: Prior | None = None
) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
    """Bounds on the eigenvalues of Σ*, in ascending order (Bonheme & Grzes 2023, Eq. 12).

    1 / (1/λ†_min + γ² s_i) <= λ_i <= 1 / (1/λ†_max + γ² s_i), with s_i the eigenvalues of JᵀJ in
    descending order and λ† the prior's variances (the inverse of its curvature at z).
    """
    prior = Normal() if prior is None else prior
    gamma2 = validation.precision(precision)
    squares = torch.cat([torch.linalg.eigvalsh(J.mT @ J) for J in jacobians(decoder, z)]).flip(-1).clamp_min(0)
    curvature = prior.curvature(z)
    largest, smallest = curvature.amax(1, keepdim=True), curvature.amin(1, keepdim=True)
    return 1 / (largest + gamma2 * squares), 1 / (smallest + gamma2 * squares)
