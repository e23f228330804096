"""Independent mechanism analysis: how far the columns of a decoder's Jacobian are from orthogonal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, Prior
from vaescope.inference.derivatives import Decoder, column_norms, jacobians


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


def used_directions(
    decoder: Decoder,
    z: Float[Tensor, "N d"],
    *,
    precision: float,
    prior_variance: Tensor | float = 1.0,
    threshold: float = 0.05,
) -> Int[Tensor, " N"]:
    """The number of squared singular values of γ J Σ†^½ above `threshold`, at each point.

    Such a value is what an observation adds to the prior's precision in that direction (Bonheme & Grzes 2023, Eq. 11).
    At the optimum of a linear VAE the count is the number of active latents.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points at which to evaluate.
        precision: γ² = 1 / decoder variance.
        prior_variance: one number, or one per latent.
        threshold: smallest squared singular value that counts.

    >>> W = torch.tensor([[3.0, 0.0], [0.0, 0.1]], dtype=torch.float64)
    >>> used_directions(lambda z: z @ W.T, torch.zeros(1, 2, dtype=torch.float64), precision=1.0)
    tensor([1])
    """
    validation.precision(precision)
    scale = torch.as_tensor(prior_variance).to(z)
    if not bool((scale > 0).all()) or scale.ndim > 2 or (scale.ndim and scale.shape[-1] not in (1, z.shape[1])):
        raise InputError(f"prior_variance must be > 0, a number or one per latent, got {prior_variance}.")
    scale = scale.sqrt().expand(z.shape)
    counts, first = [], 0
    for J in jacobians(decoder, z):
        scaled = J * scale[first : first + len(J)].unsqueeze(1)
        counts.append((precision * torch.linalg.svdvals(scaled) ** 2 > threshold).sum(-1))
        first += len(J)
    return torch.cat(counts)


def numerical_rank(J: Float[Tensor, "*batch n d"], tolerance: float = 1e-3) -> Int[Tensor, "*batch"]:
    """The number of singular values above `tolerance` times the largest.

    >>> numerical_rank(torch.tensor([[1.0, 1.0], [0.0, 1e-6]]))
    tensor(1)
    """
    singular = torch.linalg.svdvals(J)
    return (singular > tolerance * singular[..., :1]).sum(-1)


@dataclass(frozen=True, eq=False)
class Rotation:
    """Mean contrast of the given axes, and of the best rotation common to all points."""

    before: float
    after: float
    matrix: np.ndarray
    """(d, d): columns are the rotated axes."""
    largest_angle: float
    """Largest angle in degrees between a rotated axis and the nearest original axis."""

    @property
    def gain(self) -> float:
        """Reduction of the mean contrast, in nats."""
        return self.before - self.after


def best_rotation(J: Float[Tensor, "P n d"], *, sweeps: int = 30) -> Rotation:
    """Jacobi sweeps: rotate each pair of axes by the angle that lowers the mean contrast most.

    A rotation leaves det JᵀJ unchanged, so the search minimises the mean of Σ_k log ‖J r_k‖ over points.

    Args:
        J: Jacobians of full column rank, one per point.
        sweeps: over all pairs, at most; fewer if one gains less than 1e-7 nats.

    >>> turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    >>> round(best_rotation(torch.diag(torch.tensor([1.0, 3.0])).double()[None] @ turn).after, 6)
    0.0
    """
    J = J.double()
    d, gram = J.shape[2], J.mT @ J
    axes = torch.eye(d, dtype=torch.float64)
    # relative to the mean squared column length; keeps logarithms finite during the search
    gram = gram + 1e-9 * gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * axes

    def mean_log_length() -> float:
        """Mean over points of Σ_k log ‖J r_k‖."""
        return float(0.5 * gram.diagonal(dim1=1, dim2=2).log().sum(1).mean())

    current = mean_log_length()
    for _ in range(sweeps):
        for i in range(d):
            for j in range(i + 1, d):
                angle = _best_angle(gram[:, i, i], gram[:, j, j], gram[:, i, j])
                if abs(angle) < 1e-6:
                    continue
                cos, sin = float(np.cos(angle)), float(np.sin(angle))
                for matrix in (axes, gram, gram.mT):  # columns of the axes; columns, then rows of the Gram matrices
                    first, second = matrix[..., i].clone(), matrix[..., j].clone()
                    matrix[..., i] = cos * first + sin * second
                    matrix[..., j] = cos * second - sin * first
        previous, current = current, mean_log_length()
        if previous - current < 1e-7:
            break
    nearest = axes.abs().max(0).values.clamp(max=1)
    return Rotation(
        before=float(contrast_of_matrix(J).mean()),
        after=float(contrast_of_matrix(J @ axes).mean()),
        matrix=axes.numpy(),
        largest_angle=float(torch.rad2deg(torch.arccos(nearest)).max()),
    )


def _best_angle(a: Float[Tensor, " P"], b: Float[Tensor, " P"], c: Float[Tensor, " P"]) -> float:
    """The angle that lowers the mean log length of a pair of columns most; 0 if none does.

    Args:
        a: squared length of the first column at each point.
        b: squared length of the second column.
        c: their inner product.
    """
    grid = torch.linspace(-torch.pi / 4, torch.pi / 4, 61, dtype=torch.float64)
    best, width = 0.0, float(grid[1] - grid[0])
    for _ in range(3):  # refine around the best angle
        cos, sin = grid.cos()[:, None], grid.sin()[:, None]
        first = cos**2 * a + 2 * cos * sin * c + sin**2 * b
        second = sin**2 * a - 2 * cos * sin * c + cos**2 * b
        values = (first.clamp(min=1e-300).log() + second.clamp(min=1e-300).log()).mean(1)
        best = float(grid[values.argmin()])
        grid = torch.linspace(best - width, best + width, 41, dtype=torch.float64)
        width /= 20
    unrotated = (a.log() + b.log()).mean()
    return best if float(values.min()) < float(unrotated) - 1e-10 else 0.0


def plane_costs(
    curvature: Float[Tensor, "P d d"],
    prior_variance: Float[Tensor, "P d"],
    plane: tuple[int, int],
    angles: Float[Tensor, " A"],
) -> Float[Tensor, "A P"]:
    """ELBO lost at each point by rotating two latents, in nats; negative where the rotated axes are better.

    Args:
        curvature: Λ = -E_q ∇² log p(x|z) at each point; γ² JᵀJ for a Gaussian likelihood.
        prior_variance: of each latent.
        plane: the two latents.
        angles: in radians. Costs have a period of π/2, after which the latents have changed places.

    >>> import torch
    >>> unequal = torch.diag(torch.tensor([3.0, 0.0]))[None]
    >>> plane_costs(unequal, torch.ones(1, 2), (0, 1), torch.tensor([0.0, torch.pi / 4])).exp().round(decimals=3)
    tensor([[1.0000],
            [1.2500]])
    """
    i, j = plane
    a, b, c = curvature[:, i, i], curvature[:, j, j], curvature[:, i, j]
    s, t = prior_variance[:, i], prior_variance[:, j]
    cos, sin = angles.to(a).cos()[:, None], angles.to(a).sin()[:, None]
    first = (cos**2 * a + 2 * cos * sin * c + sin**2 * b) * (cos**2 * s + sin**2 * t)
    second = (sin**2 * a - 2 * cos * sin * c + cos**2 * b) * (sin**2 * s + cos**2 * t)
    lost: Tensor = 0.5 * (first.log1p() + second.log1p() - (a * s).log1p() - (b * t).log1p())
    return lost


def cost_curvature(curvature: Float[Tensor, "P d d"], plane: tuple[int, int]) -> Float[Tensor, " P"]:
    r"""Second derivative of the cost in the angle at 0, under N(0, I), in nats per squared radian.

    .. math:: \frac{(\Lambda_{ii}-\Lambda_{jj})^2}{(1+\Lambda_{ii})(1+\Lambda_{jj})}
              - 2\Lambda_{ij}^2\Big(\frac1{(1+\Lambda_{ii})^2}+\frac1{(1+\Lambda_{jj})^2}\Big)

    With orthogonal columns it is (σ_i² - σ_j²)²/(σ_i² σ_j²): zero exactly if the two posteriors have the same width,
    which for a Gaussian likelihood means columns of the same length.

    >>> import torch
    >>> cost_curvature(torch.diag(torch.tensor([3.0, 0.0]))[None], (0, 1))
    tensor([2.2500])
    """
    i, j = plane
    a, b, c = 1 + curvature[:, i, i], 1 + curvature[:, j, j], curvature[:, i, j]
    return (a - b).square() / (a * b) - 2 * c.square() * (a**-2 + b**-2)


def check_support(z: Float[Tensor, "N d"], prior: Prior, name: str = "z") -> None:
    """Points must be inside the support of a bounded prior."""
    if prior.bounds is None:
        return
    low, high = prior.bounds
    outside = ((z <= low) | (z >= high)).any(1)
    if bool(outside.any()):
        raise InputError(
            f"{name} must be inside the prior's support ({low}, {high}), but {int(outside.sum())} of "
            f"{len(z)} points are not (the first is row {int(outside.nonzero()[0])})."
        )


def optimal_variance(
    decoder: Decoder, z: Float[Tensor, "N d"], *, precision: float, prior: Prior | None = None
) -> Float[Tensor, "N d"]:
    r"""The posterior variances of a self-consistent encoder at z = g(x), up to O(1/γ⁴).

    .. math:: \sigma_k^2 = \left( -(\log p_0)''(z_k) + \gamma^2 \|J_{:,k}(z)\|^2 \right)^{-1}

    Reizinger et al. 2022, Eq. 12.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points at which to evaluate.
        precision: γ² = 1 / decoder variance.
        prior: N(0, I) by default.

    Returns:
        Infinite where Eq. 12 has no positive solution: a prior that is not log-concave, with too low a precision.

    >>> optimal_variance(lambda z: 3 * z, torch.zeros(1, 2), precision=1.0)
    tensor([[0.1000, 0.1000]])
    """
    prior = Normal() if prior is None else prior
    gamma2 = validation.precision(precision)
    norms = column_norms(decoder, z)
    check_support(z, prior)
    return 1 / (prior.curvature(z) + gamma2 * norms.square()).clamp_min(0)


def optimal_covariance(
    decoder: Decoder, z: Float[Tensor, "N d"], *, precision: float, prior: Prior | None = None
) -> Float[Tensor, "N d d"]:
    """Σ* = (Σ†⁻¹ + γ² JᵀJ)⁻¹, the covariance of the optimal full-covariance posterior.

    Bonheme & Grzes 2023, Eq. 11; here γ² is the precision, in the paper γ is the variance. Infinite where the inverse
    is not positive definite: a flat or not log-concave prior in a direction that the decoder does not use.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points at which to evaluate.
        precision: γ² = 1 / decoder variance.
        prior: N(0, I) by default.
    """
    prior = Normal() if prior is None else prior
    gamma2 = validation.precision(precision)
    gram = torch.cat([J.mT @ J for J in jacobians(decoder, z)])
    check_support(z, prior)
    inverse = torch.diag_embed(prior.curvature(z)) + gamma2 * gram
    usable = (torch.linalg.cholesky_ex(inverse).info == 0)[:, None, None]
    return torch.where(usable, torch.linalg.inv_ex(inverse).inverse, torch.inf)
