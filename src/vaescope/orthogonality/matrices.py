"""The nearest matrix with orthonormal columns, and measures of how orthogonal the columns of a matrix are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from scipy.stats import spearmanr
from torch import Tensor

from vaescope.core.errors import InputError
from vaescope.core.validation import integer, matrices, posterior, same_rows, tensor
from vaescope.core.validation import matrices as as_matrices
from vaescope.distributions import Normal, kl_per_latent
from vaescope.inference import geometry as angles
from vaescope.inference.geometry import contrast_of_matrix, unit_columns
from vaescope.inference.geometry import gram_share as gram_share_


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


def od_report(matrices: object, *, align: bool = True, null_draws: int = 32, seed: int = 0) -> ODReport:
    """Scores with the values needed to interpret them.

    Args:
        matrices: a list of matrices (n, d), or an array (k, n, d).
        align: align V with the identity first; False gives the score as published.
        null_draws: random matrices that null values are averaged over.
        seed: of these draws.
    """
    given, rounding = _check_list(matrices)
    distances, warnings = _distances(given, rounding, align=align)
    null = _null(given, integer("null_draws", null_draws), align=align, seed=seed)
    rotated = _rotated(given, null_draws, align=align, seed=seed)
    return ODReport(
        scores=relative(distances).numpy(),
        distances=distances.numpy(),
        null_distances=null.numpy(),
        null=_null_scores(null, distances.max(0).values).numpy(),
        rotated_distances=rotated.numpy(),
        rotated=_null_scores(rotated, distances.max(0).values).numpy(),
        contrast=np.array([float(contrast_of_matrix(M)) for M in given]),
        gram_share=np.array([float(gram_share_(M)) for M in given]),
        warnings=warnings,
    )


def _check_list(matrices: object) -> tuple[list[Tensor], list[float]]:
    """One or more matrices of any sizes, and the machine epsilon of each."""
    if isinstance(matrices, np.ndarray | Tensor) and matrices.ndim == 2:
        raise InputError("od_score compares matrices: pass a list of them, or an array (k, n, d); got one matrix.")
    listed: list[object] = []
    if isinstance(matrices, Sequence) or (isinstance(matrices, np.ndarray | Tensor) and matrices.ndim > 0):
        listed = [*matrices]
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
        distances.append(_distance(M, U, S, V, max(64 * rounding[k] * len(S), 1e-8)))
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
    return outU, outS, outV, bool((S[:-1] - S[1:] <= 0.02 * S[:-1]).any())


def _groups(S: Float[Tensor, " d"]) -> list[list[int]]:
    """Indices of singular values that coincide; values are in descending order."""
    groups = [[0]]
    for k in range(1, len(S)):
        near = float(S[groups[-1][0]] - S[k]) <= 1e-3 * float(S[groups[-1][0]])
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

    def draw(M: Tensor) -> Tensor:
        n, d = M.shape
        triangle = torch.randn((d, d), generator=generator, dtype=M.dtype).triu(1)
        degrees = n - torch.arange(d, dtype=M.dtype)
        triangle += torch.diag((2 * torch._standard_gamma(degrees / 2, generator)).sqrt())
        return unit_columns(triangle)[0] * M.norm(dim=0)

    return torch.stack([_mean_distances([draw(M) for _ in range(draws)], align=align) for M in given])


def _rotated(given: Sequence[Tensor], draws: int, *, align: bool, seed: int) -> Distances:
    """Mean distances of the same matrices after random rotations of the latents, uniform over rotations."""
    generator = torch.Generator().manual_seed(seed)

    def draw(M: Tensor) -> Tensor:
        turn = polar(torch.randn((M.shape[1], M.shape[1]), generator=generator, dtype=M.dtype))
        return torch.linalg.qr(M).R @ turn

    return torch.stack([_mean_distances([draw(M) for _ in range(draws)], align=align) for M in given])


def _mean_distances(drawn: Sequence[Tensor], *, align: bool) -> Float[Tensor, " 3"]:
    rounding = [torch.finfo(M.dtype).eps for M in drawn]
    return _distances(drawn, rounding, align=align)[0].mean(0)


@dataclass(frozen=True)
class InverseSquare:
    """Theorem 1 (c), σ_j² ∝ 1/‖c_j‖²: the regression of log σ² on log ‖c‖² has slope -1."""

    slope: float
    low: float
    high: float
    """95 % interval, by bootstrap over samples."""
    r2: float


def inverse_square(variance: object, norms: object, *, resamples: int = 200, seed: int = 0) -> InverseSquare:
    """Regress log σ_j² on log ‖c_j‖² over active latents, with an intercept per sample.

    Args:
        variance: (N, d) posterior variances of active latents.
        norms: (N, d) lengths of the columns of the local decoder.
        resamples: bootstrap samples.
        seed: of the bootstrap.

    >>> import torch
    >>> norms = torch.rand(50, 4) + 0.1
    >>> round(inverse_square(3 / norms**2, norms).slope, 4)
    -1.0
    """
    spread, lengths = tensor(variance, "variance"), tensor(norms, "norms")
    if spread.shape != lengths.shape or spread.ndim != 2 or spread.shape[1] < 2:
        raise InputError(
            f"variance and norms must be (N, d) with at least two latents, got {tuple(spread.shape)} and "
            f"{tuple(lengths.shape)}; pass the active latents only."
        )
    if not bool((spread > 0).all() and (lengths > 0).all()):
        raise InputError("variance and norms must be > 0; exclude latents that the decoder ignores.")
    integer("resamples", resamples)
    y, x = np.log(spread.double().cpu().numpy()), 2 * np.log(lengths.double().cpu().numpy())
    y, x = (a - a.mean(1, keepdims=True) for a in (y, x))
    # slopes of bootstrap samples follow from sums per sample
    products, squares = (x * y).sum(1), (x * x).sum(1)
    if not squares.mean() > 1e-8:  # log lengths that differ by less than 1e-4
        raise InputError("all columns have the same length, so the slope is undefined.")
    weights = np.random.default_rng(seed).multinomial(len(x), np.full(len(x), 1 / len(x)), size=resamples)
    slopes = (weights @ products) / np.maximum(weights @ squares, np.finfo(float).tiny)
    slope = products.sum() / squares.sum()
    residual, total = ((y - slope * x) ** 2).sum(), (y * y).sum()
    low, high = np.quantile(slopes, (0.025, 0.975))
    return InverseSquare(float(slope), float(low), float(high), float(1 - residual / total) if total > 0 else math.nan)


@dataclass(frozen=True, eq=False)
class LatentAxes:
    """§3.5: column lengths, variances and KL of every latent, over samples."""

    length: Float[Tensor, " d"]
    """Root mean square of ‖c_j‖."""
    variance: Float[Tensor, " d"]
    """E_i σ_j²."""
    kl: Float[Tensor, " d"]
    inverse_square: Float[Tensor, " d"]
    """E_i 1/‖c_j‖², which the paper equates with 1/‖c_j‖²; larger than 1/length² wherever lengths vary (Jensen)."""
    length_variance: float
    """Rank correlation of length and variance over latents; -1 in theory."""
    length_kl: float
    """Rank correlation of length and KL over latents; +1 in theory: long columns contribute most to the KL."""


def latent_axes(columns: object, mean: object, variance: object) -> LatentAxes:
    """How σ² and KL relate to the lengths of the local decoder's columns (Bhowal et al. 2024, §3.5).

    Args:
        columns: (N, n, d) local decoders or Jacobians of active latents.
        mean: (N, d) posterior means.
        variance: (N, d) posterior variances.
    """
    M = matrices(columns, "columns")
    means, variances = posterior(mean, variance)
    if M.ndim != 3 or M.shape[2] != means.shape[1] or M.shape[2] < 3:
        raise InputError(f"columns must be (N, n, d) with at least three latents, got {tuple(M.shape)}.")
    same_rows({"columns": len(M), "mean": len(means)})
    squares = M.square().sum(1)
    if not bool((squares > 0).all()):
        raise InputError("columns must not be zero; exclude latents that the decoder ignores.")
    length, kl = squares.mean(0).sqrt(), kl_per_latent(means.double(), variances.double(), Normal()).mean(0)
    spread = variances.double().mean(0)
    ranks = [float(spearmanr(length.cpu().numpy(), other.cpu().numpy()).statistic) for other in (spread, kl)]
    return LatentAxes(length, spread, kl, (1 / squares).mean(0), ranks[0], ranks[1])
