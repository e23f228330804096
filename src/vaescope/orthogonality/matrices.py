"""Matrices whose columns should be orthogonal: the nearest that are, and two measures of how far these are."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.errors import InputError


def checked(matrices: object, name: str = "M") -> Float[Tensor, "*batch n d"]:
    """Finite matrices (..., n, d) with at least as many rows as columns, as a float64 tensor."""
    try:
        found = torch.as_tensor(matrices)
        if found.is_complex():
            raise InputError(f"{name} must be real, got complex numbers.")
        M = found.to(torch.float64).detach()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} must be an array of numbers, got {type(matrices).__name__}.") from None
    if M.ndim < 2 or 0 in M.shape:
        raise InputError(f"{name} must have rows and columns, shape (..., n, d), got {tuple(M.shape)}.")
    if M.shape[-2] < M.shape[-1]:
        raise InputError(
            f"{name} needs at least as many rows as columns to have orthogonal columns, got {M.shape[-2]} x "
            f"{M.shape[-1]}; is it transposed?"
        )
    if not bool(M.isfinite().all()):
        raise InputError(f"{name} must be finite, got NaN or infinity.")
    return M


def nearest_orthonormal(M: object) -> Any:
    r"""The matrix with orthonormal columns nearest to M in Frobenius norm: its polar factor.

    .. math:: M (M^\top M)^{-1/2} = U V^\top, \qquad M = U \Sigma V^\top

    Bhowal et al. 2024, Prop. 7, which has the exponent +1/2. Batches (..., n, d) are welcome; nothing n x n is formed.

    >>> nearest_orthonormal([[2.0, 0.0], [0.0, 0.5], [0.0, 0.0]])
    array([[1., 0.],
           [0., 1.],
           [0., 0.]])
    """
    nearest = polar(checked(M))
    if not isinstance(M, Tensor):
        return nearest.numpy()
    return nearest.to(M) if M.is_floating_point() else nearest.to(M.device)


def polar(M: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    """U Vᵀ of M = U Σ Vᵀ."""
    U, _, Vh = torch.linalg.svd(M, full_matrices=False)
    return U @ Vh


def column_contrast(M: object) -> Float[Tensor, "*batch"]:
    r"""c_IMA of a matrix, Σ log‖m_k‖ − ½ log det MᵀM: zero exactly for orthogonal columns, +inf for dependent ones.

    >>> column_contrast([[3.0, 0.0], [0.0, 0.1]])
    tensor(0., dtype=torch.float64)
    """
    normalised, norms = unit_columns(checked(M))
    singular = torch.linalg.svdvals(normalised)
    rounding = torch.finfo(torch.float64).eps * max(normalised.shape[-2:])
    lost = -torch.where(singular > rounding, singular.log(), -torch.inf).sum(-1)
    return torch.where((norms > 0).all(-1), lost.clamp(min=0).abs(), torch.inf)


def gram_share(M: object) -> Float[Tensor, "*batch"]:
    """The off-diagonal share of the Gram matrix of normalised columns: mean squared cosine between two columns.

    Columns of zeros have no direction and do not count; fewer than two others have nothing to share.

    >>> round(float(gram_share([[1.0, 1.0], [0.0, 1.0]])), 3)
    0.5
    """
    normalised, norms = unit_columns(checked(M))
    alive = (norms > 0).sum(-1)
    gram = normalised.mT @ normalised
    squares = gram.square().sum((-2, -1)) - gram.diagonal(dim1=-2, dim2=-1).square().sum(-1)
    return squares / (alive * (alive - 1)).clamp(min=1)


def column_angles(M: object) -> Float[Tensor, "*batch d d"]:
    """Angles between columns in degrees, from 0 (parallel, either way) to 90; NaN for a column of zeros."""
    normalised, norms = unit_columns(checked(M))
    cosines = (normalised.mT @ normalised).abs().clamp(max=1)
    angles = torch.rad2deg(torch.arccos(cosines))
    alive = norms > 0
    return torch.where(alive.unsqueeze(-1) & alive.unsqueeze(-2), angles, torch.nan)


def unit_columns(M: Float[Tensor, "*batch n d"]) -> tuple[Float[Tensor, "*batch n d"], Float[Tensor, "*batch d"]]:
    """Columns of length one, and the lengths they had; a column of zeros stays one."""
    norms = M.norm(dim=-2)
    return M / torch.where(norms > 0, norms, 1).unsqueeze(-2), norms
