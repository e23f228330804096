"""Pareto-smoothed importance sampling (Vehtari, Simpson, Gelman, Yao & Gabry 2024)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor


def fit_generalised_pareto(excess: Float[Tensor, "N m"]) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Shape k and scale σ of the tail (Zhang & Stephens 2009), with the weak prior on k of PSIS.

    Args:
        excess: positive values in ascending order.
    """
    count = excess.shape[1]
    grid = 30 + int(math.sqrt(count))
    index = torch.arange(1, grid + 1, dtype=excess.dtype, device=excess.device)
    quartile = excess[:, int(count / 4 + 0.5) - 1].clamp_min(torch.finfo(excess.dtype).tiny)
    b = (1 - (grid / (index - 0.5)).sqrt()) / (3 * quartile[:, None]) + 1 / excess[:, -1:]
    k = torch.log1p(-b[:, :, None] * excess[:, None, :]).mean(-1)
    profile = count * (torch.log(-b / k) - k - 1)
    weights = torch.softmax(profile, dim=1)
    best = (b * weights).sum(1)
    shape = torch.log1p(-best[:, None] * excess).mean(-1)
    scale = -shape / best
    return (count * shape + 10 * 0.5) / (count + 10), scale


def smooth(log_weights: Float[Tensor, "N S"]) -> tuple[Float[Tensor, "N S"], Float[Tensor, " N"]]:
    """Log-weights with their largest values smoothed, and the k̂ of each row.

    Estimates with k̂ below 0.7 are reliable. A row with constant weights has k̂ = -inf.
    """
    samples = log_weights.shape[1]
    tail = min(samples // 5, math.ceil(3 * math.sqrt(samples)))
    ordered, index = (log_weights - log_weights.amax(1, keepdim=True)).sort(dim=1)
    cutoff = ordered[:, -tail - 1].exp()
    excess = (ordered[:, -tail:].exp() - cutoff[:, None]).clamp_min(0)
    flat = excess[:, -1] <= 1e-12 * (1 + cutoff)
    safe = torch.where(flat[:, None], torch.linspace(0.1, 1, tail, dtype=excess.dtype, device=excess.device), excess)
    k, scale = fit_generalised_pareto(safe)
    probability = (torch.arange(tail, dtype=excess.dtype, device=excess.device) + 0.5) / tail
    quantiles = scale[:, None] * torch.expm1(-k[:, None] * torch.log1p(-probability)) / k[:, None]
    smoothed = (cutoff[:, None] + quantiles).clamp(max=1).log()
    ordered = torch.cat([ordered[:, :-tail], torch.where(flat[:, None], ordered[:, -tail:], smoothed)], dim=1)
    result = torch.empty_like(ordered).scatter_(1, index, ordered)
    return result + log_weights.amax(1, keepdim=True), torch.where(flat, -math.inf, k)
