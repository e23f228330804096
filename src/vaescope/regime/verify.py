"""Theorems 1 and 2 and Propositions 1 to 3 of Bonheme & Grzes 2023, as numbers with intervals and verdicts.

Distances are relative to the prior: an iVAE's learned prior variances may be so small that everything is "≪ 1".
A statement about the latents of one kind is judged by the worst of them. Distributions of z are not sampled:
z_j is a mixture of N known Gaussians, whose distribution function is exact. How far two distributions are apart is the
area between their functions (Wasserstein's first distance), which small noise on a discrete distribution keeps small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtr

from vaescope.errors import InputError
from vaescope.regime.classify import KINDS, judge
from vaescope.regime.posteriors import Array, Posteriors, some
from vaescope.regime.statistics import Tally, Thresholds, told

MOST_SAMPLES = 10_000  # as in the paper's histograms; of more, so many are drawn
GRID = 256  # places at which distribution functions are compared: quantiles, and as many at equal steps
NOBODY = "no such latent"


@dataclass(frozen=True)
class Tolerances:
    """How close is ≈, how small is ≪ 1."""

    pointwise: float = 0.25
    """Root mean square over samples of (μ - μ†)/σ† and of log σ²/σ†²."""
    moments: float = 0.1
    """Means and variances over the data, in units of the prior's."""
    small: float = 0.1
    """The most that is ≪ 1."""
    distribution: float = 0.1
    """Wasserstein distance between two distributions, in standard deviations of the prior over the data."""
    between: float = 0.1
    """The share of used latents' posteriors that may be neither passive nor clearly active."""


@dataclass(frozen=True, eq=False)
class Statement:
    """One statement: how far the worst latent is from it, with a 95 % bootstrap interval over samples."""

    name: str
    sentence: str
    latents: list[int]
    distance: float
    low: float
    high: float
    tolerance: float
    per_latent: Array

    @property
    def verdict(self) -> str:
        """`holds`, `fails`, `undecided` when the interval holds the tolerance, or `no such latent`."""
        if not self.latents:
            return NOBODY
        if self.high <= self.tolerance:
            return "holds"
        return "fails" if self.low > self.tolerance else "undecided"


@dataclass(frozen=True, eq=False)
class Verification:
    """All statements, by name, and the weight c of every mixed latent with its interval."""

    statements: dict[str, Statement]
    kind: list[str]
    mixture_weights: dict[int, tuple[float, float, float]]

    def __getitem__(self, name: str) -> Statement:
        return self.statements[name]

    @property
    def holds(self) -> bool:
        """Whether no statement fails or is undecided."""
        return all(s.verdict in ("holds", NOBODY) for s in self.statements.values())

    def table(self) -> list[dict[str, Any]]:
        return [
            {
                "statement": s.name,
                "says": s.sentence,
                "latents": len(s.latents),
                "distance": s.distance,
                "95 % interval": f"{s.low:.3g} to {s.high:.3g}" if s.latents else "",
                "tolerance": s.tolerance,
                "verdict": s.verdict,
            }
            for s in self.statements.values()
        ]

    def __str__(self) -> str:
        lines = [f"{s.name}: {s.verdict} ({s.distance:.3g}, at most {s.tolerance:g})" for s in self.statements.values()]
        lines += [f"latent {k}: c = {c:.3g} ({a:.3g} to {b:.3g})" for k, (c, a, b) in self.mixture_weights.items()]
        return "\n".join(lines)


def verify(
    mean: object,
    variance: object,
    *,
    prior_mean: object = 0.0,
    prior_variance: object = 1.0,
    kind: Sequence[str] | None = None,
    thresholds: Thresholds | None = None,
    tolerances: Tolerances | None = None,
    resamples: int = 200,
    seed: int = 0,
) -> Verification:
    """Check every statement of the paper on these posteriors.

    Kinds come from `classify`, which makes statements about passive latents easy to meet; give `kind` to judge
    kinds found in another way, such as from the decoder.

    >>> from vaescope.regime import planted
    >>> q = planted.posteriors(["active", "passive", "mixed"])
    >>> verify(q.mean, q.variance).holds
    True
    """
    if resamples < 20:
        raise InputError(f"resamples must be at least 20, got {resamples}.")
    given = some(mean, variance, prior_mean, prior_variance, most=MOST_SAMPLES)
    if len(given) < 2:
        raise InputError(f"statements about samples need at least 2, got {len(given)}.")
    limits, near = thresholds or Thresholds(), tolerances or Tolerances()
    kinds = list(kind) if kind is not None else judge(Tally.of([given], limits)).kind
    if len(kinds) != given.latent_dim or any(k not in KINDS for k in kinds):
        raise InputError(f"kind must say {', '.join(KINDS)} for each of the {given.latent_dim} latents, got {kinds}.")
    return _Check(given, kinds, limits, near, _weights(len(given), resamples, seed)).all()


def _weights(samples: int, resamples: int, seed: int) -> Array:
    """(1 + resamples, N): the sample itself, then bootstrap samples as weights, each summing to one."""
    drawn = np.random.default_rng(seed).multinomial(samples, np.full(samples, 1 / samples), size=resamples)
    return np.concatenate([np.ones((1, samples)), drawn]) / samples


@dataclass(frozen=True, eq=False)
class _Check:
    given: Posteriors
    kinds: list[str]
    limits: Thresholds
    near: Tolerances
    weights: Array

    def all(self) -> Verification:
        q, near = self.given, self.near
        scale = q.prior_variance.mean(0)
        passive, active, mixed = (self._of(kind) for kind in ("passive", "active", "mixed"))
        found = [
            self._polarised(),
            self._moment(
                "Proposition 1 (i)",
                "sample by sample a passive posterior is its prior, μ ≈ μ† and σ² ≈ σ†², in the root mean square",
                passive,
                near.pointwise,
                [lambda: self._rms(q.shift), lambda: self._rms(np.log(q.ratio))],
            ),
            self._moment(
                "Proposition 1 (ii)",
                "sample by sample an active posterior is narrow, σ² ≪ σ†² on average, so that z ≈ μ",
                active,
                near.small,
                [lambda: self._mean(q.ratio), self._noise_share],
            ),
            self._moment(
                "Proposition 2 (i)",
                "over the data the mean and the variance of a passive μ are those of μ†",
                passive,
                near.moments,
                [
                    lambda: np.abs(self._mean(q.mean - q.prior_mean)) / np.sqrt(scale),
                    lambda: np.abs(self._variance(q.mean) - self._variance(q.prior_mean)) / scale,
                ],
            ),
            self._moment(
                "Proposition 2 (ii)",
                "with a fixed prior mean a passive μ hardly varies: Var(μ) ≪ σ†²",
                passive if self._fixed_mean else [],
                near.small,
                [lambda: self._variance(q.mean) / scale],
            ),
            self._moment(
                "Proposition 3 (i)",
                "over the data the mean and the variance of a passive σ² are those of σ†²",
                passive,
                near.moments,
                [
                    lambda: np.abs(self._mean(q.variance - q.prior_variance)) / scale,
                    lambda: np.abs(self._variance(q.variance) - self._variance(q.prior_variance)) / scale**2,
                ],
            ),
            self._moment(
                "Proposition 3 (ii)",
                "over the data an active σ² is small and hardly varies: mean ≪ σ†², variance ≪ σ†⁴",
                active,
                near.small,
                [lambda: self._mean(q.variance) / scale, lambda: self._variance(q.variance) / scale**2],
            ),
            self._distribution("Theorem 2 (i)", "a passive z is distributed as z†", passive, self._as_prior),
            self._distribution("Theorem 2 (ii)", "an active z is distributed as μ", active, self._as_mean),
            self._distribution(
                "Theorem 2 (iii)",
                "a mixed z is distributed as c p(z† | passive) + (1 - c) p(μ | active)",
                mixed,
                self._as_mixture,
            ),
        ]
        return Verification({s.name: s for s in found}, self.kinds, {k: self._share(k) for k in mixed})

    def _of(self, kind: str) -> list[int]:
        return [k for k, other in enumerate(self.kinds) if other == kind]

    @property
    def _fixed_mean(self) -> bool:
        return bool((np.ptp(self.given.prior_mean, axis=0) == 0).all())

    # weighted moments over samples, (resample, latent) --------------------------------------------

    def _mean(self, values: Array) -> Array:
        return self.weights @ values

    def _rms(self, values: Array) -> Array:
        return np.sqrt(self.weights @ values**2)

    def _variance(self, values: Array) -> Array:
        centred = values - values.mean(0)
        return np.maximum(self.weights @ centred**2 - (self.weights @ centred) ** 2, 0)

    def _noise_share(self) -> Array:
        """The share of Var(z) that is not of μ: 0 where z is μ."""
        noise = self._mean(self.given.variance)
        return noise / (noise + self._variance(self.given.mean))

    # statements -------------------------------------------------------------------------------

    def _moment(
        self, name: str, sentence: str, latents: list[int], tolerance: float, distances: Sequence[Callable[[], Array]]
    ) -> Statement:
        if not latents:
            return _nobody(name, sentence, tolerance)
        worst = np.maximum.reduce([distance()[:, latents] for distance in distances])
        return _judged(name, sentence, latents, worst, tolerance)

    def _polarised(self) -> Statement:
        name, sentence = "Theorem 1", "posteriors of used latents are passive or clearly active, with few in between"
        used = [k for k, kind in enumerate(self.kinds) if kind != "passive"]
        if not used:
            return _nobody(name, sentence, self.near.between)
        between = (told(self.given) > self.limits.passive_kl) & (self.given.ratio > self.limits.active_ratio)
        shares = self._mean(between.astype(float))[:, used]
        statement = _judged(name, sentence, used, shares.mean(1, keepdims=True), self.near.between)
        return replace(statement, per_latent=shares[0])

    def _distribution(
        self, name: str, sentence: str, latents: list[int], other: Callable[[int, Array], Array]
    ) -> Statement:
        tolerance = self.near.distribution
        if not latents:
            return _nobody(name, sentence, tolerance)
        worst = np.stack([self._apart(k, other) for k in latents], axis=1)
        return _judged(name, sentence, latents, worst, tolerance)

    def _apart(self, k: int, other: Callable[[int, Array], Array]) -> Array:
        """How far z_k is from what it should be distributed as, for every resample, in the prior's deviations."""
        q = self.given
        at = _grid(q, k)
        mine = _cdf(q.mean[:, k], q.variance[:, k], at)
        area = np.trapezoid(np.abs(self.weights @ (mine - other(k, at))), at, axis=1)
        return np.asarray(area / np.sqrt(q.prior_variance[:, k].mean() + q.prior_mean[:, k].var()))

    def _as_prior(self, k: int, at: Array) -> Array:
        return _cdf(self.given.prior_mean[:, k], self.given.prior_variance[:, k], at)

    def _as_mean(self, k: int, at: Array) -> Array:
        return (self.given.mean[:, k, None] <= at).astype(float)

    def _as_mixture(self, k: int, at: Array) -> Array:
        return np.where(self._passive_samples(k)[:, None], self._as_prior(k, at), self._as_mean(k, at))

    def _passive_samples(self, k: int) -> np.ndarray:
        return told(self.given)[:, k] <= self.limits.passive_kl

    def _share(self, k: int) -> tuple[float, float, float]:
        shares = self.weights @ self._passive_samples(k)
        low, high = np.quantile(shares[1:], (0.025, 0.975))
        return float(shares[0]), float(low), float(high)


def _cdf(mean: Array, variance: Array, at: Array) -> Array:
    return np.asarray(ndtr((at - mean[:, None]) / np.sqrt(variance)[:, None]))


def _grid(q: Posteriors, k: int) -> Array:
    """Places where z_k or its prior has mass: quantiles of both, pooled, and equal steps between."""
    sd, prior_sd = np.sqrt(q.variance[:, k]), np.sqrt(q.prior_variance[:, k])
    steps = (-2.0, -0.7, 0.0, 0.7, 2.0)
    pool = [q.mean[:, k] + s * sd for s in steps] + [q.prior_mean[:, k] + s * prior_sd for s in steps]
    quantiles = np.quantile(np.concatenate(pool), np.linspace(0, 1, GRID))
    return np.unique(np.concatenate([quantiles, np.linspace(quantiles[1], quantiles[-2], GRID)]))


def _judged(name: str, sentence: str, latents: list[int], worst: Array, tolerance: float) -> Statement:
    """`worst` is (resample, latent); the first row is the sample itself."""
    over = worst.max(1)
    # resampled distances lie above a small distance: the interval reaches down to what was measured
    low, high = np.quantile(over, (0.025, 0.975))
    return Statement(
        name, sentence, latents, float(over[0]), min(over[0], low), max(over[0], high), tolerance, worst[0]
    )


def _nobody(name: str, sentence: str, tolerance: float) -> Statement:
    return Statement(name, sentence, [], np.nan, np.nan, np.nan, tolerance, np.empty(0))
