"""Theorems 1 and 2 and Propositions 1 to 3 of Bonheme & Grzes 2023, as distances with intervals and verdicts.

Distances are relative to the prior, since the learned prior variances of an iVAE may be so small that everything is
"≪ 1". A statement about the latents of one kind is judged by the worst of them. Distributions of z are not sampled: z_j
is a mixture of N known Gaussians with an exact distribution function. The distance between two distributions is the
area between their functions (the first Wasserstein distance), which stays small when a little noise is added to a
discrete distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.integrate import trapezoid
from scipy.special import ndtr

from vaescope.analysis.posteriors import Array, Posteriors, read_sample
from vaescope.core.checks import whole_number
from vaescope.core.errors import InputError
from vaescope.regime.classify import KINDS, PosteriorStatistics, TableRow, Thresholds, judge

MAX_SAMPLES = 10_000  # as in the paper's histograms; larger data sets are subsampled
TAILS = 4.0  # deviations at which distribution functions end; at 2 an eighth of the area would be missing
GRID = 256  # points at which distribution functions are compared: quantiles, and as many at equal steps
NO_SUCH_LATENT = "no such latent"


@dataclass(frozen=True)
class Tolerances:
    """Largest distances that count as ≈ and as ≪ 1."""

    pointwise: float = 0.25
    """Root mean square over samples of (μ - μ†)/σ† and of log σ²/σ†²."""
    moments: float = 0.1
    """Means and variances over the data, in units of the prior: for Prop. 2 (i) of z† over the data, for Prop. 3 (i)
    of σ†² on average."""
    small: float = 0.1
    """Largest value that counts as ≪ 1."""
    distribution: float = 0.1
    """Wasserstein distance between two distributions, in standard deviations of the prior over the data."""
    between: float = 0.1
    """Share of posteriors of latents in use that may be neither passive nor clearly active."""


@dataclass(frozen=True, eq=False)
class Statement:
    """A statement: the distance of the worst latent from it, with a 95 % bootstrap interval over samples."""

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
        """`holds`, `fails`, `undecided` if the interval contains the tolerance, or `no such latent`."""
        if not self.latents:
            return NO_SUCH_LATENT
        if self.high <= self.tolerance:
            return "holds"
        return "fails" if self.low > self.tolerance else "undecided"


@dataclass(frozen=True, eq=False)
class Verification:
    """All statements by name, and the weight c of each mixed latent with its interval."""

    statements: dict[str, Statement]
    kind: list[str]
    mixture_weights: dict[int, tuple[float, float, float]]

    def __getitem__(self, name: str) -> Statement:
        return self.statements[name]

    @property
    def holds(self) -> bool:
        """Whether no statement fails or is undecided."""
        return all(s.verdict in ("holds", NO_SUCH_LATENT) for s in self.statements.values())

    def table(self) -> list[TableRow]:
        """A row per statement."""
        return [
            {
                "statement": s.name,
                "sentence": s.sentence,
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
    """Check the statements of the paper on these posteriors.

    Args:
        mean: (N, d) posterior means: an array, a tensor, or the path of an .npy file.
        variance: (N, d) posterior variances.
        prior_mean: a number, (d,), or (N, d) for a conditional prior p(z|u).
        prior_variance: the same.
        kind: `active`, `passive` or `mixed` for each latent, found by other means, such as from the decoder. By default
            that of `classify`, with which statements about passive latents are easily satisfied.
        thresholds: what counts as passive and as active.
        tolerances: largest distances that count as ≈ and as ≪ 1.
        resamples: bootstrap samples.
        seed: of the bootstrap.

    >>> from vaescope.regime import planted
    >>> q = planted.posteriors(["active", "passive", "mixed"])
    >>> verify(q.mean, q.variance).holds
    True
    """
    whole_number("resamples", resamples, minimum=20)
    posteriors = read_sample(mean, variance, prior_mean, prior_variance, count=MAX_SAMPLES)
    if len(posteriors) < 2:
        raise InputError(f"statements about samples need at least 2 samples, got {len(posteriors)}.")
    limits = thresholds or Thresholds()
    kinds = list(kind) if kind is not None else judge(PosteriorStatistics.of([posteriors], limits)).kind
    if len(kinds) != posteriors.latent_dim or any(k not in KINDS for k in kinds):
        raise InputError(
            f"kind must be one of {', '.join(KINDS)} for each of the {posteriors.latent_dim} latents, got {kinds}."
        )
    weights = _bootstrap_weights(len(posteriors), resamples, seed)
    return _Check(posteriors, kinds, limits, tolerances or Tolerances(), weights).all()


def _bootstrap_weights(samples: int, resamples: int, seed: int) -> Array:
    """(1 + resamples, N) weights, each row summing to one: those of the sample itself, then of bootstrap samples."""
    drawn = np.random.default_rng(seed).multinomial(samples, np.full(samples, 1 / samples), size=resamples)
    return np.concatenate([np.ones((1, samples)), drawn]) / samples


@dataclass(frozen=True, eq=False)
class _Check:
    posteriors: Posteriors
    kinds: list[str]
    limits: Thresholds
    tolerances: Tolerances
    weights: Array

    def all(self) -> Verification:
        q, near = self.posteriors, self.tolerances
        scale, over_data = q.prior_variance.mean(0), self._prior_variance_over_data
        passive, active, mixed = (self._latents_of_kind(kind) for kind in ("passive", "active", "mixed"))
        found = [
            self._polarised(),
            self._moment(
                "Proposition 1 (i)",
                "for each sample a passive posterior is its prior, μ ≈ μ† and σ² ≈ σ†², in the root mean square",
                passive,
                near.pointwise,
                [lambda: self._rms(q.shift), lambda: self._rms(np.log(q.ratio))],
            ),
            self._moment(
                "Proposition 1 (ii)",
                "for each sample an active posterior is narrow, σ² ≪ σ†² on average, so that z ≈ μ",
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
                    lambda: np.abs(self._mean(q.mean - q.prior_mean)) / np.sqrt(over_data),
                    lambda: np.abs(self._variance(q.mean) - self._variance(q.prior_mean)) / over_data,
                ],
            ),
            self._moment(
                "Proposition 2 (ii)",
                "with a fixed prior mean a passive μ is nearly constant: Var(μ) ≪ σ†²",
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
                "over the data an active σ² is small and nearly constant: mean ≪ σ†², variance ≪ σ†⁴",
                active,
                near.small,
                [lambda: self._mean(q.variance) / scale, lambda: self._variance(q.variance) / scale**2],
            ),
            self._distribution("Theorem 2 (i)", "a passive z is distributed as z†", passive, self._prior_cdf),
            self._distribution("Theorem 2 (ii)", "an active z is distributed as μ", active, self._mean_cdf),
            self._distribution(
                "Theorem 2 (iii)",
                "a mixed z is distributed as c p(z† | passive) + (1 - c) p(μ | active)",
                mixed,
                self._mixture_cdf,
            ),
        ]
        return Verification({s.name: s for s in found}, self.kinds, {k: self._passive_share(k) for k in mixed})

    def _latents_of_kind(self, kind: str) -> list[int]:
        return [k for k, other in enumerate(self.kinds) if other == kind]

    @property
    def _fixed_mean(self) -> bool:
        return bool((np.ptp(self.posteriors.prior_mean, axis=0) == 0).all())

    @property
    def _prior_variance_over_data(self) -> Array:
        """Variance of z†_j over the data: that of one sample, and that of the prior means of different samples.

        It is the unit of Prop. 2 (i), because in units of σ†² alone, Var(μ) - Var(μ†) ≈ 2 Cov(μ - μ†, μ†) grows with
        the spread of μ†, however close every posterior is to its prior. In this unit, and for the same σ† of all
        samples, it is at most r + r², where r is the distance from Prop. 1 (i).
        """
        return np.asarray(self.posteriors.prior_variance.mean(0) + self.posteriors.prior_mean.var(0))

    # weighted moments over samples, (resample, latent) --------------------------------------------

    def _mean(self, values: Array) -> Array:
        return self.weights @ values

    def _rms(self, values: Array) -> Array:
        return np.sqrt(self.weights @ values**2)

    def _variance(self, values: Array) -> Array:
        centred = values - values.mean(0)
        return np.maximum(self.weights @ centred**2 - (self.weights @ centred) ** 2, 0)

    def _noise_share(self) -> Array:
        """The share of Var(z) that is not due to μ."""
        noise = self._mean(self.posteriors.variance)
        return noise / (noise + self._variance(self.posteriors.mean))

    # statements -------------------------------------------------------------------------------

    def _moment(
        self, name: str, sentence: str, latents: list[int], tolerance: float, distances: Sequence[Callable[[], Array]]
    ) -> Statement:
        if not latents:
            return _without_latents(name, sentence, tolerance)
        worst = np.maximum.reduce([distance()[:, latents] for distance in distances])
        return _statement(name, sentence, latents, worst, tolerance)

    def _polarised(self) -> Statement:
        name, sentence = "Theorem 1", "posteriors of used latents are passive or clearly active, with few in between"
        used = [k for k, kind in enumerate(self.kinds) if kind != "passive"]
        if not used:
            return _without_latents(name, sentence, self.tolerances.between)
        q, limits = self.posteriors, self.limits
        between = (q.information > limits.passive_kl) & (q.ratio > limits.active_ratio)
        shares = self._mean(between.astype(float))[:, used]
        statement = _statement(name, sentence, used, shares.mean(1, keepdims=True), self.tolerances.between)
        return replace(statement, per_latent=shares[0])

    def _distribution(
        self, name: str, sentence: str, latents: list[int], other: Callable[[int, Array], Array]
    ) -> Statement:
        tolerance = self.tolerances.distribution
        if not latents:
            return _without_latents(name, sentence, tolerance)
        worst = np.stack([self._wasserstein(k, other) for k in latents], axis=1)
        return _statement(name, sentence, latents, worst, tolerance)

    def _wasserstein(self, k: int, other: Callable[[int, Array], Array]) -> Array:
        """Distance of z_k from another distribution, for each resample, in standard deviations of z† over the data."""
        q = self.posteriors
        grid = _grid(q, k)
        cdf = _cdf(q.mean[:, k], q.variance[:, k], grid)
        area = trapezoid(np.abs(self.weights @ (cdf - other(k, grid))), grid, axis=1)
        return np.asarray(area / np.sqrt(self._prior_variance_over_data[k]))

    def _prior_cdf(self, k: int, grid: Array) -> Array:
        return _cdf(self.posteriors.prior_mean[:, k], self.posteriors.prior_variance[:, k], grid)

    def _mean_cdf(self, k: int, grid: Array) -> Array:
        return (self.posteriors.mean[:, k, None] <= grid).astype(float)

    def _mixture_cdf(self, k: int, grid: Array) -> Array:
        return np.where(self._passive_samples(k)[:, None], self._prior_cdf(k, grid), self._mean_cdf(k, grid))

    def _passive_samples(self, k: int) -> np.ndarray:
        return self.posteriors.information[:, k] <= self.limits.passive_kl

    def _passive_share(self, k: int) -> tuple[float, float, float]:
        shares = self.weights @ self._passive_samples(k)
        low, high = np.quantile(shares[1:], (0.025, 0.975))
        return float(shares[0]), float(low), float(high)


def _cdf(mean: Array, variance: Array, grid: Array) -> Array:
    return np.asarray(ndtr((grid - mean[:, None]) / np.sqrt(variance)[:, None]))


def _grid(q: Posteriors, k: int) -> Array:
    """Points where z_k or its prior has mass: pooled quantiles of both, and equal steps between them."""
    sd, prior_sd = np.sqrt(q.variance[:, k]), np.sqrt(q.prior_variance[:, k])
    steps = (-TAILS, -2.0, -0.7, 0.0, 0.7, 2.0, TAILS)
    pool = [q.mean[:, k] + s * sd for s in steps] + [q.prior_mean[:, k] + s * prior_sd for s in steps]
    quantiles = np.quantile(np.concatenate(pool), np.linspace(0, 1, GRID))
    return np.unique(np.concatenate([quantiles, np.linspace(quantiles[1], quantiles[-2], GRID)]))


def _statement(name: str, sentence: str, latents: list[int], distances: Array, tolerance: float) -> Statement:
    """A statement from (resample, latent) distances; the first row is the sample itself."""
    worst = distances.max(1)
    # resampling increases small distances, so the interval is extended to contain the measured one
    low, high = (float(value) for value in np.quantile(worst, (0.025, 0.975)))
    measured = float(worst[0])
    return Statement(
        name, sentence, latents, measured, min(measured, low), max(measured, high), tolerance, distances[0]
    )


def _without_latents(name: str, sentence: str, tolerance: float) -> Statement:
    return Statement(name, sentence, [], np.nan, np.nan, np.nan, tolerance, np.empty(0))
