"""Active, passive or mixed: each latent judged relative to its own prior (Bonheme & Grzes 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from vaescope.analysis.posteriors import Array, Posteriors, read_chunks
from vaescope.core.checks import number
from vaescope.core.errors import InputError

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


UNIT_VARIANCE = 0.01  # Burda et al. 2016: variance of the mean over the data
USED_KL = 0.01  # nats, a common threshold
FILTER_MARGIN = 0.1  # of the variance filter of Bonheme & Grzes 2021


@dataclass(frozen=True, eq=False)
class BaselineRules:
    """What each rule measures per latent, and its verdicts."""

    variance_of_means: Array
    kl: Array
    mean_variance: Array
    variance_of_variances: Array

    @classmethod
    def of(cls, statistics: PosteriorStatistics) -> BaselineRules:
        variance = statistics.variance
        return cls(statistics.mean.variance, statistics.kl.mean, variance.mean, variance.variance)

    @property
    def active_units(self) -> list[str]:
        """Active units (Burda et al. 2016): Var_x(μ_j) > 0.01, whatever the scale of the prior."""
        return ["active" if v > UNIT_VARIANCE else "passive" for v in self.variance_of_means]

    @property
    def kl_rule(self) -> list[str]:
        """Mean KL > 0.01: relative to the prior, but without mixtures."""
        return ["active" if v > USED_KL else "passive" for v in self.kl]

    @property
    def variance_filter(self) -> list[str]:
        """Passive if the mean of σ² is near one, active if near zero (Bonheme & Grzes 2021); assumes N(0, 1)."""
        pairs = zip(self.mean_variance, self.variance_of_variances, strict=True)
        return [_filter_verdict(float(mean), float(variance)) for mean, variance in pairs]

    def verdicts(self) -> dict[str, list[str]]:
        return {
            "active units": self.active_units,
            "KL > 0.01": self.kl_rule,
            "variance near 1": self.variance_filter,
        }

    def row(self, k: int) -> dict[str, str]:
        """Verdicts about one latent."""
        return {name: verdict[k] for name, verdict in self.verdicts().items()}

    def disagreements(self, kind: list[str]) -> list[str]:
        """One sentence per rule and pair of verdicts, so that wide models stay readable."""
        lines = []
        for name, verdict in self.verdicts().items():
            cases: dict[tuple[str, str], list[int]] = {}
            for k, (theirs, ours) in enumerate(zip(verdict, kind, strict=True)):
                if theirs != ours:
                    cases.setdefault((theirs, ours), []).append(k)
            lines += [
                f"{name} calls latents {', '.join(map(str, latents))} {theirs}; relative to their prior they are "
                f"{ours}."
                for (theirs, ours), latents in cases.items()
            ]
        return lines


def _filter_verdict(mean: float, variance: float) -> str:
    if variance >= FILTER_MARGIN:
        return "mixed"
    if mean <= FILTER_MARGIN:
        return "active"
    return "passive" if abs(mean - 1) <= FILTER_MARGIN else "mixed"


LARGEST_DIFFERENCE = 0.05  # mean square of μ - μ†, as a share of the variance of μ, if latents repeat the prior
LITTLE_INFORMATION = 5  # times passive_kl: what x may add to such a latent
VARYING_PRIOR = 0.01  # relative variance over samples; also the threshold of the active-units rule


@dataclass(frozen=True)
class Collapse:
    """`none`, `partial`, `full`, or `repeats prior`: all latents follow p(z|u), and x adds almost nothing."""

    kind: str
    description: str


def judge_collapse(kinds: Sequence[str], statistics: PosteriorStatistics) -> Collapse:
    """What the verdicts about latents mean for the model."""
    used = sum(kind != "passive" for kind in kinds)
    if used and _nearly_repeats_prior(statistics):
        return Collapse(
            "repeats prior",
            f"Nearly collapsed, although latents vary: p(z|u) explains more than {1 - LARGEST_DIFFERENCE:.0%} of their "
            "variance over the data. They repeat the auxiliary input, and x adds little.",
        )
    if used == len(kinds):
        return Collapse("none", "No latent is passive.")
    if used:
        return Collapse(
            "partial",
            f"{len(kinds) - used} of {len(kinds)} latents stay at their prior: superfluous if reconstructions are good "
            "enough, a partial collapse if not (then lower β or raise the decoder's precision).",
        )
    if _prior_varies(statistics):
        return Collapse(
            "repeats prior",
            "Collapsed, although latents vary: they vary only as p(z|u) does. They repeat the auxiliary input, and x "
            "adds nothing.",
        )
    return Collapse(
        "full",
        "Full collapse: no posterior differs from its prior, so the decoder gets no information about x (sum the "
        "loss over pixels if it averages over them, lower β, or raise the decoder's precision).",
    )


def _nearly_repeats_prior(statistics: PosteriorStatistics) -> bool:
    """Whether each latent follows its varying prior, and x adds little to any of them."""
    limits, information = statistics.thresholds, statistics.information.mean
    follows = statistics.difference.second <= LARGEST_DIFFERENCE * statistics.mean.variance
    passive = information <= limits.passive_kl
    little = information <= LITTLE_INFORMATION * limits.passive_kl
    active = statistics.active[THRESHOLD_FACTORS.index(1.0)]
    never_active = active <= limits.mixed_share * statistics.samples
    repeats = (follows & little & never_active) | (passive & never_active)
    return _prior_varies(statistics) and bool(repeats.all())


def _prior_varies(statistics: PosteriorStatistics) -> bool:
    """Whether the prior differs between samples, in mean or in variance."""
    scale = statistics.prior_variance.mean
    by_mean = statistics.prior_mean.variance > VARYING_PRIOR * scale
    by_variance = statistics.prior_variance.variance > VARYING_PRIOR * scale**2
    return bool((by_mean | by_variance).any())


KINDS = ("active", "passive", "mixed")
TableRow = dict[str, str | int | float]


@dataclass(frozen=True, eq=False)
class Regime:
    """A verdict per latent, and what it is based on."""

    kind: list[str]
    """`active`, `passive` or `mixed`."""
    passive_fraction: Array
    """(d,) share of samples whose posterior is at its prior; the c of Theorem 2 for a mixed latent."""
    active_fraction: Array
    """(d,) share of samples whose posterior is clearly narrower than its prior."""
    boundary: np.ndarray
    """(d,) whether thresholds half or twice as large would change the verdict."""
    kl: Array
    """(d,) mean KL from the prior, in nats."""
    variance_ratio: Array
    """(d,) σ²/σ†², geometric mean over samples."""
    signal: Array
    """(d,) mean (μ - μ†)²/σ†²."""
    wide_fraction: Array
    """(d,) share of samples whose posterior is wider than its prior: the encoder is not at its optimum."""
    baseline_rules: BaselineRules
    """What other rules for active latents measure, and their verdicts."""
    collapse: Collapse
    """Whether the model as a whole has collapsed."""
    samples: int
    """Number of posteriors per latent."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    """What counts as passive and as active."""
    column_norm: Array | None = None
    """(d,) root mean square of ‖J_k‖, if there is a decoder."""
    effect: Array | None = None
    """(d,) squared error added by drawing the latent from its prior, as a share of the variance of x."""

    @property
    def latent_dim(self) -> int:
        return len(self.kind)

    def latents_of_kind(self, *kinds: str) -> list[int]:
        """Indices of the latents of these kinds, highest KL first.

        Args:
            kinds: one or more of `active`, `passive` and `mixed`.
        """
        found = [k for k, kind in enumerate(self.kind) if kind in kinds]
        return sorted(found, key=lambda k: -self.kl[k])

    @property
    def active(self) -> list[int]:
        return self.latents_of_kind("active")

    @property
    def passive(self) -> list[int]:
        return self.latents_of_kind("passive")

    @property
    def mixed(self) -> list[int]:
        return self.latents_of_kind("mixed")

    @property
    def used(self) -> list[int]:
        """Latents that carry information about some samples: active and mixed."""
        return self.latents_of_kind("active", "mixed")

    @property
    def warnings(self) -> list[str]:
        found = []
        edge = [k for k in range(self.latent_dim) if self.boundary[k]]
        if edge:
            found.append(
                f"latents {_listed(edge)} are at a boundary: thresholds half or twice as large change the verdict; "
                "train longer, or look at passive_fraction and kl."
            )
        wide = [k for k in range(self.latent_dim) if self.wide_fraction[k] > self.thresholds.mixed_share]
        if wide:
            found.append(
                f"latents {_listed(wide)} have posteriors wider than their prior, which is never optimal; check that "
                "variances (not standard deviations or log-variances) were given, or train longer."
            )
        return found

    def table(self) -> list[TableRow]:
        """A row per latent, those in use first, with the verdicts of the baseline rules."""
        return [self._row(k) for k in (*self.used, *self.passive)]

    def _row(self, k: int) -> TableRow:
        decoder = {
            name: float(values[k])
            for name, values in (("column norm", self.column_norm), ("effect", self.effect))
            if values is not None
        }
        return {
            "latent": k,
            "kind": self.kind[k] + (" (boundary)" if self.boundary[k] else ""),
            "passive samples": float(self.passive_fraction[k]),
            "KL": float(self.kl[k]),
            "variance ratio": float(self.variance_ratio[k]),
            "signal": float(self.signal[k]),
            **decoder,
            **self.baseline_rules.row(k),
        }

    def disagreements(self) -> list[str]:
        """Sentences about latents on which the baseline rules disagree."""
        return self.baseline_rules.disagreements(self.kind)

    def __str__(self) -> str:
        lines = [
            f"{len(self.active)} active, {len(self.mixed)} mixed, {len(self.passive)} passive of {self.latent_dim}"
        ]
        lines[0] += f" latents ({self.samples} samples). {self.collapse.description}"
        for row in self.table():
            numbers = ", ".join(f"{n} {v:.3g}" for n, v in row.items() if isinstance(v, float))
            lines.append(f"  latent {row['latent']}: {row['kind']}; {numbers}")
        lines += [f"  note: {text}" for text in (*self.warnings, *self.disagreements())]
        return "\n".join(lines)


def classify(
    mean: object,
    variance: object,
    *,
    prior_mean: object = 0.0,
    prior_variance: object = 1.0,
    passive_kl: float = 0.05,
    active_ratio: float = 0.5,
    mixed_share: float = 0.05,
) -> Regime:
    r"""Judge each latent by the posteriors of many samples, relative to their priors.

    .. math:: \mathrm{KL}_j = \tfrac12\big(r - 1 - \log r + (\mu_j-\mu^\dagger_j)^2/\sigma^{\dagger2}_j\big),
              \quad r = \sigma^2_j/\sigma^{\dagger2}_j

    A sample is passive if its KL is at most `passive_kl` (with r > 1 counted as 1, since a posterior wider than its
    prior carries no information), and clearly active if r is at most `active_ratio`. A latent is passive or active if
    all but `mixed_share` of the samples are, mixed if it has more than that of both, and active if all samples carry a
    little information (half of `passive_kl` on average), like a principal component just above the noise.
    Bonheme & Grzes 2023, Props. 1 to 3.

    Args:
        mean: (N, d) posterior means: an array, a tensor, or the path of an .npy file, which is read in one pass.
        variance: (N, d) posterior variances.
        prior_mean: a number, (d,), or (N, d) for a conditional prior p(z|u).
        prior_variance: the same.
        passive_kl: in nats.
        active_ratio: largest r of a clearly active sample.
        mixed_share: share of samples that may differ from the latent's verdict.

    >>> rng = np.random.default_rng(0)
    >>> mean = rng.normal(size=(500, 2)) * [1.0, 0.01]
    >>> classify(mean, np.full((500, 2), [0.05, 0.99])).kind
    ['active', 'passive']
    """
    thresholds = Thresholds(passive_kl, active_ratio, mixed_share)
    return judge(PosteriorStatistics.of(read_chunks(mean, variance, prior_mean, prior_variance), thresholds))


def judge(statistics: PosteriorStatistics) -> Regime:
    """The verdicts that follow from these statistics."""
    unchanged = THRESHOLD_FACTORS.index(1.0)
    passive, active = statistics.passive / statistics.samples, statistics.active / statistics.samples
    kind = kinds(statistics)
    levels = range(len(THRESHOLD_FACTORS))
    variants = [_kinds(statistics, p, a, factor) for p, a, factor in product(levels, levels, THRESHOLD_FACTORS)]
    return Regime(
        kind=kind,
        passive_fraction=passive[unchanged],
        active_fraction=active[unchanged],
        boundary=np.array([any(other[k] != kind[k] for other in variants) for k in range(len(kind))]),
        kl=statistics.kl.mean,
        variance_ratio=np.exp(statistics.log_ratio.mean),
        signal=statistics.shift.second,
        wide_fraction=statistics.wide / statistics.samples,
        baseline_rules=BaselineRules.of(statistics),
        collapse=judge_collapse(kind, statistics),
        samples=statistics.samples,
        thresholds=statistics.thresholds,
    )


def kinds(statistics: PosteriorStatistics) -> list[str]:
    """The verdict of each latent: `active`, `passive` or `mixed`."""
    unchanged = THRESHOLD_FACTORS.index(1.0)
    return _kinds(statistics, unchanged, unchanged, 1.0)


def _kinds(statistics: PosteriorStatistics, passive_level: int, active_level: int, factor: float) -> list[str]:
    """Verdicts with thresholds at these levels of `THRESHOLD_FACTORS`, and `mixed_share` times `factor`."""
    share = statistics.thresholds.mixed_share * factor
    weak = statistics.thresholds.passive_kl * THRESHOLD_FACTORS[passive_level] / 2
    passive = statistics.passive[passive_level] / statistics.samples
    active = statistics.active[active_level] / statistics.samples
    information = statistics.information.mean
    return [_kind(p, a, bool(i > weak), share) for p, a, i in zip(passive, active, information, strict=True)]


def _kind(passive: float, active: float, informative: bool, share: float) -> str:
    if passive >= 1 - share:
        return "passive"
    if passive <= share:
        return "active"
    if active > share:
        return "mixed"
    return "active" if informative else "passive"  # no clearly active samples: the mean decides


def _listed(latents: list[int]) -> str:
    return ", ".join(str(k) for k in latents)
