"""The nearest matrix with orthonormal columns, and measures of how orthogonal the columns of a matrix are."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.theory import angles
from vaescope.theory.ima import contrast_of_matrix
from vaescope.validation import matrices


def nearest_orthonormal(M: object) -> np.ndarray | Tensor:
    r"""The matrix with orthonormal columns nearest to M in Frobenius norm: its polar factor.

    .. math:: M (M^\top M)^{-1/2} = U V^\top, \qquad M = U \Sigma V^\top

    Bhowal et al. 2024, Prop. 7, which has the exponent +1/2. Nothing of size n x n is formed.

    Args:
        M: matrices (..., n, d) with n >= d. A tensor gives a tensor, anything else an array.

    >>> nearest_orthonormal([[2.0, 0.0], [0.0, 0.5], [0.0, 0.0]])
    array([[1., 0.],
           [0., 1.],
           [0., 0.]])
    """
    nearest = polar(matrices(M, "M"))
    if not isinstance(M, Tensor):
        return nearest.numpy()
    return nearest.to(M) if M.is_floating_point() else nearest.to(M.device)


def polar(M: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    """U Vᵀ of M = U Σ Vᵀ."""
    U, _, Vh = torch.linalg.svd(M, full_matrices=False)
    return U @ Vh


def column_contrast(M: object) -> Float[Tensor, "*batch"]:
    """c_IMA of matrices (..., n, d) in float64: `vs.theory.contrast_of_matrix` for arrays of any kind.

    >>> column_contrast([[3.0, 0.0], [0.0, 0.1]])
    tensor(0., dtype=torch.float64)
    """
    return contrast_of_matrix(matrices(M, "M"))


def gram_share(M: object) -> Float[Tensor, "*batch"]:
    """Mean squared cosine between two columns of matrices (..., n, d); zero columns are ignored.

    >>> round(float(gram_share([[1.0, 1.0], [0.0, 1.0]])), 3)
    0.5
    """
    return angles.gram_share(matrices(M, "M"))


def column_angles(M: object) -> Float[Tensor, "*batch d d"]:
    """Angles between columns in degrees, from 0 (parallel or antiparallel) to 90; NaN for zero columns."""
    return angles.column_angles(matrices(M, "M"))
