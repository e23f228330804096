r"""Whether the encoder's posterior is the best of its family, without searching for the best one.

The diagonal Gaussian q = N(μ, σ²) that maximises the ELBO of an x satisfies, with g = ∇ log p(x, u) and u = μ + σ ε,

.. math:: E_q[g_k] = 0, \qquad -E_q[ε_k σ_k g_k] = 1,

for every latent and any decoder, prior and likelihood. If the posterior is Gaussian with precision matrix Λ, the second
expectation is σ_k² Λ_kk, the squared ratio of σ_k to the best one. So these expectations tell errors of the encoder
from limits of the family: the best diagonal Gaussian of correlated latents is narrower than their marginals, and
simulation-based calibration alone would report it as too narrow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.certification.joint import Joint
from vaescope.distributions import DiagonalGaussian

PAIRS = 4  # mirrored draws of q per simulated x; an even number


@dataclass(frozen=True, eq=False)
class Optimality:
    """First-order conditions of the best posterior of the family, per simulated x and latent."""

    curvature: Float[np.ndarray, "N d"]
    """-σ E_q[ε g]: 1 at the optimum, (σ/σ*)² near it."""
    shift: Float[np.ndarray, "2 N d"]
    """σ E_q[g], from two independent halves of the draws: 0 at the optimum, (μ* - μ)/σ* near it."""

    @property
    def width_ratio(self) -> Float[np.ndarray, " d"]:
        """σ of the encoder over that of the best posterior of its family, to first order."""
        return np.sqrt(np.clip(self.curvature.mean(0), 1e-12, None))

    @property
    def width_error(self) -> Float[np.ndarray, " d"]:
        """Standard error of log width_ratio."""
        mean = np.clip(self.curvature.mean(0), 1e-12, None)
        return 0.5 * self.curvature.std(0) / mean / math.sqrt(len(self.curvature))

    @property
    def bias(self) -> Float[np.ndarray, " d"]:
        """Mean shift to the best posterior, in standard deviations."""
        return self.shift.mean((0, 1))

    @property
    def bias_error(self) -> Float[np.ndarray, " d"]:
        return self.shift.mean(0).std(0) / math.sqrt(self.shift.shape[1])

    @property
    def scatter(self) -> Float[np.ndarray, " d"]:
        """Root mean square shift over x, without the noise of the draws."""
        return np.sqrt(np.clip((self.shift[0] * self.shift[1]).mean(0), 0, None))


def measure_optimality(joint: Joint, q: DiagonalGaussian, *, pairs: int = PAIRS, seed: int = 0) -> Optimality:
    """Expectations of the gradient of log p(x, u) under the encoder's posteriors.

    Args:
        joint: p(x, u) at N observations.
        q: the encoder's posteriors of these observations, in u.
        pairs: mirrored draws per observation, an even number.
        seed: of the draws.
    """
    half = torch.randn(pairs, *q.mean.shape, generator=randomness.generator(seed, "optimality"), dtype=torch.float64)
    noise = torch.stack([half, -half], dim=1)
    scale = q.variance.sqrt()
    scaled = torch.stack([_scaled_gradient(joint, q, scale, pair) for pair in noise])
    curvature = -(noise * scaled).mean((0, 1))
    shifts = scaled.mean(1).unflatten(0, (2, pairs // 2)).mean(1)
    return Optimality(curvature.numpy(), shifts.numpy())


def _scaled_gradient(joint: Joint, q: DiagonalGaussian, scale: Tensor, noise: Tensor) -> Tensor:
    """σ g at u = μ + σ ε."""
    return scale * joint.with_gradient(q.mean + scale * noise)[1]
