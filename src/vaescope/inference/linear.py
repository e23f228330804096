"""The linear VAE in closed form: ground truth for the rest of this package.

x = W z + noise of precision γ², z ~ N(0, I). Reizinger et al. 2022, appendix 10.1. The marginal is N(0, W Wᵀ + I/γ²).
The posterior's precision is γ² M with M = WᵀW + I/γ², the Gram matrix of W with I/γ appended below it. Formulas in
terms of this augmented matrix avoid cancellation.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.inference.geometry import contrast_of_matrix


def _augmented(W: Float[Tensor, "n d"], precision: float) -> tuple[Float[Tensor, "m d"], float]:
    gamma2 = validation.precision(precision)
    if not isinstance(W, Tensor) or W.ndim != 2 or not bool(W.isfinite().all()):
        raise InputError("W must be a finite matrix (n, d).")
    noise = torch.eye(W.shape[1], dtype=W.dtype, device=W.device) / math.sqrt(gamma2)
    return torch.cat([W, noise]), gamma2


def _check_x(x: Float[Tensor, "N n"], W: Float[Tensor, "n d"]) -> None:
    if x.ndim != 2 or x.shape[1] != W.shape[0]:
        raise InputError(f"x must have shape (N, {W.shape[0]}) to match W, got {tuple(x.shape)}.")


def posterior(
    x: Float[Tensor, "N n"], W: Float[Tensor, "n d"], precision: float
) -> tuple[Float[Tensor, "N d"], Float[Tensor, "d d"]]:
    """Exact posterior mean of each x, and the covariance, which does not depend on x.

    Args:
        x: observations.
        W: weights of the decoder, x = W z + noise.
        precision: γ² = 1 / decoder variance.
    """
    _check_x(x, W)
    A, gamma2 = _augmented(W, precision)
    Q, R = torch.linalg.qr(A)
    mean = torch.linalg.solve_triangular(R, Q[: len(W)].mT @ x.mT, upper=True).mT
    inverse = torch.linalg.solve_triangular(R, torch.eye(len(R), dtype=R.dtype, device=R.device), upper=True)
    return mean, inverse @ inverse.mT / gamma2


def optimal_variance(W: Float[Tensor, "n d"], precision: float) -> Float[Tensor, " d"]:
    """D* = (1/γ²) (diag(WᵀW) + I/γ²)⁻¹, the variances of the best diagonal posterior.

    Args:
        W: weights of the decoder, x = W z + noise.
        precision: γ² = 1 / decoder variance.

    >>> optimal_variance(torch.eye(2), 3.0)
    tensor([0.2500, 0.2500])
    """
    A, gamma2 = _augmented(W, precision)
    return 1 / (gamma2 * A.square().sum(0))


def gap(W: Float[Tensor, "n d"], precision: float) -> Float[Tensor, ""]:
    """log p(x) - ELBO*(x) = ½ [log det diag M - log det M], the same for every x.

    Equal to the IMA contrast of W with I/γ appended below it. Eq. 55 of the paper lacks the ½.

    Args:
        W: weights of the decoder, x = W z + noise.
        precision: γ² = 1 / decoder variance.

    >>> gap(torch.eye(3), 10.0)
    tensor(0.)
    """
    A, _ = _augmented(W, precision)
    return contrast_of_matrix(A)


def limit(W: Float[Tensor, "n d"]) -> Float[Tensor, ""]:
    """The gap as γ → ∞: the IMA contrast of W.

    Args:
        W: weights of the decoder, x = W z + noise.
    """
    return contrast_of_matrix(W)


def log_likelihood(x: Float[Tensor, "N n"], W: Float[Tensor, "n d"], precision: float) -> Float[Tensor, " N"]:
    """log N(x; 0, W Wᵀ + I/γ²), from the singular values of W.

    Args:
        x: observations.
        W: weights of the decoder, x = W z + noise.
        precision: γ² = 1 / decoder variance.
    """
    _check_x(x, W)
    _, gamma2 = _augmented(W, precision)
    U, S, _ = torch.linalg.svd(W, full_matrices=False)
    inside = x @ U
    outside = x - inside @ U.mT  # explicit: ‖x‖² - ‖Uᵀx‖² would cancel
    variances = S.square() + 1 / gamma2
    log_det = variances.log().sum() - (len(W) - len(S)) * math.log(gamma2)
    quadratic = gamma2 * outside.square().sum(-1) + (inside.square() / variances).sum(-1)
    return -0.5 * (len(W) * math.log(2 * math.pi) + log_det + quadratic)


def elbo(x: Float[Tensor, "N n"], W: Float[Tensor, "n d"], precision: float) -> Float[Tensor, " N"]:
    """ELBO*(x): the log-likelihood minus the gap.

    Args:
        x: observations.
        W: weights of the decoder, x = W z + noise.
        precision: γ² = 1 / decoder variance.
    """
    return log_likelihood(x, W, precision) - gap(W, precision)
