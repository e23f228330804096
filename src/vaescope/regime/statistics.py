"""One pass over posteriors of any number: sums and counts per latent, and nothing else in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from vaescope.errors import InputError
from vaescope.regime.posteriors import Array, Posteriors

LOOSER = (0.5, 1.0, 2.0)  # by what factor thresholds are moved to see whether a verdict hangs on them
WIDE = 1.5  # σ²/σ†² above which a posterior is wider than its prior by more than training noise


@dataclass(frozen=True)
class Thresholds:
    """What counts as passive and as active, for a sample and for a latent.

    A sample's posterior is *passive* when it says at most `passive_kl` nats more than its prior (by a narrower width or
    a moved mean; a posterior wider than its prior says nothing by that), *clearly active* when it is at most
    `active_ratio` times as wide (in variance). A latent is passive or active when all samples but a share of
    `mixed_share` are. A latent without clearly active samples is active too, but weak, when its
    samples tell half of `passive_kl` on average: a few outliers do not make a use.
    """

    passive_kl: float = 0.05
    active_ratio: float = 0.5
    mixed_share: float = 0.05

    def __post_init__(self) -> None:
        if not self.passive_kl > 0:
            raise InputError(f"passive_kl must be > 0 nats, got {self.passive_kl}.")
        if not 0 < self.active_ratio < 1:
            raise InputError(f"active_ratio must be between 0 and 1, got {self.active_ratio}.")
        if not 0 < self.mixed_share < 0.5:
            raise InputError(f"mixed_share must be between 0 and 0.5, got {self.mixed_share}.")


def told(part: Posteriors) -> Array:
    """What x told of every latent, in nats: the KL, except that being wider than the prior tells nothing."""
    ratio = np.minimum(part.ratio, 1.0)
    return 0.5 * (ratio - 1 - np.log(ratio) + part.shift**2)


@dataclass
class Moments:
    """Mean and variance of columns, merged part by part (Chan et al. 1979), so that offsets cost no digits."""

    count: int = 0
    mean: Array = field(default_factory=lambda: np.zeros(()))
    square: Array = field(default_factory=lambda: np.zeros(()))

    def add(self, values: Array) -> None:
        count, mean = len(values), values.mean(0)
        square = ((values - mean) ** 2).sum(0)
        if not self.count:
            self.count, self.mean, self.square = count, mean, square
            return
        total, apart = self.count + count, mean - self.mean
        self.square = self.square + square + apart**2 * (self.count * count / total)
        self.mean = self.mean + apart * (count / total)
        self.count = total

    @property
    def variance(self) -> Array:
        return self.square / self.count


@dataclass
class Tally:
    """What a verdict needs, summed over samples."""

    thresholds: Thresholds
    samples: int = 0
    kl: Moments = field(default_factory=Moments)
    told: Moments = field(default_factory=Moments)
    log_ratio: Moments = field(default_factory=Moments)
    shift: Moments = field(default_factory=Moments)
    moved: Moments = field(default_factory=Moments)
    """Of μ - μ†, in the latents' own units."""
    mean: Moments = field(default_factory=Moments)
    variance: Moments = field(default_factory=Moments)
    prior_mean: Moments = field(default_factory=Moments)
    prior_variance: Moments = field(default_factory=Moments)
    passive: Array = field(default_factory=lambda: np.zeros(()))
    """Passive samples, (level, latent), at every factor of `LOOSER`."""
    active: Array = field(default_factory=lambda: np.zeros(()))
    wide: Array = field(default_factory=lambda: np.zeros(()))

    @classmethod
    def of(cls, given: Iterable[Posteriors], thresholds: Thresholds) -> Tally:
        tally = cls(thresholds)
        for part in given:
            tally.add(part)
        return tally

    def add(self, part: Posteriors) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            ratio, information, limits, divergence = part.ratio, told(part), self.thresholds, part.kl
        if not np.isfinite(divergence).all():
            raise InputError("posterior and prior are too far apart to be compared in numbers: a KL is not finite.")
        self.samples += len(part)
        self.kl.add(divergence)
        self.told.add(information)
        self.log_ratio.add(np.log(ratio))
        self.shift.add(part.shift)
        self.moved.add(part.mean - part.prior_mean)
        for name in ("mean", "variance", "prior_mean", "prior_variance"):
            getattr(self, name).add(getattr(part, name))
        levels = [limits.passive_kl * factor for factor in LOOSER]
        self.passive = self.passive + np.stack([(information <= level).sum(0) for level in levels])
        # the square root: a factor of two in variance either way would call everything or nothing active
        cuts = [limits.active_ratio * factor**0.5 for factor in LOOSER]
        self.active = self.active + np.stack([(ratio <= cut).sum(0) for cut in cuts])
        self.wide = self.wide + (ratio > WIDE).sum(0)

    @property
    def signal(self) -> Array:
        """E[(μ - μ†)²/σ†²] per latent: the share of the prior's variance that the means carry."""
        return self.shift.variance + self.shift.mean**2
