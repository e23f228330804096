"""Independent mechanism analysis: how far the columns of a decoder's Jacobian are from orthogonal."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.theory.derivatives import Decoder, jacobians


def contrast_of_matrix(J: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    """Σ_k log ‖J_{:,k}‖ - ½ log det JᵀJ; +inf unless J has full column rank.

    Args:
        J: matrices (..., n, d).

    >>> contrast_of_matrix(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))  # ½ log 2
    tensor(0.3466)
    """
    n, d = J.shape[-2:]
    norms = J.norm(dim=-2, keepdim=True)
    if n < d:
        return torch.full_like(norms[..., 0, 0], torch.inf)
    # QR of the normalised columns: a Gram matrix would square the condition number, and singular values lose the
    # determinant of matrices such as Kahan's, whose smallest singular value is far below their smallest R_kk
    R = torch.linalg.qr(J / norms.clamp_min(torch.finfo(J.dtype).tiny), mode="r").R
    diagonal = R.diagonal(dim1=-2, dim2=-1).abs()
    full_rank = (diagonal > 4 * n**0.5 * torch.finfo(J.dtype).eps).all(-1) & (norms > 0).all(-1).all(-1)
    contrast = -diagonal.log().sum(-1)
    return torch.where(full_rank, contrast.clamp_min(0) + 0.0, torch.inf)  # negative values are rounding errors


def ima_contrast(decoder: Decoder, z: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
    r"""Distance of the decoder's Jacobian columns from orthogonality at each point, in nats.

    .. math:: c(z) = \sum_k \log \|J_{:,k}(z)\| - \tfrac12 \log\det J(z)^\top J(z)

    Zero exactly for orthogonal columns, non-negative (Hadamard), +inf for a rank-deficient Jacobian.
    Reizinger et al. 2022, Eq. 6; the Gram determinant extends it to n > d.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...); outputs are flattened.
        z: points at which to evaluate.

    >>> ima_contrast(lambda z: z @ torch.eye(2), torch.zeros(1, 2))
    tensor([0.])
    """
    return torch.cat([contrast_of_matrix(J) for J in jacobians(decoder, z)])


class Mean(NamedTuple):
    """A mean over points with its standard error."""

    value: float
    stderr: float


def global_contrast(decoder: Decoder, z: Float[Tensor, "N d"]) -> Mean:
    """C_IMA, the mean of the *local* contrasts over z (not the contrast of a mean Jacobian).

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points to average over, such as draws from the prior.
    """
    local = ima_contrast(decoder, z).detach()
    return Mean(float(local.mean()), float(local.std() / len(local) ** 0.5) if len(local) > 1 else torch.nan)


def conformal_of_matrix(J: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    """d log of the root mean square of the column norms, minus ½ log det JᵀJ; 0 exactly when JᵀJ ∝ I."""
    d = J.shape[-1]
    norms = J.norm(dim=-2)
    spread = 0.5 * d * norms.square().mean(-1).log() - norms.log().sum(-1)
    return contrast_of_matrix(J) + torch.where((norms > 0).all(-1), spread, torch.inf)


def conformal_contrast(decoder: Decoder, z: Float[Tensor, "N d"]) -> Float[Tensor, " N"]:
    r"""Distance of the decoder from a conformal map (orthogonal columns of equal length) at each point, in nats.

    .. math:: \tfrac d2 \log \tfrac1d \sum_k \|J_{:,k}\|^2 - \tfrac12 \log\det J^\top J

    This is c_IMA plus the spread of the column norms: the near-deterministic gap of an isotropic posterior, as c_IMA is
    the gap of a diagonal one.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points at which to evaluate.
    """
    return torch.cat([conformal_of_matrix(J) for J in jacobians(decoder, z)])
