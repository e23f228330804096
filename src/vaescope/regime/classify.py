"""Active, passive or mixed: each latent judged relative to its own prior (Bonheme & Grzes 2023)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import numpy as np

from vaescope.regime.baseline_rules import BaselineRules
from vaescope.regime.collapse import Collapse, judge_collapse
from vaescope.regime.posteriors import Array, read_chunks
from vaescope.regime.statistics import THRESHOLD_FACTORS, PosteriorStatistics, Thresholds

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
