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
from vaescope.distributions.likelihoods import gaussian_log_likelihood
from vaescope.inference.derivatives import Decoder, decode_flat, jacobian
from vaescope.inference.geometry import conformal_of_matrix, contrast_of_matrix


@dataclass(frozen=True, eq=False)
class Noise:
    """The precision Λ of the observations: (n,) for a diagonal covariance, (n, n) for a full one.

    >>> Noise(torch.tensor([4.0, 1.0])).whiten(torch.ones(1, 2))
    tensor([[2., 1.]])
    """

    precision: Tensor

    def __post_init__(self) -> None:
        value = self.precision
        if value.ndim not in (1, 2) or (value.ndim == 2 and value.shape[0] != value.shape[1]):
            raise InputError(f"precision of the noise must be (n,) or (n, n), got shape {tuple(value.shape)}.")
        if value.ndim == 1 and not bool((value > 0).all()):
            raise InputError("precision of the noise must be > 0 for every output; it is 1 / variance.")
        if value.ndim == 2 and (not torch.allclose(value, value.mT) or int(torch.linalg.cholesky_ex(value).info) != 0):
            raise InputError("precision of the noise must be symmetric and positive definite.")

    @property
    def root(self) -> Float[Tensor, "n n"]:
        """R with RᵀR = Λ."""
        if self.precision.ndim == 1:
            return torch.diag(self.precision.sqrt())
        return torch.linalg.cholesky(self.precision).mT

    @property
    def log_volume(self) -> Float[Tensor, ""]:
        """½ log det Λ, by which densities of x and of R x differ."""
        if self.precision.ndim == 1:
            return 0.5 * self.precision.log().sum()
        return torch.linalg.cholesky(self.precision).diagonal().log().sum()

    def whiten(self, values: Float[Tensor, "N ..."]) -> Float[Tensor, "N n"]:
        """R x of every row."""
        flat = values.flatten(1)
        if flat.shape[1] != len(self.precision):
            raise InputError(f"the noise has {len(self.precision)} outputs, but x or the decoder has {flat.shape[1]}.")
        if self.precision.ndim == 1:
            return flat * self.precision.sqrt().to(flat)
        return flat @ self.root.mT.to(flat)

    def whitened(self, decoder: Decoder) -> Decoder:
        """R f."""
        return lambda z: self.whiten(decode_flat(decoder, z))

    def log_likelihood(self, x: Float[Tensor, "N ..."], mean: Float[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        """log N(x; mean, Λ⁻¹) of every row."""
        squares = self.whiten(x.flatten(1) - mean.flatten(1)).square().sum(1)
        return gaussian_log_likelihood(squares, len(self.precision), torch.ones_like(squares)) + self.log_volume


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
