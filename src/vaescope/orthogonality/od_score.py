"""OD-Score: how far the SVD of a matrix is from that of a matrix with orthogonal columns (Bhowal et al. 2024).

Orthogonal columns m_k have the decomposition U = (m_k/‖m_k‖), Σ = (‖m_k‖), V = I (Lemma 4). The score compares the
factors with these. A decomposition is unique only up to sign and order, and up to rotation if singular values coincide,
so without alignment an exactly orthogonal matrix gets a bad score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vaescope.errors import InputError
from vaescope.orthogonality.matrices import polar
from vaescope.theory.angles import gram_share, unit_columns
from vaescope.theory.ima import contrast_of_matrix
from vaescope.validation import matrices as as_matrices
from vaescope.validation import whole_number

COINCIDE = 1e-3  # relative gap below which singular values are treated as equal
NEARLY_COINCIDE = 0.02  # relative gap below which there is a warning
ROUNDING = 64  # times d and the machine epsilon of the input: smaller relative distances count as zero
MINIMUM_DISTANCE = 1e-8  # relative distances below this also count as zero
NULL_DRAWS = 32

Distances = Float[Tensor, "k 3"]


@dataclass(frozen=True, eq=False)
class ODReport:
    """Scores with their parts and null values, and two measures that need no alignment."""

    scores: np.ndarray
    distances: np.ndarray
    """(k, 3) squared distances of U, Σ and V, before division by the largest."""
    null_distances: np.ndarray
    """(k, 3) mean squared distances of random directions with the same column lengths."""
    null: np.ndarray
    """(k,) scores of such matrices on the same scale; small if n is large, since random directions are then nearly
    orthogonal."""
    rotated_distances: np.ndarray
    """(k, 3) mean squared distances of the same matrix with its latents rotated at random."""
    rotated: np.ndarray
    """(k,) scores of these: whether the axes are better than other axes of the same space."""
    contrast: np.ndarray
    """(k,) c_IMA of the matrix, in nats."""
    gram_share: np.ndarray
    """(k,) mean squared cosine between two columns."""
    warnings: list[str]

    def table(self) -> list[dict[str, int | float]]:
        """A row per matrix."""
        names = ("OD-Score", "null", "rotated", "contrast", "Gram share")
        columns = zip(self.scores, self.null, self.rotated, self.contrast, self.gram_share, strict=True)
        return [{"matrix": k, **dict(zip(names, map(float, values), strict=True))} for k, values in enumerate(columns)]


def od_score(matrices: object, *, align: bool = True) -> np.ndarray:
    """One score per matrix, 0 for orthogonal columns: the mean of three distances, each divided by the largest.

    Scores are relative to the other matrices, so compare them only within one call. `od_report` adds null values and
    measures that need no alignment.

    Args:
        matrices: a list of matrices (n, d), or an array (k, n, d).
        align: align V with the identity first; False gives the score as published.

    >>> od_score([np.diag([3.0, 2.0]), [[1.0, 1.0], [0.0, 1.0]]])
    array([0., 1.])
    """
    return relative(_distances(*_check_list(matrices), align=align)[0]).numpy()


def od_distances(matrices: object, *, align: bool = True) -> np.ndarray:
    """(k, 3) squared distances of U, Σ and V, from which scores are computed."""
    return _distances(*_check_list(matrices), align=align)[0].numpy()


def od_report(matrices: object, *, align: bool = True, null_draws: int = NULL_DRAWS, seed: int = 0) -> ODReport:
    """Scores with the values needed to interpret them.

    Args:
        matrices: a list of matrices (n, d), or an array (k, n, d).
        align: align V with the identity first; False gives the score as published.
        null_draws: random matrices that null values are averaged over.
        seed: of these draws.
    """
    given, rounding = _check_list(matrices)
    distances, warnings = _distances(given, rounding, align=align)
    null = _null(given, whole_number("null_draws", null_draws), align=align, seed=seed)
    rotated = _rotated(given, null_draws, align=align, seed=seed)
    return ODReport(
        scores=relative(distances).numpy(),
        distances=distances.numpy(),
        null_distances=null.numpy(),
        null=_null_scores(null, distances.max(0).values).numpy(),
        rotated_distances=rotated.numpy(),
        rotated=_null_scores(rotated, distances.max(0).values).numpy(),
        contrast=np.array([float(contrast_of_matrix(M)) for M in given]),
        gram_share=np.array([float(gram_share(M)) for M in given]),
        warnings=warnings,
    )


def _check_list(matrices: object) -> tuple[list[Tensor], list[float]]:
    """One or more matrices of any sizes, and the machine epsilon of each."""
    if isinstance(matrices, np.ndarray | Tensor) and matrices.ndim == 2:
        raise InputError("od_score compares matrices: pass a list of them, or an array (k, n, d); got one matrix.")
    array = isinstance(matrices, np.ndarray | Tensor) and matrices.ndim > 0
    listed: list[object] = list(matrices) if array or isinstance(matrices, Sequence) else []  # type: ignore[call-overload]
    if not listed:
        raise InputError("od_score needs a list of matrices, or an array (k, n, d).")
    given = [as_matrices(M, f"matrix {k}") for k, M in enumerate(listed)]
    if any(M.ndim != 2 for M in given):
        raise InputError("od_score needs a list of matrices (n, d), or an array (k, n, d).")
    return given, [_epsilon(M) for M in listed]


def _epsilon(M: object) -> float:
    dtype = torch.as_tensor(M).dtype
    return torch.finfo(dtype if dtype.is_floating_point else torch.float64).eps


def _distances(given: Sequence[Tensor], rounding: Sequence[float], *, align: bool) -> tuple[Distances, list[str]]:
    distances, warnings = [], []
    for k, matrix in enumerate(given):
        M = torch.linalg.qr(matrix).R if align else matrix  # aligned distances do not depend on rotations of the rows
        U, S, Vh = torch.linalg.svd(M, full_matrices=False)
        V = Vh.mT
        if align:
            U, S, V, ambiguous = aligned(U, S, V)
            if ambiguous:
                warnings.append(
                    f"matrix {k} has (nearly) equal singular values, so its V is ambiguous; use the contrast."
                )
        distances.append(_distance(M, U, S, V, max(ROUNDING * rounding[k] * len(S), MINIMUM_DISTANCE)))
    return torch.stack(distances), warnings


def _distance(M: Tensor, U: Tensor, S: Tensor, V: Tensor, rounding: float) -> Float[Tensor, " 3"]:
    """Squared distances of U, Σ and V from those of orthogonal columns; 0 below the rounding error."""
    expected, norms = unit_columns(M)
    nonzero = norms > 0  # zero columns have no direction to compare
    identity = torch.eye(len(S), dtype=M.dtype)
    parts = [(U - expected)[:, nonzero].square().sum(), (S - norms).square().sum(), (V - identity).square().sum()]
    scale = torch.stack([torch.tensor(float(len(S))), S.square().sum(), torch.tensor(float(len(S)))])
    return torch.where(torch.stack(parts) > rounding**2 * scale, torch.stack(parts), 0.0)


def aligned(
    U: Float[Tensor, "n d"], S: Float[Tensor, " d"], V: Float[Tensor, "d d"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, " d"], Float[Tensor, "d d"], bool]:
    """The same decomposition with V as close to the identity as sign, order and coinciding values allow.

    Singular vectors with equal values are rotated together (Procrustes); a vector with a unique value only changes its
    sign. The last result is whether values (nearly) coincide, so that V is ambiguous.
    """
    groups = _groups(S)
    axes = _assign_axes(V, groups)
    outU, outS, outV = torch.empty_like(U), torch.empty_like(S), torch.empty_like(V)
    for group, own in zip(groups, axes, strict=True):
        target = torch.eye(len(S), dtype=V.dtype)[:, own]
        turn = polar(V[:, group].mT @ target)
        outU[:, own], outV[:, own] = U[:, group] @ turn, V[:, group] @ turn
        outS[own] = torch.einsum("ij,i,ij->j", turn, S[group], turn)
    return outU, outS, outV, bool((S[:-1] - S[1:] <= NEARLY_COINCIDE * S[:-1]).any())


def _groups(S: Float[Tensor, " d"]) -> list[list[int]]:
    """Indices of singular values that coincide; values are in descending order."""
    groups = [[0]]
    for k in range(1, len(S)):
        near = float(S[groups[-1][0]] - S[k]) <= COINCIDE * float(S[groups[-1][0]])
        groups = [*groups[:-1], [*groups[-1], k]] if near else [*groups, [k]]
    return groups


def _assign_axes(V: Float[Tensor, "d d"], groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """The axes of each group: an assignment that maximises the projections of the axes onto the groups."""
    group_of = [index for index, group in enumerate(groups) for _ in group]
    projections = torch.stack([V[:, list(groups[index])].norm(dim=1) for index in group_of], dim=1)
    axes, columns = linear_sum_assignment(-projections.numpy())
    own: list[list[int]] = [[] for _ in groups]
    for axis, column in zip(axes, columns, strict=True):
        own[group_of[column]].append(int(axis))
    return own


def relative(distances: Distances, largest: Float[Tensor, " 3"] | None = None) -> Float[Tensor, " k"]:
    """The score: each distance divided by the largest among the matrices, averaged over the three."""
    largest = distances.max(0).values if largest is None else largest
    return torch.where(largest > 0, distances / torch.where(largest > 0, largest, 1), 0.0).mean(1)


def _null_scores(null: Distances, largest: Float[Tensor, " 3"]) -> Float[Tensor, " k"]:
    """Null distances on the scale of the scores; 1 if all given matrices are perfect and random ones are not."""
    return torch.where(largest > 0, null / torch.where(largest > 0, largest, 1), (null > 0).to(null)).mean(1)


def _null(given: Sequence[Tensor], draws: int, *, align: bool, seed: int) -> Distances:
    """Mean distances of random directions with the same column lengths.

    Distances do not depend on rotations of the rows, so only the R of a random matrix is drawn: normal entries, and
    chi-distributed ones on the diagonal (Bartlett).
    """
    generator = torch.Generator().manual_seed(seed)
    values = []
    for M in given:
        n, d = M.shape
        degrees = n - torch.arange(d, dtype=M.dtype)
        total = torch.zeros(3, dtype=M.dtype)
        for _ in range(draws):
            triangle = torch.randn((d, d), generator=generator, dtype=M.dtype).triu(1)
            triangle += torch.diag((2 * torch._standard_gamma(degrees / 2, generator)).sqrt())
            draw = unit_columns(triangle)[0] * M.norm(dim=0)
            total += _distances([draw], [torch.finfo(M.dtype).eps], align=align)[0][0]
        values.append(total / draws)
    return torch.stack(values)


def _rotated(given: Sequence[Tensor], draws: int, *, align: bool, seed: int) -> Distances:
    """Mean distances of the same matrices after random rotations of the latents, uniform over rotations."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for M in given:
        total = torch.zeros(3, dtype=M.dtype)
        triangle = torch.linalg.qr(M).R
        for _ in range(draws):
            turn = polar(torch.randn((M.shape[1], M.shape[1]), generator=generator, dtype=M.dtype))
            total += _distances([triangle @ turn], [torch.finfo(M.dtype).eps], align=align)[0][0]
        values.append(total / draws)
    return torch.stack(values)
