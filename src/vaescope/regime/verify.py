"""Theorems 1 and 2 and Propositions 1 to 3 of Bonheme & Grzes 2023, as distances with intervals and verdicts.

Distances are relative to the prior, since the learned prior variances of an iVAE may be so small that everything is
"≪ 1". A statement about the latents of one kind is judged by the worst of them. Distributions of z are not sampled: z_j
is a mixture of N known Gaussians with an exact distribution function. The distance between two distributions is the
area between their functions (the first Wasserstein distance), which stays small when a little noise is added to a
discrete distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.integrate import trapezoid
from scipy.special import ndtr

from vaescope.analysis.posteriors import Array, Posteriors, read_sample
from vaescope.core.errors import InputError
from vaescope.core.validation import integer
from vaescope.regime.classify import KINDS, PosteriorStatistics, TableRow, Thresholds, kinds

STATEMENTS: Mapping[str, tuple[str, str, str]] = {
    "Theorem 1": (
        "used",
        "between",
        "Posteriors of used latents are polarised: equal to their prior, or clearly narrower.",
    ),
    "Proposition 1 (i)": ("passive", "pointwise", "For every sample, a passive posterior equals its prior."),
    "Proposition 1 (ii)": (
        "active",
        "small",
        "For every sample, an active posterior is far narrower than its prior, so that z ≈ μ.",
    ),
    "Proposition 2 (i)": (
        "passive",
        "moments",
        "Over the data, passive means have the mean and the variance of the prior's means.",
    ),
    "Proposition 2 (ii)": ("passive", "small", "If the prior mean is fixed, passive means hardly vary."),
    "Proposition 3 (i)": (
        "passive",
        "moments",
        "Over the data, passive variances have the mean and the variance of the prior's variances.",
    ),
    "Proposition 3 (ii)": ("active", "small", "Active variances are small and hardly vary."),
    "Theorem 2 (i)": ("passive", "distribution", "Passive latents are distributed like their prior."),
    "Theorem 2 (ii)": ("active", "distribution", "Active latents are distributed like their means."),
    "Theorem 2 (iii)": (
        "mixed",
        "distribution",
        "A mixed latent is distributed like its prior where it is passive, and like its means elsewhere.",
    ),
}
"""Name -> latents that the statement is about, field of `Tolerances`, sentence."""
NO_SUCH_LATENT = "no such latent"


@dataclass(frozen=True)
class Tolerances:
    """Largest distances that count as ≈ and as ≪ 1 (conventions: a tenth, and a quarter for single samples)."""

    pointwise: float = 0.25
    """Root mean square over samples of (μ - μ†)/σ† and of log σ²/σ†²."""
    moments: float = 0.1
    """Means and variances over the data, in units of the prior: for Prop. 2 (i) of z† over the data, for Prop. 3 (i)
    of the root mean square of σ†²."""
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
        mean: (N, d) posterior means: an array, a tensor, or the path of an .npy file. Of more than 10,000 samples, as
            many as in the paper's histograms, a random selection is used.
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
    integer("resamples", resamples, minimum=20)
    posteriors = read_sample(mean, variance, prior_mean, prior_variance, count=10_000)
    samples = len(posteriors)
    if samples < 2:
        raise InputError(f"statements about samples need at least 2 samples, got {samples}.")
    limits, near = thresholds or Thresholds(), tolerances or Tolerances()
    own = kinds(PosteriorStatistics.of([posteriors], limits)) if kind is None else list(kind)
    if len(own) != posteriors.latent_dim or any(k not in KINDS for k in own):
        raise InputError(
            f"kind must be one of {', '.join(KINDS)} for each of the {posteriors.latent_dim} latents, got {own}."
        )
    # each row sums to one: the sample itself, then bootstrap samples
    drawn = np.random.default_rng(seed).multinomial(samples, np.full(samples, 1 / samples), size=resamples)
    weights = np.concatenate([np.ones((1, samples)), drawn]) / samples
    distances = _distances(posteriors, limits, weights)
    about = {name: [k for k, found in enumerate(own) if found == name] for name in KINDS}
    about["used"] = sorted(about["active"] + about["mixed"])
    fixed_mean = bool((np.ptp(posteriors.prior_mean, axis=0) == 0).all())
    statements = {}
    for name, (which, tolerance, sentence) in STATEMENTS.items():
        latents = about[which] if fixed_mean or name != "Proposition 2 (ii)" else []
        statements[name] = _statement(name, sentence, latents, distances[name], getattr(near, tolerance))
    passive = posteriors.information <= limits.passive_kl
    mixture_weights = {}
    for k in about["mixed"]:
        shares = weights @ passive[:, k]
        low, high = np.quantile(shares[1:], (0.025, 0.975))
        mixture_weights[k] = (float(shares[0]), float(low), float(high))
    return Verification(statements, own, mixture_weights)


Distances = Callable[[list[int]], Array]
"""Latents -> (resample, latent)."""


def _distances(q: Posteriors, limits: Thresholds, weights: Array) -> dict[str, Distances]:
    """How far latents are from each statement. A row of weights is a resample.

    The unit of Prop. 2 (i) and of distributions is the variance of z†_j over the data: that of one sample, and that of
    the prior means of different samples. In units of σ†² alone, Var(μ) - Var(μ†) ≈ 2 Cov(μ - μ†, μ†) grows with the
    spread of μ†, however close every posterior is to its prior. In this unit, and for the same σ† of all samples, it is
    at most r + r², where r is the distance from Prop. 1 (i). For the same reason the unit of Prop. 3 (i) is the mean of
    σ†⁴, which includes the spread of σ†²: if every σ² is within a factor of 1 ± r of σ†², it is at most 4r + 2r².
    """
    scale = q.prior_variance.mean(0)
    over_data = scale + q.prior_mean.var(0)
    square = scale**2 + q.prior_variance.var(0)

    def mean(values: Array) -> Array:
        return weights @ values

    def rms(values: Array) -> Array:
        return np.sqrt(weights @ values**2)

    def variance(values: Array) -> Array:
        centred = values - values.mean(0)
        return np.maximum(weights @ centred**2 - (weights @ centred) ** 2, 0)

    def noise_share() -> Array:
        """The share of Var(z) that is not due to μ."""
        noise = mean(q.variance)
        return noise / (noise + variance(q.mean))

    def between(latents: list[int]) -> Array:
        neither = (q.information > limits.passive_kl) & (q.ratio > limits.active_ratio)
        return mean(neither.astype(float))[:, latents]

    def prior_cdf(k: int, grid: Array) -> Array:
        return _cdf(q.prior_mean[:, k], q.prior_variance[:, k], grid)

    def mean_cdf(k: int, grid: Array) -> Array:
        return (q.mean[:, k, None] <= grid).astype(float)

    def mixture_cdf(k: int, grid: Array) -> Array:
        passive = q.information[:, k, None] <= limits.passive_kl
        return np.where(passive, prior_cdf(k, grid), mean_cdf(k, grid))

    def largest(*moments: Callable[[], Array]) -> Distances:
        return lambda latents: np.maximum.reduce([moment()[:, latents] for moment in moments])

    def wasserstein(other: Callable[[int, Array], Array]) -> Distances:
        """Distance of z_k from another distribution, in standard deviations of z† over the data."""

        def distance(k: int) -> Array:
            grid = _grid(q, k)
            difference = _cdf(q.mean[:, k], q.variance[:, k], grid) - other(k, grid)
            return trapezoid(np.abs(weights @ difference), grid, axis=1) / np.sqrt(over_data[k])

        return lambda latents: np.stack([distance(k) for k in latents], axis=1)

    return {
        "Theorem 1": between,
        "Proposition 1 (i)": largest(lambda: rms(q.shift), lambda: rms(np.log(q.ratio))),
        "Proposition 1 (ii)": largest(lambda: mean(q.ratio), noise_share),
        "Proposition 2 (i)": largest(
            lambda: np.abs(mean(q.mean - q.prior_mean)) / np.sqrt(over_data),
            lambda: np.abs(variance(q.mean) - variance(q.prior_mean)) / over_data,
        ),
        "Proposition 2 (ii)": largest(lambda: variance(q.mean) / scale),
        "Proposition 3 (i)": largest(
            lambda: np.abs(mean(q.variance - q.prior_variance)) / np.sqrt(square),
            lambda: np.abs(variance(q.variance) - variance(q.prior_variance)) / square,
        ),
        "Proposition 3 (ii)": largest(lambda: mean(q.variance) / scale, lambda: variance(q.variance) / scale**2),
        "Theorem 2 (i)": wasserstein(prior_cdf),
        "Theorem 2 (ii)": wasserstein(mean_cdf),
        "Theorem 2 (iii)": wasserstein(mixture_cdf),
    }


def _cdf(mean: Array, variance: Array, grid: Array) -> Array:
    return np.asarray(ndtr((grid - mean[:, None]) / np.sqrt(variance)[:, None]))


def _grid(q: Posteriors, k: int, points: int = 256) -> Array:
    """Points where z_k or its prior has mass: pooled quantiles of both, and as many equal steps between them."""
    sd, prior_sd = np.sqrt(q.variance[:, k]), np.sqrt(q.prior_variance[:, k])
    steps = (-4.0, -2.0, -0.7, 0.0, 0.7, 2.0, 4.0)  # ending at 2 deviations, an eighth of the area would be missing
    pool = [q.mean[:, k] + s * sd for s in steps] + [q.prior_mean[:, k] + s * prior_sd for s in steps]
    quantiles = np.quantile(np.concatenate(pool), np.linspace(0, 1, points))
    return np.unique(np.concatenate([quantiles, np.linspace(quantiles[1], quantiles[-2], points)]))


def _statement(name: str, sentence: str, latents: list[int], measure: Distances, tolerance: float) -> Statement:
    if not latents:
        return Statement(name, sentence, [], np.nan, np.nan, np.nan, tolerance, np.empty(0))
    distances = measure(latents)
    worst = distances.mean(1) if name == "Theorem 1" else distances.max(1)  # Theorem 1 is about all used latents
    # resampling increases small distances, so the interval is extended to contain the measured one
    low, high = (float(value) for value in np.quantile(worst, (0.025, 0.975)))
    measured = float(worst[0])
    return Statement(
        name, sentence, latents, measured, min(measured, low), max(measured, high), tolerance, distances[0]
    )
