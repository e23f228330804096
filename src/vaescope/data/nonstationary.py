"""Sources whose variances depend on an auxiliary u: what makes an iVAE identifiable (Khemakhem et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vaescope import randomness
from vaescope.errors import InputError


@dataclass(frozen=True, eq=False)
class Nonstationary:
    """Independent normal sources given u, rows in random order; `u` is labels, or numbers in [-1, 1]."""

    sources: Float[Tensor, "N d"]
    u: Int[Tensor, " N"] | Float[Tensor, "N 1"]
    variance: Float[Tensor, "N d"]


def segments(
    dim: int, *, samples: int, segments: int = 40, low: float = 0.5, high: float = 3.0, seed: int
) -> Nonstationary:
    """Every segment draws the variance of every source, uniform in [low, high]; u says which segment.

    Khemakhem et al. 2020, §5; the time-contrastive data of Hyvärinen & Morioka 2016.

    >>> segments(2, samples=100, segments=5, seed=0).u.max()
    tensor(4)
    """
    _check(dim, samples)
    if not 2 <= segments <= samples or not 0 < low < high:
        raise InputError(
            f"sources need 2 to {samples} segments and 0 < low < high, got {segments} segments, low={low}, high={high}."
        )
    generator = randomness.generator(seed, "segments")
    variances = low + (high - low) * torch.rand(segments, dim, generator=generator, dtype=torch.float64)
    label = torch.arange(samples)[torch.randperm(samples, generator=generator)] % segments
    return _drawn(label, variances[label], generator)


def drift(dim: int, *, samples: int, strength: float = 1.0, seed: int) -> Nonstationary:
    """The log-variance of every source is a sine of u with a frequency and phase of its own, u uniform in [-1, 1].

    >>> drift(2, samples=100, seed=0).u.shape
    torch.Size([100, 1])
    """
    _check(dim, samples)
    generator = randomness.generator(seed, "drift")
    u = 2 * torch.rand(samples, 1, generator=generator, dtype=torch.float64) - 1
    frequency = 1 + torch.rand(dim, generator=generator, dtype=torch.float64)
    phase = 2 * math.pi * torch.rand(dim, generator=generator, dtype=torch.float64)
    return _drawn(u, torch.exp(strength * torch.sin(math.pi * frequency * u + phase)), generator)


def _drawn(u: Tensor, variance: Tensor, generator: torch.Generator) -> Nonstationary:
    noise = torch.randn(variance.shape, generator=generator, dtype=torch.float64)
    return Nonstationary(variance.sqrt() * noise, u, variance)


def _check(dim: int, samples: int) -> None:
    if dim < 1 or samples < 2:
        raise InputError(f"sources need at least 1 dimension and 2 samples, got {dim} and {samples}.")
