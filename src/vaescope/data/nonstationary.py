"""Sources whose variances depend on an auxiliary variable, which makes an iVAE identifiable (Khemakhem et al. 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vaescope import randomness
from vaescope.errors import InputError


@dataclass(frozen=True, eq=False)
class NonstationarySources:
    """Sources that are independent and normal given the auxiliary variable, in random order."""

    sources: Float[Tensor, "N d"]
    auxiliary: Int[Tensor, " N"] | Float[Tensor, "N 1"]
    """Segment labels, or numbers in [-1, 1]."""
    variance: Float[Tensor, "N d"]


def segments(
    dim: int, *, samples: int, segments: int = 40, low: float = 0.5, high: float = 3.0, seed: int
) -> NonstationarySources:
    """Sources whose variances, uniform in [low, high], differ between segments; the auxiliary variable is the segment.

    Khemakhem et al. 2020, §5; the time-contrastive data of Hyvärinen & Morioka 2016.

    >>> segments(2, samples=100, segments=5, seed=0).auxiliary.max()
    tensor(4)
    """
    _check_size(dim, samples)
    if not 2 <= segments <= samples or not 0 < low < high:
        raise InputError(
            f"sources need 2 to {samples} segments and 0 < low < high, got {segments} segments, low={low}, high={high}."
        )
    generator = randomness.generator(seed, "segments")
    variances = low + (high - low) * torch.rand(segments, dim, generator=generator, dtype=torch.float64)
    label = torch.arange(samples)[torch.randperm(samples, generator=generator)] % segments
    return _sample(label, variances[label], generator)


def drift(dim: int, *, samples: int, strength: float = 1.0, seed: int) -> NonstationarySources:
    """Sources whose log-variances are sines of an auxiliary variable, which is uniform in [-1, 1].

    Every source has its own frequency and phase; `strength` is the amplitude.

    >>> drift(2, samples=100, seed=0).auxiliary.shape
    torch.Size([100, 1])
    """
    _check_size(dim, samples)
    generator = randomness.generator(seed, "drift")
    auxiliary = 2 * torch.rand(samples, 1, generator=generator, dtype=torch.float64) - 1
    frequency = 1 + torch.rand(dim, generator=generator, dtype=torch.float64)
    phase = 2 * math.pi * torch.rand(dim, generator=generator, dtype=torch.float64)
    variance = torch.exp(strength * torch.sin(math.pi * frequency * auxiliary + phase))
    return _sample(auxiliary, variance, generator)


def _sample(auxiliary: Tensor, variance: Tensor, generator: torch.Generator) -> NonstationarySources:
    noise = torch.randn(variance.shape, generator=generator, dtype=torch.float64)
    return NonstationarySources(variance.sqrt() * noise, auxiliary, variance)


def _check_size(dim: int, samples: int) -> None:
    if dim < 1 or samples < 2:
        raise InputError(f"sources need at least 1 dimension and 2 samples, got {dim} and {samples}.")
