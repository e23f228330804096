"""A learned covariance of the observations: x | z ~ N(f(z), Λ⁻¹) with Λ = RᵀR, R lower triangular, for every member.

The diagonal of R enters as exp(log_scale), so that Λ stays positive definite and log det R is the sum of log_scale.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.distributions.likelihoods import gaussian_log_likelihood
from vaescope.models.networks import Params

LOG_SCALE, LOWER = "noise.log_scale", "noise.lower"
LEARNED_COVARIANCES = {"learned-diagonal": (LOG_SCALE,), "learned-full": (LOG_SCALE, LOWER)}


def init_covariance(noise: str, outputs: int) -> dict[str, Tensor]:
    """First weights of one member, Λ = I; none unless a covariance is learned."""
    shapes = {LOG_SCALE: (outputs,), LOWER: (outputs, outputs)}
    return {name: torch.zeros(shapes[name]) for name in LEARNED_COVARIANCES.get(noise, ())}


def whiten(params: Params, residual: Float[Tensor, "E B n"]) -> Float[Tensor, "E B n"]:
    """R (x - f(z)) of every row."""
    scaled = residual * params[LOG_SCALE].exp().unsqueeze(1)
    if LOWER not in params:
        return scaled
    return scaled + torch.bmm(residual, params[LOWER].tril(-1).mT)


def covariance_log_likelihood(params: Params, residual: Float[Tensor, "E B n"]) -> Float[Tensor, "E B"]:
    """log N(x; f(z), Λ⁻¹) of every row."""
    squares = whiten(params, residual).square().sum(-1)
    volume = params[LOG_SCALE].sum(-1, keepdim=True)
    return gaussian_log_likelihood(squares, residual.shape[-1], torch.ones_like(volume)) + volume


def noise_precision(params: Params) -> Tensor:
    """Λ of the first member: (n,) if it is diagonal, (n, n) otherwise."""
    scale = params[LOG_SCALE][0].exp()
    if LOWER not in params:
        return scale.square()
    root = torch.diag(scale) + params[LOWER][0].tril(-1)
    return root.mT @ root
