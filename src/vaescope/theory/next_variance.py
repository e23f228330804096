r"""The variances of the optimal posterior to the order beyond Eq. 12 of Reizinger et al. 2022.

With the misfit's derivatives V of `taylor`, a the offset of the mean and s_l = 1/(γ²‖J_l‖²),

.. math:: \frac1{\sigma_k^2} = \gamma^2 \|J_k\|^2 + \kappa_k
    + \gamma^2 \Big( \sum_i V_{ikk} a_i + \tfrac12 \sum_l V_{kkll} s_l \Big) + O(1/\gamma^2).

The bracket is of order 1/γ², so the term with it is as large as the prior's κ. Eq. 12 keeps κ and drops the other.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import validation
from vaescope.distributions import Normal, Prior
from vaescope.errors import InputError
from vaescope.theory.derivatives import Decoder
from vaescope.theory.expansion import mean_offset
from vaescope.theory.taylor import Taylor, along, expand_misfit


def next_variance(
    decoder: Decoder, z: Float[Tensor, "N d"], *, precision: float, prior: Prior | None = None
) -> Float[Tensor, "N d"]:
    """σ² of the optimal posterior at x = f(z), with a relative error of order 1/γ⁴; that of Eq. 12 is 1/γ².

    Args:
        decoder: a smooth map of latents (N, d) to outputs (N, ...).
        z: latents; the observations are f(z).
        precision: γ² = 1 / decoder variance.
        prior: N(0, I) by default; unbounded, and smooth.

    Returns:
        NaN where the Jacobian has not full column rank, or where the precision is too low for an expansion.

    >>> next_variance(lambda z: 3 * z, torch.zeros(1, 2), precision=1.0)
    tensor([[0.1000, 0.1000]])
    """
    gamma2 = validation.precision(precision)
    prior = Normal() if prior is None else prior
    if prior.bounds is not None:
        raise InputError("next_variance needs an unbounded prior; with a bounded one posteriors are not Gaussian in z.")
    parts, first = [], 0
    offset = mean_offset(decoder, z, precision=gamma2, prior=prior)
    for taylor in expand_misfit(decoder, z, prior):
        parts.append(_variance(taylor, gamma2, offset[first : first + len(taylor.u)]))
        first += len(taylor.u)
    return torch.cat(parts)


def _variance(taylor: Taylor, gamma2: float, offset: Float[Tensor, "N d"]) -> Float[Tensor, "N d"]:
    lengths = taylor.J.square().sum(1)
    moved = gamma2 * torch.einsum("nikk,ni->nk", taylor.third(), offset)
    bent = 0.5 * torch.einsum("nkl,nl->nk", _fourth(taylor), 1 / lengths)
    inverse = gamma2 * lengths + taylor.curvature + moved + bent
    return torch.where((inverse > 0) & offset.isfinite(), 1 / inverse, torch.nan)


def _fourth(taylor: Taylor) -> Float[Tensor, "N d d"]:
    """V_kkll = H_kk·H_ll + 2 H_kl·H_kl + 2 J_k·T_kll + 2 J_l·T_kkl."""
    pure = taylor.H.diagonal(dim1=2, dim2=3)
    mixed = torch.einsum("nok,nokl->nkl", taylor.J, _third_derivatives(taylor))
    return torch.einsum("nok,nol->nkl", pure, pure) + 2 * (taylor.H.square().sum(1) + mixed + mixed.mT)


def _third_derivatives(taylor: Taylor) -> Float[Tensor, "N n d d"]:
    """T_kll."""
    u, d = taylor.u, taylor.u.shape[1]
    axes = torch.eye(d, dtype=u.dtype, device=u.device).unsqueeze(1).expand(d, *u.shape)
    second = [along(along(taylor.function, axis), axis) for axis in axes]
    rows = [torch.stack([along(bend, axis)(u) for bend in second], dim=-1) for axis in axes]
    return torch.stack(rows, dim=-2)
