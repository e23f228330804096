"""Angles between the columns of matrices, such as Jacobians."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def unit_columns(M: Float[Tensor, "*batch n d"]) -> tuple[Float[Tensor, "*batch n d"], Float[Tensor, "*batch d"]]:
    """Columns scaled to length one, and their original lengths; zero columns stay zero."""
    norms = M.norm(dim=-2)
    return M / torch.where(norms > 0, norms, 1).unsqueeze(-2), norms


def gram_share(M: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch"]:
    """Mean squared cosine between two columns: the off-diagonal share of their normalised Gram matrix.

    Zero columns have no direction and are ignored. With fewer than two other columns the share is 0.

    >>> gram_share(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    tensor(0.5000)
    """
    normalised, norms = unit_columns(M)
    nonzero = (norms > 0).sum(-1)
    gram = normalised.mT @ normalised
    squares = gram.square().sum((-2, -1)) - gram.diagonal(dim1=-2, dim2=-1).square().sum(-1)
    return squares / (nonzero * (nonzero - 1)).clamp(min=1)


def column_angles(M: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch d d"]:
    """Angles between columns in degrees, from 0 (parallel or antiparallel) to 90; NaN for zero columns.

    >>> column_angles(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))[0, 1]
    tensor(90.)
    """
    normalised, norms = unit_columns(M)
    cosines = (normalised.mT @ normalised).abs().clamp(max=1)
    angles = torch.rad2deg(torch.arccos(cosines))
    nonzero = norms > 0
    return torch.where(nonzero.unsqueeze(-1) & nonzero.unsqueeze(-2), angles, torch.nan)
