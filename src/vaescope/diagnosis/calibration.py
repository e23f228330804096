"""Whether reconstructions of draws z ~ q are what x is on average, given z.

A decoder that was trained with an encoder returns f(z) = E[x|z] for the codes of that encoder, whatever β. So the slope
of the regression of x on f(z) is 1. Codes of another encoder, or drawn with other variances, change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.encoded import EncodedSample

SAMPLES = 500  # from which the slope is estimated
FEWEST_SAMPLES = 30
LARGEST_ARRAY = 20_000_000  # numbers of an array of reconstructions


@dataclass(frozen=True)
class Slope:
    """The slope of the regression of x on reconstructions, with its standard error over samples."""

    value: float
    stderr: float

    def off(self, least: float, errors: float) -> bool:
        """Whether it differs from 1 by more than this, and by more than so many standard errors."""
        return abs(self.value - 1) > max(least, errors * self.stderr)


class SlopeSums:
    """The sums from which the slope follows, both sides centred, over all outputs and draws.

    >>> x = torch.arange(64.0).reshape(32, 2)
    >>> sums = SlopeSums(x)
    >>> sums.add(2 * x + 1)
    >>> sums.slope()
    Slope(value=0.5, stderr=0.0)
    """

    def __init__(self, x: Float[Tensor, "N n"]) -> None:
        self._centred = x.double() - x.double().mean(0)
        self._products, self._squares = torch.zeros(2, len(x), dtype=torch.float64)

    def add(self, output: Float[Tensor, "N n"]) -> None:
        """Count one reconstruction of every sample."""
        centred = output.double() - output.double().mean(0)
        self._products += (self._centred * centred).sum(1)
        self._squares += centred.square().sum(1)

    def slope(self) -> Slope | None:
        """None if reconstructions do not differ, or for so few samples that the standard error means nothing."""
        total = float(self._squares.sum())
        if len(self._squares) < FEWEST_SAMPLES or not total > 0:
            return None
        value = float(self._products.sum()) / total
        residuals = self._products - value * self._squares
        return Slope(value, float(residuals.square().sum().sqrt()) / total)


def affordable_samples(outputs: int) -> int:
    """How many samples with this many outputs are reconstructed at once."""
    return max(FEWEST_SAMPLES, min(SAMPLES, LARGEST_ARRAY // max(1, outputs)))


def decoded_draws(sample: EncodedSample, draws: int, purpose: str) -> Iterator[Float[Tensor, "N m"]]:
    """Reconstructions of z ~ q, one of every sample at a time.

    Args:
        sample: whose codes are drawn.
        draws: how many per sample.
        purpose: names the stream of random numbers.
    """
    generator, deviation = randomness.generator(0, purpose), sample.variance.sqrt().to(sample.mean)
    for _ in range(draws):
        noise = torch.randn(sample.mean.shape, generator=generator, dtype=sample.mean.dtype)
        yield sample.decode(sample.mean + deviation * noise)


@torch.no_grad()
def slope_of_draws(sample: EncodedSample, draws: int) -> Slope | None:
    """The slope with the variances of the sample; None if outputs and x differ in shape, or are not finite."""
    sums = SlopeSums(sample.observations)
    for output in decoded_draws(sample, draws, "calibration"):
        if output.shape != sample.observations.shape or not bool(output.isfinite().all()):
            return None
        sums.add(output)
    return sums.slope()
