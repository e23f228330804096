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
from vaescope.orthogonality.inputs import count
from vaescope.orthogonality.matrices import checked, column_contrast, gram_share, polar, unit_columns

COINCIDE = 1e-3  # relative gap below which singular values are taken as one
NEARLY = 0.02  # and below which they are warned of
ROUNDING = 64  # times the precision of the numbers given, and of d: distances below this are zero,
LEAST = 1e-8  # as are those below this
NULL_DRAWS = 32

Distances = Float[Tensor, "k 3"]


@dataclass(frozen=True, eq=False)
class ODReport:
    """Scores with what they are made of, their null values, and two companions that no alignment can disturb."""

    scores: np.ndarray
    distances: np.ndarray
    """(k, 3) squared distances of U, Σ and V, as they are, before division by the largest."""
    null_distances: np.ndarray
    """(k, 3) mean squared distances of random directions with the same column lengths."""
    null: np.ndarray
    """(k,) what such matrices score on the same scale. Small where n is large: random directions are then nearly
    orthogonal anyway."""
    rotated_distances: np.ndarray
    """(k, 3) mean squared distances of the same matrix with its latents rotated at random."""
    rotated: np.ndarray
    """(k,) what it scores then: whether its axes are any better than others of the same space."""
    contrast: np.ndarray
    """(k,) c_IMA of the matrix, in nats."""
    gram_share: np.ndarray
    """(k,) mean squared cosine between two columns."""
    warnings: list[str]

    def table(self) -> list[dict[str, Any]]:
        names = ("OD-Score", "null", "rotated", "contrast", "Gram share")
        columns = zip(self.scores, self.null, self.rotated, self.contrast, self.gram_share, strict=True)
        return [{"matrix": k, **dict(zip(names, map(float, values), strict=True))} for k, values in enumerate(columns)]


def od_score(matrices: object, *, align: bool = True) -> np.ndarray:
    """One score per matrix, 0 for orthogonal columns: the mean of three distances, each over the largest given.

    Scores are relative to the matrices they are computed with; compare only within one call. `align=False` is
    the score as published. `od_report` adds null values and companions that need no alignment.

    >>> od_score([np.diag([3.0, 2.0]), [[1.0, 1.0], [0.0, 1.0]]])
    array([0., 1.])
    """
    return relative(_distances(*_listed(matrices), align=align)[0]).numpy()


def od_distances(matrices: object, *, align: bool = True) -> np.ndarray:
    """(k, 3) squared distances of U, Σ and V, as they are: what scores are made of, for comparisons of one's own."""
    return _distances(*_listed(matrices), align=align)[0].numpy()


def od_report(matrices: object, *, align: bool = True, null_draws: int = NULL_DRAWS, seed: int = 0) -> ODReport:
    """Scores, with everything that tells what they mean; null values are means over random draws."""
    given, rounding = _listed(matrices)
    distances, warned = _distances(given, rounding, align=align)
    null = _null(given, count(null_draws, "null_draws", 1), align=align, seed=seed)
    turned = _turned(given, null_draws, align=align, seed=seed)
    return ODReport(
        scores=relative(distances).numpy(),
        distances=distances.numpy(),
        null_distances=null.numpy(),
        null=_null_scores(null, distances.max(0).values).numpy(),
        rotated_distances=turned.numpy(),
        rotated=_null_scores(turned, distances.max(0).values).numpy(),
        contrast=np.array([float(column_contrast(M)) for M in given]),
        gram_share=np.array([float(gram_share(M)) for M in given]),
        warnings=warned,
    )


def _listed(matrices: object) -> tuple[list[Tensor], list[float]]:
    """Matrices of any sizes, one or more, and how precise the numbers of each are."""
    if isinstance(matrices, np.ndarray | Tensor) and matrices.ndim == 2:
        raise InputError("od_score compares matrices: give a list of them, or an array (k, n, d); got one matrix.")
    if (
        getattr(matrices, "ndim", 1) == 0
        or not isinstance(matrices, np.ndarray | Tensor | Sequence)
        or not len(matrices)
    ):
        raise InputError("od_score needs a list of matrices, or an array (k, n, d).")
    given = [checked(M, f"matrix {k}") for k, M in enumerate(matrices)]
    if any(M.ndim != 2 for M in given):
        raise InputError("od_score needs a list of matrices (n, d), or an array (k, n, d).")
    return given, [_precision(M) for M in matrices]


def _precision(M: object) -> float:
    dtype = torch.as_tensor(M).dtype
    return torch.finfo(dtype if dtype.is_floating_point else torch.float64).eps


def _distances(given: Sequence[Tensor], rounding: Sequence[float], *, align: bool) -> tuple[Distances, list[str]]:
    rows, warned = [], []
    for k, whole in enumerate(given):
        M = torch.linalg.qr(whole).R if align else whole  # rotating rows changes no aligned distance
        U, S, Vh = torch.linalg.svd(M, full_matrices=False)
        if align:
            U, S, V, ambiguous = aligned(U, S, Vh.mT)
            if ambiguous:
                warned.append(
                    f"matrix {k} has singular values that (nearly) coincide: its V is hardly determined, read the "
                    "contrast."
                )
        else:
            V = Vh.mT
        expected, norms = unit_columns(M)
        identity = torch.eye(len(S), dtype=M.dtype)
        alive = norms > 0  # a column of zeros has no direction to compare
        apart = [(U - expected)[:, alive].square().sum(), (S - norms).square().sum(), (V - identity).square().sum()]
        scale = torch.stack([torch.tensor(float(len(S))), S.square().sum(), torch.tensor(float(len(S)))])
        rows.append(
            torch.where(
                torch.stack(apart) > max(ROUNDING * rounding[k] * len(S), LEAST) ** 2 * scale, torch.stack(apart), 0.0
            )
        )
    return torch.stack(rows), warned


def aligned(
    U: Float[Tensor, "n d"], S: Float[Tensor, " d"], V: Float[Tensor, "d d"]
) -> tuple[Float[Tensor, "n d"], Float[Tensor, " d"], Float[Tensor, "d d"], bool]:
    """The same decomposition with V as close to the identity as sign, order and coinciding values allow.

    Singular vectors of one value are turned together (Procrustes); a value by itself is a group of one, which turns by
    its sign alone. Whether values (nearly) coincide, so that V means little, comes last.
    """
    groups = _groups(S)
    axes = _assigned(V, groups)
    outU, outS, outV = torch.empty_like(U), torch.empty_like(S), torch.empty_like(V)
    for group, own in zip(groups, axes, strict=True):
        target = torch.eye(len(S), dtype=V.dtype)[:, own]
        turn = polar(V[:, group].mT @ target)
        outU[:, own], outV[:, own] = U[:, group] @ turn, V[:, group] @ turn
        outS[own] = torch.einsum("ij,i,ij->j", turn, S[group], turn)
    return outU, outS, outV, bool((S[:-1] - S[1:] <= NEARLY * S[:-1]).any())


def _groups(S: Float[Tensor, " d"]) -> list[list[int]]:
    """Places of singular values that (nearly) coincide; they come in descending order."""
    groups = [[0]]
    for k in range(1, len(S)):
        near = float(S[groups[-1][0]] - S[k]) <= COINCIDE * float(S[groups[-1][0]])
        groups = [*groups[:-1], [*groups[-1], k]] if near else [*groups, [k]]
    return groups


def _assigned(V: Float[Tensor, "d d"], groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Axes for every group: those that its vectors reach most, each axis once."""
    places = [index for index, group in enumerate(groups) for _ in group]
    reach = torch.stack([V[:, list(groups[index])].norm(dim=1) for index in places], dim=1)
    axes, columns = linear_sum_assignment(-reach.numpy())
    own: list[list[int]] = [[] for _ in groups]
    for axis, column in zip(axes, columns, strict=True):
        own[places[column]].append(int(axis))
    return own


def relative(distances: Distances, largest: Float[Tensor, " 3"] | None = None) -> Float[Tensor, " k"]:
    """The score: every distance over the largest of the models compared, averaged over the three."""
    largest = distances.max(0).values if largest is None else largest
    return torch.where(largest > 0, distances / torch.where(largest > 0, largest, 1), 0.0).mean(1)


def _null_scores(null: Distances, largest: Float[Tensor, " 3"]) -> Float[Tensor, " k"]:
    """On the scale of the scores; 1 where all that were given are perfect and a random one is not."""
    return torch.where(largest > 0, null / torch.where(largest > 0, largest, 1), (null > 0).to(null)).mean(1)


def _null(given: Sequence[Tensor], draws: int, *, align: bool, seed: int) -> Distances:
    """Mean distances of random directions with the same column lengths.

    Distances do not change when rows are rotated, so that of a random n x d matrix only the triangle of its QR
    decomposition is drawn: normal numbers, and chi-distributed ones on the diagonal (Bartlett).
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


def _turned(given: Sequence[Tensor], draws: int, *, align: bool, seed: int) -> Distances:
    """Mean distances of the same matrices with their columns rotated at random, uniformly over rotations."""
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
