"""Where the optimal posterior can be: Prop. 2 of Reizinger et al. 2022 as an explicit compact region."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope import validation
from vaescope.theory.assumptions import check_lipschitz
from vaescope.theory.derivatives import Decoder, jacobians

NEWTON_STEPS = 60


@dataclass(frozen=True, eq=False)
class Region:
    """Every diagonal Gaussian outside has a larger KL than the reference, so that the optimum exists and is inside."""

    centre: Float[Tensor, "N d"]
    radius: Float[Tensor, " N"]
    """Of a ball around the centre that contains the mean."""
    smallest: Float[Tensor, " N"]
    largest: Float[Tensor, " N"]
    """Bounds on every standard deviation."""

    @property
    def bounded(self) -> Bool[Tensor, " N"]:
        """Whether the region is compact; False if no Lipschitz constant of g is known."""
        return self.radius.isfinite() & self.largest.isfinite()

    def contains(self, mean: Float[Tensor, "N d"], variance: Float[Tensor, "N d"]) -> Bool[Tensor, " N"]:
        deviation = variance.sqrt()
        inside = (deviation >= self.smallest[:, None]) & (deviation <= self.largest[:, None])
        return inside.all(1) & ((mean - self.centre).norm(dim=1) <= self.radius)


def optimum_region(
    *,
    latent: Float[Tensor, "N d"],
    log_marginal: Float[Tensor, " N"],
    kl: Float[Tensor, " N"],
    lipschitz_inverse: float,
    precision: float,
    log_mode: float = -0.5 * math.log(2 * math.pi),
) -> Region:
    """The region of Prop. 2 (Eqs. 17 to 20), for a log-concave prior and as many outputs as latents.

    Args:
        latent: g(x), the latents that decode to x.
        log_marginal: log p(x).
        kl: KL to the true posterior of any diagonal Gaussian, such as N(g(x), I/γ²).
        lipschitz_inverse: a Lipschitz constant of g; infinite if there is none, and then the region is all of space.
        precision: γ² = 1 / decoder variance.
        log_mode: the largest value of log p₀ of a latent; the default is that of N(0, 1).
    """
    check_lipschitz(lipschitz_inverse=lipschitz_inverse)
    gamma2, d = validation.precision(precision), latent.shape[1]
    constant = -0.5 * d * (math.log(gamma2) + 1) + log_marginal - d * log_mode
    return _region(latent, gamma2 / lipschitz_inverse**2, kl - constant)


def prior_region(
    *, log_marginal: Float[Tensor, " N"], kl: Float[Tensor, " N"], latents: int, precision: float
) -> Region:
    """A region that needs no property of the decoder: the prior N(0, I) alone makes the KL grow without bound.

    The misfit is not negative, so KL >= -Σ log σ + ½ (‖μ‖² + Σ σ²) + d/2 log 2π + c(x, γ), for as many outputs as
    latents. Prop. 2 assumes a Lipschitz inverse, which existence does not need.
    """
    gamma2 = validation.precision(precision)
    constant = -0.5 * latents * (math.log(gamma2) + 1) + log_marginal + 0.5 * latents * math.log(2 * math.pi)
    return _region(torch.zeros(len(kl), latents).to(kl), 1.0, kl - constant)


def _region(centre: Float[Tensor, "N d"], curvature: float, level: Float[Tensor, " N"]) -> Region:
    """Where Σ_k [-log σ_k + a σ_k²/2] + a ‖μ - c‖²/2 <= level. Each bracket is at least (1 + log a)/2 (Lemma 4)."""
    if curvature == 0:
        infinite = torch.full_like(level, torch.inf)
        return Region(centre, infinite, torch.zeros_like(level), infinite)
    least = 0.5 * (1 + math.log(curvature))
    d = centre.shape[1]
    radius = (2 * (level - d * least) / curvature).clamp_min(0).sqrt()
    # with y = a σ² the bracket is ½ (y - log y) + ½ log a
    small, large = _roots((2 * (level - (d - 1) * least) - math.log(curvature)).clamp_min(1))
    return Region(centre, radius, (small / curvature).sqrt(), (large / curvature).sqrt())


def _roots(level: Float[Tensor, " N"]) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """The two y > 0 with y - log y = level >= 1, by Newton's method from outside, where it converges monotonically."""
    large = 2 * level
    log_small = -level
    for _ in range(NEWTON_STEPS):
        large = large - (large - large.log() - level) / (1 - 1 / large).clamp_min(1e-300)
        large = torch.where(large.isfinite(), large, 1.0).clamp_min(1)
        rest = log_small.exp()
        log_small = (log_small - (rest - log_small - level) / (rest - 1).clamp_max(-1e-300)).clamp_max(0)
    return log_small.exp(), large


def lipschitz_constants(decoder: Decoder, z: Float[Tensor, "N d"]) -> tuple[float, float]:
    """Largest stretch of f, and of its inverse, over the given points: lower bounds on the constants C and B.

    The second is infinite if a Jacobian has not full column rank, where the propositions of the paper say nothing.

    >>> lipschitz_constants(lambda z: z * torch.tensor([2.0, 0.5]), torch.zeros(1, 2))
    (2.0, 2.0)
    """
    values = torch.cat([torch.linalg.svdvals(J) for J in jacobians(decoder, z)])
    smallest = float(values[:, -1].min()) if values.shape[1] == z.shape[1] else 0.0
    largest = float(values[:, 0].max())
    flat = smallest <= torch.finfo(z.dtype).eps * largest
    return largest, math.inf if flat else 1 / smallest
