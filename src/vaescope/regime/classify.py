"""Active, passive or mixed: each latent judged relative to its own prior (Bonheme & Grzes 2023)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from vaescope.analysis.posteriors import Array, Posteriors, read_chunks
from vaescope.core.errors import InputError
from vaescope.core.validation import number

KINDS = ("active", "passive", "mixed")
TableRow = dict[str, str | int | float]


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


@dataclass(frozen=True)
class FixedThresholds:
    """Thresholds that are not a user's choice."""

    factors: tuple[float, float, float] = (0.5, 1.0, 2.0)
    """What thresholds are multiplied by to see whether a verdict depends on them; convention."""
    wide: float = 1.5
    """σ²/σ†² above which a posterior is wider than its prior by more than training noise; convention."""
    unit_variance: float = 0.01
    """Variance of the mean over the data; Burda et al. 2016."""
    used_kl: float = 0.01
    """In nats; a common convention."""
    filter_margin: float = 0.1
    """Of the variance filter of Bonheme & Grzes 2021."""
    largest_difference: float = 0.05
    """Mean square of μ - μ†, as a share of the variance of μ, if latents repeat the prior; convention."""
    little_information: float = 5.0
    """Times `passive_kl`: what x may add to such a latent; convention."""
    varying_prior: float = 0.01
    """Relative variance of the prior over samples; that of `unit_variance`."""

    @property
    def unchanged(self) -> int:
        """The index of the factor that leaves thresholds as they are."""
        return self.factors.index(1.0)


FIXED = FixedThresholds()


@dataclass
class Moments:
    """Mean and variance of columns, merged over chunks (Chan et al. 1979) without loss of precision for large means."""

    count: int = 0
    mean: Array = field(default_factory=lambda: np.zeros(()))
    squares: Array = field(default_factory=lambda: np.zeros(()))
    """Sum of squared deviations from the mean."""

    @np.errstate(over="ignore", invalid="ignore")  # of a diverged model they are infinite
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
    moments: defaultdict[str, Moments] = field(default_factory=lambda: defaultdict(Moments))
    """By quantity: those of `Posteriors`, `log_ratio`, and `difference`: μ - μ† in the units of the latents."""
    passive: Array = field(default_factory=lambda: np.zeros(()))
    """(level, latent) numbers of passive samples, at each factor of the thresholds."""
    active: Array = field(default_factory=lambda: np.zeros(()))
    """The same for clearly active samples."""
    wide: Array = field(default_factory=lambda: np.zeros(()))

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
        statistics.moments["information"].add(information)
        statistics._count(ratio, information)
        return statistics

    def add(self, chunk: Posteriors) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            ratio, information, kl = chunk.ratio, chunk.information, chunk.kl
        if not np.isfinite(kl).all():
            raise InputError("a KL is not finite: posterior and prior are too far apart for float64.")
        self.samples += len(chunk)
        values = {
            "kl": kl,
            "information": information,
            "log_ratio": np.log(ratio),
            "shift": chunk.shift,
            "difference": chunk.mean - chunk.prior_mean,
            "mean": chunk.mean,
            "variance": chunk.variance,
            "prior_mean": chunk.prior_mean,
            "prior_variance": chunk.prior_variance,
        }
        for name, own in values.items():
            self.moments[name].add(own)
        self._count(ratio, information)

    def _count(self, ratio: Array, information: Array) -> None:
        limits = self.thresholds
        levels = [limits.passive_kl * factor for factor in FIXED.factors]
        self.passive = self.passive + np.stack([(information <= level).sum(0) for level in levels])
        # the square root, since twice or half the variance ratio would call everything or nothing active
        levels = [limits.active_ratio * factor**0.5 for factor in FIXED.factors]
        self.active = self.active + np.stack([(ratio <= level).sum(0) for level in levels])
        self.wide = self.wide + (ratio > FIXED.wide).sum(0)


def kinds(
    statistics: PosteriorStatistics,
    passive_level: int = FIXED.unchanged,
    active_level: int = FIXED.unchanged,
    factor: float = 1.0,
) -> list[str]:
    """The verdict of each latent: `active`, `passive` or `mixed`.

    Args:
        statistics: of the posteriors.
        passive_level: index of the factor that `passive_kl` is multiplied by.
        active_level: the same for `active_ratio`.
        factor: what `mixed_share` is multiplied by.
    """
    limits, samples = statistics.thresholds, statistics.samples
    share = limits.mixed_share * factor
    passive, active = statistics.passive[passive_level] / samples, statistics.active[active_level] / samples
    # without clearly active samples, the mean decides
    informative = statistics.moments["information"].mean > limits.passive_kl * FIXED.factors[passive_level] / 2
    conditions = [passive >= 1 - share, passive <= share, active > share, informative]
    found: list[str] = np.select(conditions, ["passive", "active", "mixed", "active"], "passive").tolist()
    return found


@dataclass(frozen=True, eq=False)
class BaselineRules:
    """What other rules for active latents measure per latent, and their verdicts."""

    variance_of_means: Array
    kl: Array
    mean_variance: Array
    variance_of_variances: Array

    def verdicts(self) -> dict[str, list[str]]:
        """A verdict per latent, by the name of the rule.

        `active units` (Burda et al. 2016) is Var_x(μ_j) > 0.01, whatever the scale of the prior. `KL > 0.01` is
        relative to the prior, but without mixtures. `variance near 1` (Bonheme & Grzes 2021) is passive if the mean of
        σ² is near one, active if it is near zero, and assumes N(0, 1).
        """
        margin = FIXED.filter_margin
        near_one = np.abs(self.mean_variance - 1) <= margin
        conditions = [self.variance_of_variances >= margin, self.mean_variance <= margin, near_one]
        return {
            "active units": np.where(self.variance_of_means > FIXED.unit_variance, "active", "passive").tolist(),
            "KL > 0.01": np.where(self.kl > FIXED.used_kl, "active", "passive").tolist(),
            "variance near 1": np.select(conditions, ["mixed", "active", "passive"], "mixed").tolist(),
        }


@dataclass(frozen=True)
class Collapse:
    """`none`, `partial`, `full`, or `repeats prior`: all latents follow p(z|u), and x adds almost nothing."""

    kind: str
    description: str


def _judge_collapse(kinds: list[str], statistics: PosteriorStatistics) -> Collapse:
    """What the verdicts about latents mean for the model."""
    limits, moments = statistics.thresholds, statistics.moments
    scale = moments["prior_variance"].mean
    prior_varies = bool(
        (
            (moments["prior_mean"].variance > FIXED.varying_prior * scale)
            | (moments["prior_variance"].variance > FIXED.varying_prior * scale**2)
        ).any()
    )
    # each latent follows its varying prior, and x adds little to any of them
    follows = moments["difference"].second <= FIXED.largest_difference * moments["mean"].variance
    information = moments["information"].mean
    passive, little = (information <= f * limits.passive_kl for f in (1.0, FIXED.little_information))
    never_active = statistics.active[FIXED.unchanged] <= limits.mixed_share * statistics.samples
    repeats = prior_varies and bool(((follows & little & never_active) | (passive & never_active)).all())
    used = sum(kind != "passive" for kind in kinds)
    if used and repeats:
        return Collapse(
            "repeats prior",
            f"Nearly collapsed, although latents vary: p(z|u) explains more than {1 - FIXED.largest_difference:.0%} of "
            "their variance over the data. They repeat the auxiliary input, and x adds little.",
        )
    if used == len(kinds):
        return Collapse("none", "No latent is passive.")
    if used:
        return Collapse(
            "partial",
            f"{len(kinds) - used} of {len(kinds)} latents stay at their prior: superfluous if reconstructions are good "
            "enough, a partial collapse if not (then lower β or raise the decoder's precision).",
        )
    if prior_varies:
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
        if edge := np.flatnonzero(self.boundary).tolist():
            found.append(
                f"latents {_listed(edge)} are at a boundary: thresholds half or twice as large change the verdict; "
                "train longer, or look at passive_fraction and kl."
            )
        if wide := np.flatnonzero(self.wide_fraction > self.thresholds.mixed_share).tolist():
            found.append(
                f"latents {_listed(wide)} have posteriors wider than their prior, which is never optimal; check that "
                "variances (not standard deviations or log-variances) were given, or train longer."
            )
        return found

    def table(self) -> list[TableRow]:
        """A row per latent, those in use first, with the verdicts of the baseline rules."""
        columns = {
            "passive samples": self.passive_fraction,
            "KL": self.kl,
            "variance ratio": self.variance_ratio,
            "signal": self.signal,
            "column norm": self.column_norm,
            "effect": self.effect,
        }
        verdicts = self.baseline_rules.verdicts()
        return [
            {
                "latent": k,
                "kind": self.kind[k] + (" (boundary)" if self.boundary[k] else ""),
                **{name: float(values[k]) for name, values in columns.items() if values is not None},
                **{name: verdict[k] for name, verdict in verdicts.items()},
            }
            for k in (*self.used, *self.passive)
        ]

    def disagreements(self) -> list[str]:
        """Latents on which the baseline rules disagree: a sentence per rule and pair of verdicts."""
        lines = []
        for name, verdict in self.baseline_rules.verdicts().items():
            cases = defaultdict(list)
            for k, pair in enumerate(zip(verdict, self.kind, strict=True)):
                cases[pair].append(k)
            lines += [
                f"{name} calls latents {_listed(latents)} {theirs}; relative to their prior they are {ours}."
                for (theirs, ours), latents in cases.items()
                if theirs != ours
            ]
        return lines

    def __str__(self) -> str:
        counts = f"{len(self.active)} active, {len(self.mixed)} mixed, {len(self.passive)} passive of {self.latent_dim}"
        lines = [f"{counts} latents ({self.samples} samples). {self.collapse.description}"]
        for row in self.table():
            numbers = ", ".join(f"{n} {v:.3g}" for n, v in row.items() if isinstance(v, float))
            lines.append(f"  latent {row['latent']}: {row['kind']}; {numbers}")
        lines += [f"  note: {text}" for text in (*self.warnings, *self.disagreements())]
        return "\n".join(lines)


def _listed(latents: list[int]) -> str:
    return ", ".join(map(str, latents))


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
    chunks = read_chunks(mean, variance, prior_mean, prior_variance)
    return judge(PosteriorStatistics.of(chunks, Thresholds(passive_kl, active_ratio, mixed_share)))


def judge(statistics: PosteriorStatistics) -> Regime:
    """The verdicts that follow from these statistics."""
    kind, moments, samples = kinds(statistics), statistics.moments, statistics.samples
    levels = range(len(FIXED.factors))
    variants = [kinds(statistics, *variant) for variant in product(levels, levels, FIXED.factors)]
    variance = moments["variance"]
    return Regime(
        kind=kind,
        passive_fraction=statistics.passive[FIXED.unchanged] / samples,
        active_fraction=statistics.active[FIXED.unchanged] / samples,
        boundary=np.array([any(other[k] != kind[k] for other in variants) for k in range(len(kind))]),
        kl=moments["kl"].mean,
        variance_ratio=np.exp(moments["log_ratio"].mean),
        signal=moments["shift"].second,
        wide_fraction=statistics.wide / samples,
        baseline_rules=BaselineRules(moments["mean"].variance, moments["kl"].mean, variance.mean, variance.variance),
        collapse=_judge_collapse(kind, statistics),
        samples=samples,
        thresholds=statistics.thresholds,
    )
