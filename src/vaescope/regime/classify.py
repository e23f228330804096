"""Active, passive or mixed: every latent judged against its own prior (Bonheme & Grzes 2023)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from vaescope.regime.baseline_rules import Rivals
from vaescope.regime.collapse import Collapse, judge_collapse
from vaescope.regime.posteriors import Array, parts
from vaescope.regime.statistics import LOOSER, Tally, Thresholds

KINDS = ("active", "passive", "mixed")


@dataclass(frozen=True, eq=False)
class Regime:
    """A verdict per latent, and the share of samples behind it."""

    kind: list[str]
    passive_fraction: Array
    """(d,) the share of samples that say no more than their prior; for a mixed latent the c of Theorem 2."""
    active_fraction: Array
    """(d,) the share of samples whose posterior is clearly narrower than its prior."""
    boundary: np.ndarray
    """(d,) whether the verdict would be another with thresholds half or twice as large."""
    kl: Array
    """(d,) mean KL from the prior, in nats."""
    variance_ratio: Array
    """(d,) σ²/σ†², geometric mean over samples."""
    signal: Array
    """(d,) mean (μ - μ†)²/σ†²."""
    wide_fraction: Array
    """(d,) the share of samples whose posterior is wider than its prior: an encoder not trained to its optimum."""
    rivals: Rivals
    collapse: Collapse
    samples: int
    thresholds: Thresholds = field(default_factory=Thresholds)
    column_norm: Array | None = None
    """(d,) root mean square of ‖J_k‖, where there is a decoder."""
    effect: Array | None = None
    """(d,) the squared error that a latent drawn from its prior adds, as a share of the variance of x."""

    @property
    def latent_dim(self) -> int:
        return len(self.kind)

    def places(self, *kinds: str) -> list[int]:
        """Latents of these kinds, those with the highest KL first."""
        found = [k for k, kind in enumerate(self.kind) if kind in kinds]
        return sorted(found, key=lambda k: -self.kl[k])

    @property
    def active(self) -> list[int]:
        return self.places("active")

    @property
    def passive(self) -> list[int]:
        return self.places("passive")

    @property
    def mixed(self) -> list[int]:
        return self.places("mixed")

    @property
    def used(self) -> list[int]:
        """Latents that carry something for some samples: active and mixed."""
        return self.places("active", "mixed")

    @property
    def warnings(self) -> list[str]:
        found = []
        edge = [k for k in range(self.latent_dim) if self.boundary[k]]
        if edge:
            found.append(
                f"latents {_listed(edge)} stand at a boundary: thresholds half or twice as large give another verdict; "
                "train longer, or read passive_fraction and kl."
            )
        wide = [k for k in range(self.latent_dim) if self.wide_fraction[k] > self.thresholds.mixed_share]
        if wide:
            found.append(
                f"latents {_listed(wide)} have posteriors wider than their prior, which no trained encoder wants; "
                "check that variances (not standard deviations or log-variances) were given, or train longer."
            )
        return found

    def table(self) -> list[dict[str, Any]]:
        """A row per latent, used ones first, with the rivals' verdicts beside."""
        return [self._row(k) for k in (*self.used, *self.passive)]

    def _row(self, k: int) -> dict[str, Any]:
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
            **self.rivals.row(k),
        }

    def disagreements(self) -> list[str]:
        """Where the usual rules say something else, in words."""
        return self.rivals.disagreements(self.kind)

    def __str__(self) -> str:
        lines = [
            f"{len(self.active)} active, {len(self.mixed)} mixed, {len(self.passive)} passive of {self.latent_dim}"
        ]
        lines[0] += f" latents ({self.samples} samples). {self.collapse.words}"
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
    r"""Judge every latent by the posteriors of many samples, each relative to its prior.

    .. math:: \mathrm{KL}_j = \tfrac12\big(r - 1 - \log r + (\mu_j-\mu^\dagger_j)^2/\sigma^{\dagger2}_j\big),
              \quad r = \sigma^2_j/\sigma^{\dagger2}_j

    `mean` and `variance` are (N, d): arrays, tensors, or paths of .npy files, which are read in one pass. The prior
    is a number, (d,), or, for p(z|u), (N, d). A sample is passive when its KL is at most `passive_kl` (r above 1
    counting as 1: being wider than the prior tells nothing) and clearly active when r is at most `active_ratio`.
    A latent is passive or active when all but `mixed_share` of the samples are, mixed when it has more than that of
    both, and active when it is used everywhere alike but weakly (half of `passive_kl` on average), as a principal
    component just above the noise is. Bonheme & Grzes 2023, Props. 1 to 3.

    >>> rng = np.random.default_rng(0)
    >>> mean = rng.normal(size=(500, 2)) * [1.0, 0.01]
    >>> classify(mean, np.full((500, 2), [0.05, 0.99])).kind
    ['active', 'passive']
    """
    thresholds = Thresholds(passive_kl, active_ratio, mixed_share)
    return judge(Tally.of(parts(mean, variance, prior_mean, prior_variance), thresholds))


def judge(tally: Tally) -> Regime:
    """The verdicts that a tally gives."""
    middle = LOOSER.index(1.0)
    passive, active = tally.passive / tally.samples, tally.active / tally.samples
    kind = _kinds(tally, middle, middle, 1.0)
    levels = range(len(LOOSER))
    moved = [_kinds(tally, p, a, factor) for p, a, factor in product(levels, levels, LOOSER)]
    return Regime(
        kind=kind,
        passive_fraction=passive[middle],
        active_fraction=active[middle],
        boundary=np.array([any(other[k] != kind[k] for other in moved) for k in range(len(kind))]),
        kl=tally.kl.mean,
        variance_ratio=np.exp(tally.log_ratio.mean),
        signal=tally.signal,
        wide_fraction=tally.wide / tally.samples,
        rivals=Rivals.of(tally),
        collapse=judge_collapse(kind, tally),
        samples=tally.samples,
        thresholds=tally.thresholds,
    )


def _kinds(tally: Tally, passive_level: int, active_level: int, factor: float) -> list[str]:
    """Verdicts with the thresholds at these levels of `LOOSER`, and the allowed share times `factor`."""
    share = tally.thresholds.mixed_share * factor
    least = tally.thresholds.passive_kl * LOOSER[passive_level] / 2
    passive = tally.passive[passive_level] / tally.samples
    active = tally.active[active_level] / tally.samples
    return [_kind(p, a, bool(t > least), share) for p, a, t in zip(passive, active, tally.told.mean, strict=True)]


def _kind(passive: float, active: float, tells: bool, share: float) -> str:
    if passive >= 1 - share:
        return "passive"
    if passive <= share:
        return "active"
    if active > share:
        return "mixed"
    return "active" if tells else "passive"  # alike everywhere, and weak: judged by its mean


def _listed(places: list[int]) -> str:
    return ", ".join(str(k) for k in places)
