"""Posteriors of bounded latents in the unbounded coordinate, from their moments."""

from __future__ import annotations

import torch
from torch import Tensor

from vaescope.distributions import Prior

STEPS = 40  # of Newton's method
SMALLEST = 1e-6  # distance of a mean from the bounds, as a share of the width


def unbounded_moments(prior: Prior, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of u such that z(u) has these moments: the inverse of `Prior.moments`.

    Unbounded priors return their arguments. Under a bounded prior the pair is found by Newton's method on the mean
    and the log-variance of u; variances that no normal u can give are replaced by the nearest ones that it can.

    Args:
        prior: the prior of the latents.
        mean: of z.
        variance: of z.

    >>> from vaescope import Uniform
    >>> m, v = torch.tensor([0.7]), torch.tensor([0.25])
    >>> [round(float(value), 3) for value in unbounded_moments(Uniform(), *Uniform().moments(m, v))]
    [0.7, 0.25]
    """
    if prior.bounds is None:
        return mean, variance
    low, high = prior.bounds
    margin = SMALLEST * (high - low)
    inside = mean.clamp(low + margin, high - margin)
    spread = torch.minimum(variance, 0.98 * (inside - low) * (high - inside))
    u = prior.from_support(inside)
    log_v = spread.log() - 2 * prior.log_derivative(u)
    for _ in range(STEPS):
        u, log_v = _newton_step(prior, u, log_v, inside, spread)
    return u, log_v.exp()


def _newton_step(prior: Prior, u: Tensor, log_v: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """One step on the mean and on the log of the variance of z, at most one unit long."""

    def moments(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        first, second = prior.moments(a, b.exp())
        return first, second.log()

    zero, one = torch.zeros_like(u), torch.ones_like(u)
    found = torch.func.jvp(moments, (u, log_v), (one, zero))
    (m, s), (m_u, s_u) = found[0], found[1]
    m_v, s_v = torch.func.jvp(moments, (u, log_v), (zero, one))[1]
    missing_m, missing_s = mean - m, variance.log() - s
    determinant = m_u * s_v - m_v * s_u
    step_u = (s_v * missing_m - m_v * missing_s) / determinant
    step_v = (m_u * missing_s - s_u * missing_m) / determinant
    return u + step_u.nan_to_num(0.0).clamp(-1, 1), log_v + step_v.nan_to_num(0.0).clamp(-1, 1)
