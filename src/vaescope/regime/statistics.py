"""Statistics of posteriors, accumulated over chunks: sums and counts per latent."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from vaescope.errors import InputError
from vaescope.regime.posteriors import Array, Posteriors
from vaescope.validation import number

THRESHOLD_FACTORS = (0.5, 1.0, 2.0)  # by which thresholds are multiplied to see whether a verdict depends on them
WIDE = 1.5  # σ²/σ†² above which a posterior is wider than its prior by more than training noise


@dataclass(frozen=True)
class Thresholds:
    """What counts as passive and as active, for a sample and for a latent.

    The posterior of a sample is *passive* if it carries at most `passive_kl` nats of information: by a smaller variance
    than the prior's or by a different mean. It is *clearly active* if its variance is at most `active_ratio` times the
    prior's. A latent is passive or active if all but a share of `mixed_share` of the samples are. A latent without
    clearly active samples is also active, but weakly, if its samples carry half of `passive_kl` on average, so that a
    few outliers are not enough.
    """

    passive_kl: float = 0.05
    active_ratio: float = 0.5
    mixed_share: float = 0.05

    def __post_init__(self) -> None:
        number("passive_kl", self.passive_kl, above=0.0, hint="it is in nats")
        if not 0 < number("active_ratio", self.active_ratio) < 1:
            raise InputError(f"active_ratio must be between 0 and 1, got {self.active_ratio}.")
        if not 0 < number("mixed_share", self.mixed_share) < 0.5:
            raise InputError(f"mixed_share must be between 0 and 0.5, got {self.mixed_share}.")


def _zeros() -> Array:
    return np.zeros(())


@dataclass
class Moments:
    """Mean and variance of columns, merged over chunks (Chan et al. 1979) without loss of precision for large means."""

    count: int = 0
    mean: Array = field(default_factory=_zeros)
    squares: Array = field(default_factory=_zeros)
    """Sum of squared deviations from the mean."""

    def add(self, values: Array) -> None:
        count, mean = len(values), values.mean(0)
        squares = ((values - mean) ** 2).sum(0)
        if not self.count:
            self.count, self.mean, self.squares = count, mean, squares
            return
        total, difference = self.count + count, mean - self.mean
        self.squares = self.squares + squares + difference**2 * (self.count * count / total)
        self.mean = self.mean + difference * (count / total)
        self.count = total

    @property
    def variance(self) -> Array:
        return self.squares / self.count

    @property
    def second(self) -> Array:
        """The mean square."""
        return self.variance + self.mean**2


@dataclass
class PosteriorStatistics:
    """Everything that verdicts are based on, accumulated over samples."""

    thresholds: Thresholds
    samples: int = 0
    kl: Moments = field(default_factory=Moments)
    information: Moments = field(default_factory=Moments)
    log_ratio: Moments = field(default_factory=Moments)
    shift: Moments = field(default_factory=Moments)
    difference: Moments = field(default_factory=Moments)
    """Of μ - μ†, in the units of the latents."""
    mean: Moments = field(default_factory=Moments)
    variance: Moments = field(default_factory=Moments)
    prior_mean: Moments = field(default_factory=Moments)
    prior_variance: Moments = field(default_factory=Moments)
    passive: Array = field(default_factory=_zeros)
    """(level, latent) numbers of passive samples, at each factor of `THRESHOLD_FACTORS`."""
    active: Array = field(default_factory=_zeros)
    """The same for clearly active samples."""
    wide: Array = field(default_factory=_zeros)

    @classmethod
    def of(cls, chunks: Iterable[Posteriors], thresholds: Thresholds | None = None) -> PosteriorStatistics:
        statistics = cls(thresholds or Thresholds())
        for chunk in chunks:
            statistics.add(chunk)
        return statistics

    @classmethod
    def for_kinds(cls, posteriors: Posteriors) -> PosteriorStatistics:
        """Only what the verdict of each latent needs, at a quarter of the time."""
        statistics = cls(Thresholds(), samples=len(posteriors))
        with np.errstate(over="ignore", invalid="ignore"):
            ratio, information = posteriors.ratio, posteriors.information
        statistics.information.add(information)
        statistics._count(ratio, information)
        return statistics

    def add(self, chunk: Posteriors) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            ratio, information, kl = chunk.ratio, chunk.information, chunk.kl
        if not np.isfinite(kl).all():
            raise InputError("a KL is not finite: posterior and prior are too far apart for float64.")
        self.samples += len(chunk)
        for moments, values in (
            (self.kl, kl),
            (self.information, information),
            (self.log_ratio, np.log(ratio)),
            (self.shift, chunk.shift),
            (self.difference, chunk.mean - chunk.prior_mean),
            (self.mean, chunk.mean),
            (self.variance, chunk.variance),
            (self.prior_mean, chunk.prior_mean),
            (self.prior_variance, chunk.prior_variance),
        ):
            moments.add(values)
        self._count(ratio, information)

    def _count(self, ratio: Array, information: Array) -> None:
        limits = self.thresholds
        levels = [limits.passive_kl * factor for factor in THRESHOLD_FACTORS]
        self.passive = self.passive + np.stack([(information <= level).sum(0) for level in levels])
        # the square root, since twice or half the variance ratio would call everything or nothing active
        levels = [limits.active_ratio * factor**0.5 for factor in THRESHOLD_FACTORS]
        self.active = self.active + np.stack([(ratio <= level).sum(0) for level in levels])
        self.wide = self.wide + (ratio > WIDE).sum(0)
