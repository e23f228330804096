r"""Gaussian observation models with any covariance: x | z ~ N(f(z), Λ⁻¹), by whitening.

With Λ = RᵀR, the model of R x with the decoder R f has isotropic noise of precision 1, the same posteriors, and a
density that differs by |det R|, so `project`, `log_marginal`, `elbo` and `gap` take a `Noise` as precision. The limit
of the gap is c_IMA(R J) for a diagonal posterior, and the conformal contrast of R J for an isotropic one, which is zero
for JᵀΛJ ∝ I. For as many outputs as latents that is

.. math:: J_g^\top J_g \propto \Lambda, \qquad J_g = J^{-1},

so the inverse decoder has orthogonal columns if Λ is diagonal, and not otherwise, and the decoder in general has not.
This is the second conjecture of Reizinger et al. 2022, §6, made exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core.checks import choice
from vaescope.core.errors import InputError
from vaescope.inference.derivatives import Decoder, jacobian
from vaescope.inference.geometry import conformal_of_matrix, contrast_of_matrix
from vaescope.inference.joint import Noise


def noise_of_residuals(residuals: Float[Tensor, "M n"], kind: str = "diagonal") -> Noise:
    """The Λ of largest likelihood for residuals x - f(z) with z ~ q(z|x): what a learned covariance converges to.

    Args:
        residuals: one row per sample and draw.
        kind: `diagonal` or `full`.
    """
    choice("kind", kind, ("diagonal", "full"))
    if kind == "diagonal":
        return Noise(1 / residuals.square().mean(0))
    inverse, failed = torch.linalg.inv_ex(residuals.mT @ residuals / len(residuals))
    if int(failed) or len(residuals) < residuals.shape[1]:
        raise InputError(
            f"the covariance of {len(residuals)} residuals of {residuals.shape[1]} outputs is singular; use more, or "
            "kind='diagonal'."
        )
    return Noise(0.5 * (inverse + inverse.mT))


@dataclass(frozen=True, eq=False)
class Conjecture:
    """What an isotropic posterior asks of the decoder under this noise, at each point, in nats; 0 is satisfied."""

    gap: Float[Tensor, " N"]
    """The conformal contrast of R J: the gap, near-deterministic."""
    decoder: Float[Tensor, " N"]
    """c_IMA of the decoder's Jacobian."""
    encoder: Float[Tensor, " N"]
    """c_IMA of the inverse decoder's Jacobian; infinite if it has none, NaN unless n = d."""


def isotropic_posterior(decoder: Decoder, z: Float[Tensor, "N d"], *, noise: Noise) -> Conjecture:
    """The quantities of the second conjecture of Reizinger et al. 2022, §6.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: points at which to evaluate.
        noise: the precision of the observations.
    """
    J = jacobian(decoder, z)
    square = J.shape[1] == J.shape[2]
    own = contrast_of_matrix(J)
    inverse = contrast_of_matrix(torch.linalg.inv_ex(J).inverse) if square else torch.full_like(own, torch.nan)
    gap = conformal_of_matrix(noise.root.to(J) @ J)
    return Conjecture(gap, own, torch.where(own.isinf(), own, inverse) if square else inverse)
