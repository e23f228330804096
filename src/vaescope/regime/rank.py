"""How many directions a decoder uses: its Jacobian's rank, against its noise (Bonheme & Grzes 2023, Eqs. 11, 12)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vaescope import validation
from vaescope.errors import InputError
from vaescope.theory.derivatives import Decoder, jacobians


def used_directions(
    decoder: Decoder,
    z: Float[Tensor, "N d"],
    *,
    precision: float,
    prior_variance: Tensor | float = 1.0,
    least: float = 0.05,
) -> Int[Tensor, " N"]:
    """The rank of the Jacobian against the noise: squared singular values of γ J Σ†^½ above `least`.

    Such a value is how much an observation adds to the precision that the prior gives in that direction (Eq. 11). At
    the optimum of a linear VAE the rank is the number of active latents.

    >>> W = torch.tensor([[3.0, 0.0], [0.0, 0.1]], dtype=torch.float64)
    >>> used_directions(lambda z: z @ W.T, torch.zeros(1, 2, dtype=torch.float64), precision=1.0)
    tensor([1])
    """
    validation.precision(precision)
    scale = torch.as_tensor(prior_variance).to(z)
    if not bool((scale > 0).all()) or scale.ndim > 2 or (scale.ndim and scale.shape[-1] not in (1, z.shape[1])):
        raise InputError(f"prior_variance must be > 0, a number or one per latent, got {prior_variance}.")
    scale = scale.sqrt().expand(z.shape)
    found, first = [], 0
    for J in jacobians(decoder, z):
        own = scale[first : first + len(J)].unsqueeze(1)
        found.append((precision * torch.linalg.svdvals(J * own) ** 2 > least).sum(-1))
        first += len(J)
    return torch.cat(found)


def eigenvalue_bounds(
    J: Float[Tensor, "N n d"], prior_variance: Float[Tensor, "N d"], precision: float
) -> tuple[Float[Tensor, "N d"], Float[Tensor, "N d"]]:
    r"""Bounds on the eigenvalues of the optimal covariance, in descending order.

    .. math:: \Sigma^* = (\Sigma^{\dagger-1} + \gamma^2 J^\top J)^{-1}, \qquad
        \frac{1}{1/\lambda^\dagger_{min} + \gamma^2 \lambda_i} \le \lambda^*_i \le
        \frac{1}{1/\lambda^\dagger_{max} + \gamma^2 \lambda_i}

    with λ_i the eigenvalues of JᵀJ in ascending order. Bonheme & Grzes 2023, Eq. 12.
    """
    squares = torch.linalg.svdvals(J) ** 2  # not the eigenvalues of JᵀJ, whose rounding drowns small ones
    missing = J.shape[-1] - squares.shape[-1]
    curvature = precision * torch.nn.functional.pad(squares, (0, missing)).flip(-1)
    low, high = (1 / pick.values.unsqueeze(-1) for pick in (prior_variance.min(-1), prior_variance.max(-1)))
    return 1 / (low + curvature), 1 / (high + curvature)
