"""Simulation-based calibration: where the true z falls in the encoder's posterior of the x that it produced.

For an exact posterior the ranks Φ((z - μ)/σ) are uniform (Talts et al. 2018). A posterior that is too narrow gives a
U-shaped histogram, one that is too wide a dome, a biased one a slope.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy import stats

from vaescope.certification.simulate import Simulation

BINS = 20
LEVEL = 0.01  # probability that any bin of any latent of an exact posterior is outside the band
NULL_DRAWS = 4000
COVERAGE = (0.5, 0.9)


@dataclass(frozen=True, eq=False)
class Calibration:
    """How the encoder's posteriors compare with the true ones, per latent."""

    residual: Float[np.ndarray, "N d"]
    """(u - mean) / standard deviation of the encoder's posterior, in the unbounded coordinate."""

    @property
    def ranks(self) -> Float[np.ndarray, "N d"]:
        """Share of the encoder's posterior below the true value; uniform if the posterior is exact."""
        return stats.norm.cdf(self.residual)

    @property
    def width_ratio(self) -> Float[np.ndarray, " d"]:
        """Standard deviation of q over what would be calibrated: 1 / root mean square of the residuals."""
        return 1 / np.sqrt(np.square(self.residual).mean(0))

    @property
    def width_error(self) -> Float[np.ndarray, " d"]:
        """Standard error of log width_ratio."""
        squares = np.square(self.residual)
        return 0.5 * squares.std(0) / squares.mean(0) / math.sqrt(len(squares))

    @property
    def bias(self) -> Float[np.ndarray, " d"]:
        """Mean residual, in standard deviations of q; > 0 if q is too low."""
        return self.residual.mean(0)

    @property
    def bias_error(self) -> Float[np.ndarray, " d"]:
        return self.residual.std(0) / math.sqrt(len(self.residual))

    def coverage(self, level: float) -> Float[np.ndarray, " d"]:
        """Share of true values in the central interval of that probability under q."""
        inside: np.ndarray = np.abs(self.ranks - 0.5) <= level / 2
        return inside.mean(0)

    @property
    def counts(self) -> Float[np.ndarray, "d bins"]:
        """Histograms of the ranks."""
        edges = np.linspace(0, 1, BINS + 1)
        return np.stack([np.histogram(column, edges)[0] for column in self.ranks.T]).astype(float)

    @property
    def band(self) -> tuple[float, float]:
        """Counts between which all bins of all latents of exact posteriors are, with probability 1 - `LEVEL`."""
        return simultaneous_band(len(self.residual), BINS, self.residual.shape[1])

    @property
    def outside(self) -> np.ndarray:
        """Whether a latent's histogram leaves the band."""
        low, high = self.band
        return np.any((self.counts < low) | (self.counts > high), axis=1, keepdims=True)[:, 0]


def calibrate(simulation: Simulation) -> Calibration:
    """Residuals of the true z under the encoder's posteriors."""
    q = simulation.posterior
    return Calibration(((simulation.u - q.mean) / q.variance.sqrt()).numpy())


@cache
def simultaneous_band(samples: int, bins: int, latents: int, level: float = LEVEL) -> tuple[float, float]:
    """Counts per bin that uniform ranks leave, in any bin of any latent, with probability `level`.

    Pointwise binomial limits, widened as far as simulated uniform histograms need (as Säilynoja, Bürkner & Vehtari
    2022 do for empirical distribution functions).

    >>> simultaneous_band(1000, 20, 1)[0] < 50 < simultaneous_band(1000, 20, 1)[1]
    True
    """
    single = 1 - (1 - level) ** (1 / latents)
    draws = max(NULL_DRAWS, math.ceil(10 / single))
    counts = np.random.default_rng(0).multinomial(samples, np.full(bins, 1 / bins), size=draws)
    binomial = stats.binom(samples, 1 / bins)
    values = np.arange(counts.max() + 1)
    tail = np.minimum(binomial.cdf(values), binomial.sf(values - 1))
    limit = np.quantile(tail[counts].min(1), single)
    allowed = values[tail >= limit]
    return float(allowed.min()), float(max(allowed.max(), samples / bins))
