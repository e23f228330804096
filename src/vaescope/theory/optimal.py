"""Variances and covariances of optimal near-deterministic posteriors."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import validation
from vaescope.distributions import Normal, Prior
from vaescope.errors import InputError
from vaescope.theory.derivatives import Decoder, column_norms, jacobians


def check_support(z: Float[Tensor, "N d"], prior: Prior, name: str = "z") -> None:
    """Points must be inside the support of a bounded prior."""
    if prior.bounds is None:
        return
    low, high = prior.bounds
    outside = ((z <= low) | (z >= high)).any(1)
    if bool(outside.any()):
        raise InputError(
            f"{name} must be inside the prior's support ({low}, {high}), but {int(outside.sum())} of "
            f"{len(z)} points are not (the first is row {int(outside.nonzero()[0])})."
        )


def optimal_variance(
    decoder: Decoder, z: Float[Tensor, "N d"], *, precision: float, prior: Prior | None = None
) -> Float[Tensor, "N d"]:
    r"""The posterior variances of a self-consistent encoder at z = g(x), up to O(1/γ⁴).

    .. math:: \sigma_k^2 = \left( -(\log p_0)''(z_k) + \gamma^2 \|J_{:,k}(z)\|^2 \right)^{-1}

    Reizinger et al. 2022, Eq. 12.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points at which to evaluate.
        precision: γ² = 1 / decoder variance.
        prior: N(0, I) by default.

    Returns:
        Infinite where Eq. 12 has no positive solution: a prior that is not log-concave, with too low a precision.

    >>> optimal_variance(lambda z: 3 * z, torch.zeros(1, 2), precision=1.0)
    tensor([[0.1000, 0.1000]])
    """
    prior = Normal() if prior is None else prior
    gamma2 = validation.precision(precision)
    norms = column_norms(decoder, z)
    check_support(z, prior)
    return 1 / (prior.curvature(z) + gamma2 * norms.square()).clamp_min(0)


def optimal_covariance(
    decoder: Decoder, z: Float[Tensor, "N d"], *, precision: float, prior: Prior | None = None
) -> Float[Tensor, "N d d"]:
    """Σ* = (Σ†⁻¹ + γ² JᵀJ)⁻¹, the covariance of the optimal full-covariance posterior.

    Bonheme & Grzes 2023, Eq. 11; here γ² is the precision, in the paper γ is the variance. Infinite where the inverse
    is not positive definite: a flat or not log-concave prior in a direction that the decoder does not use.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points at which to evaluate.
        precision: γ² = 1 / decoder variance.
        prior: N(0, I) by default.
    """
    prior = Normal() if prior is None else prior
    gamma2 = validation.precision(precision)
    gram = torch.cat([J.mT @ J for J in jacobians(decoder, z)])
    check_support(z, prior)
    inverse = torch.diag_embed(prior.curvature(z)) + gamma2 * gram
    usable = (torch.linalg.cholesky_ex(inverse).info == 0)[:, None, None]
    return torch.where(usable, torch.linalg.inv_ex(inverse).inverse, torch.inf)
