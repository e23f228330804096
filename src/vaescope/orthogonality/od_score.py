"""OD-Score: how far a matrix's singular value decomposition is from that of orthogonal columns (Bhowal et al. 2024).

Orthogonal columns m_k have the decomposition U = (m_k/‖m_k‖), Σ = (‖m_k‖), V = I (Lemma 4). The score compares the
factors with these. But a decomposition is known only up to sign and order, and up to rotation where singular values
coincide: without alignment an exactly orthogonal matrix scores badly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vaescope.errors import InputError
from vaescope.orthogonality.matrices import checked, column_contrast, gram_share, nearest_orthonormal, unit_columns

COINCIDE = 1e-3  # relative gap below which singular values are taken as one
ROUNDING = 1e-20  # squared distances below this, relative to the matrix, are zero
NULL_DRAWS = 32

Distances = Float[Tensor, "k 3"]


@dataclass(frozen=True, eq=False)
class ODReport:
    """Scores with what they are made of, their null values, and two companions that no alignment can disturb."""

    scores: np.ndarray
    distances: np.ndarray
    """(k, 3) squared distances of U, Σ and V, as they are, before division by the largest."""
    null: np.ndarray
    """(k,) what matrices with the same column lengths in random directions score on the same scale."""
    contrast: np.ndarray
    """(k,) c_IMA of the matrix, in nats."""
    gram_share: np.ndarray
    """(k,) mean squared cosine between two columns."""
    warnings: list[str]

    def table(self) -> list[dict[str, Any]]:
        names = ("OD-Score", "null", "contrast", "Gram share")
        columns = zip(self.scores, self.null, self.contrast, self.gram_share, strict=True)
        return [{"matrix": k, **dict(zip(names, map(float, values), strict=True))} for k, values in enumerate(columns)]


def od_score(matrices: object, *, align: bool = True) -> np.ndarray:
    """One score per matrix, 0 for orthogonal columns: the mean of three distances, each over the largest given.

    Scores are relative to the matrices they are computed with; compare only within one call. `align=False` is
    the score as published. `od_report` adds null values and companions that need no alignment.

    >>> od_score([np.diag([3.0, 2.0]), [[1.0, 1.0], [0.0, 1.0]]])
    array([0., 1.])
    """
    return _relative(_distances(_listed(matrices), align=align)[0]).numpy()


def od_report(matrices: object, *, align: bool = True, seed: int = 0) -> ODReport:
    """Scores, with everything that tells what they mean."""
    given = _listed(matrices)
    distances, warned = _distances(given, align=align)
    return ODReport(
        scores=_relative(distances).numpy(),
        distances=distances.numpy(),
        null=_null(given, distances, align=align, seed=seed).numpy(),
        contrast=np.array([float(column_contrast(M)) for M in given]),
        gram_share=np.array([float(gram_share(M)) for M in given]),
        warnings=warned,
    )


def _listed(matrices: object) -> list[Tensor]:
    """Matrices of any sizes, one or more."""
    if isinstance(matrices, np.ndarray | Tensor) and matrices.ndim == 2:
        raise InputError("od_score compares matrices: give a list of them, or an array (k, n, d); got one matrix.")
    if not isinstance(matrices, np.ndarray | Tensor | Sequence) or len(matrices) == 0:
        raise InputError("od_score needs a list of matrices, or an array (k, n, d).")
    given = [checked(M, f"matrix {k}") for k, M in enumerate(matrices)]
    if any(M.ndim != 2 for M in given):
        raise InputError("od_score needs a list of matrices (n, d), or an array (k, n, d).")
    return given


def _distances(given: Sequence[Tensor], *, align: bool) -> tuple[Distances, list[str]]:
    rows, warned = [], []
    for k, M in enumerate(given):
        U, S, Vh = torch.linalg.svd(M, full_matrices=False)
        if align:
            U, S, V, ambiguous = aligned(U, S, Vh.mT)
            if ambiguous:
                warned.append(
                    f"matrix {k} has singular values that coincide: its V is not determined, read the contrast."
                )
        else:
            V = Vh.mT
        expected, norms = unit_columns(M)
        identity = torch.eye(len(S), dtype=M.dtype)
        apart = [(U - expected).square().sum(), (S - norms).square().sum(), (V - identity).square().sum()]
        scale = torch.stack([torch.tensor(float(len(S))), S.square().sum(), torch.tensor(float(len(S)))])
        rows.append(torch.where(torch.stack(apart) > ROUNDING * scale, torch.stack(apart), 0.0))
    return torch.stack(rows), warned


def aligned(
    U: Float[Tensor, "n d"], S: Float[Tensor, " d"], V: Float[Tensor, "d d"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, " d"], Float[Tensor, "d d"], bool]:
    """The same decomposition with V as close to the identity as sign, order and coinciding values allow.

    Singular vectors of one value are turned together (Procrustes); a value by itself is a group of one, which turns by
    its sign alone. Whether there was a group of several comes last.
    """
    groups = _groups(S)
    axes = _assigned(V, groups)
    outU, outS, outV = torch.empty_like(U), torch.empty_like(S), torch.empty_like(V)
    for group, own in zip(groups, axes, strict=True):
        target = torch.eye(len(S), dtype=V.dtype)[:, own]
        turn = nearest_orthonormal(V[:, group].mT @ target)
        outU[:, own], outV[:, own] = U[:, group] @ turn, V[:, group] @ turn
        outS[own] = S[group].mean() if len(group) > 1 else S[group]
    return outU, outS, outV, any(len(group) > 1 for group in groups)


def _groups(S: Float[Tensor, " d"]) -> list[list[int]]:
    """Places of singular values that (nearly) coincide; they come in descending order."""
    groups = [[0]]
    for k in range(1, len(S)):
        near = float(S[k - 1] - S[k]) <= COINCIDE * float(S[k - 1])
        groups = [*groups[:-1], [*groups[-1], k]] if near else [*groups, [k]]
    return groups


def _assigned(V: Float[Tensor, "d d"], groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Axes for every group: those that its vectors reach most, each axis once."""
    places = [index for index, group in enumerate(groups) for _ in group]
    reach = torch.stack([V[:, list(groups[index])].square().sum(1) for index in places], dim=1)
    axes, columns = linear_sum_assignment(-reach.numpy())
    own: list[list[int]] = [[] for _ in groups]
    for axis, column in zip(axes, columns, strict=True):
        own[places[column]].append(int(axis))
    return own


def _relative(distances: Distances, largest: Float[Tensor, " 3"] | None = None) -> Float[Tensor, " k"]:
    largest = distances.max(0).values if largest is None else largest
    return torch.where(largest > 0, distances / torch.where(largest > 0, largest, 1), 0.0).mean(1)


def _null(given: Sequence[Tensor], distances: Distances, *, align: bool, seed: int) -> Float[Tensor, " k"]:
    """Scores of random directions with the same column lengths, divided by the same largest distances."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for M in given:
        # the factors of a random matrix depend on its directions through their Gram matrix: a few rows would not do
        draws = torch.randn((NULL_DRAWS, *M.shape), generator=generator, dtype=M.dtype)
        drawn = [unit_columns(draw)[0] * M.norm(dim=0) for draw in draws]
        values.append(_relative(_distances(drawn, align=align)[0], distances.max(0).values).mean())
    return torch.stack(values)
