"""Settings, cells and measurements of `polarised-regime`: the rows of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from vaescope_papers.published import published
from vaescope_papers.results import Result
from vaescope_papers.trained import TrainedSettings

MODELS = {"vae": "VAE", "ivae": "iVAE, prior mean 0", "ivae-mean": "iVAE, learned prior mean"}
COMPARED = ("vae", "ivae")  # models that are also trained with other numbers of latents and other β
PUBLISHED = published("polarised_regime")["polarised-regime"]
T = TypeVar("T")

# settings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RegimeSettings(TrainedSettings):
    """The paper profile has the published settings."""

    size: int = 64
    """Pixels along a side of an image."""
    balanced_size: int = 64
    """Log-likelihoods count as much against the KL as at this size, because they are weighted by (this / size)²."""
    latents: tuple[int, ...] = (30, 10)
    """Numbers of latents; the first is that of the figures."""
    betas: tuple[float, ...] = (1.0, 4.0)
    """Values of β; the first is that of the figures."""
    compared_seeds: int | None = None
    """Seeds of models with other numbers of latents or other β; None for as many as those of the figures."""
    finishing_epochs: int = 0
    """Further epochs at a tenth of the learning rate, along which the regime is recorded. With 0 it is recorded along
    all epochs."""

    @property
    def scale(self) -> str:
        """What is trained, in words."""
        steps = (self.epochs + self.finishing_epochs) * round(0.9 * self.samples) // self.batch_size
        return f"{self.size} x {self.size} pixels and about {round(steps, -3):,} steps"


# cell and measurement -------------------------------------------------------------------------


@dataclass(frozen=True)
class RegimeCell:
    model: str
    """A key of `MODELS`."""
    latents: int
    beta: float
    seed: int

    @property
    def title(self) -> str:
        beta = "" if self.beta == 1 else f", β = {self.beta:g}"
        return f"{MODELS[self.model]}, {self.latents} latents{beta}"


@dataclass(frozen=True)
class PerLatent:
    """Tuples with one entry per latent."""

    kind: tuple[str, ...]
    """`active`, `passive` or `mixed`."""
    kl: tuple[float, ...]
    """Mean KL from the prior, in nats."""
    variance_ratio: tuple[float, ...]
    """Posterior variance over prior variance, geometric mean over samples."""
    optimal_variance_ratio: tuple[float, ...]
    """The same for the posterior that is optimal for the decoder, to first order in its Jacobian."""
    effect: tuple[float, ...]
    """Squared error added by drawing the latent from its prior, as a share of the data's variance."""
    prior_variance: tuple[float, ...]
    """Mean over samples."""
    baseline_rules: dict[str, tuple[str, ...]]
    """Kinds by the usual rules, by the name of the rule."""
    variance: tuple[float, ...] = ()
    """Posterior variance, mean over samples; empty in runs that did not record it."""

    @property
    def absolute_variance(self) -> tuple[float, ...]:
        """Posterior variance; where it was not recorded, its ratio to the prior's times the mean of that."""
        estimated = tuple(r * s for r, s in zip(self.variance_ratio, self.prior_variance, strict=True))
        return self.variance or estimated

    def of_kind(self, kind: str, values: Sequence[T]) -> list[T]:
        """The values of the latents of this kind."""
        return [value for value, own in zip(values, self.kind, strict=True) if own == kind]


@dataclass(frozen=True)
class Truncation:
    """Codes of 0, 1, 2, … latents, most used ones first, without retraining."""

    used: int
    """Number of latents that are active or mixed."""
    sufficient: int
    """Number of latents after which the ELBO no longer rises."""
    error: tuple[float, ...]
    """Squared error per image at the mean code."""
    elbo: tuple[float, ...]
    """ELBO in nats."""


@dataclass(frozen=True)
class Distance:
    """How far the worst latent is from a statement, with a 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class StatementRow:
    """One statement of the paper, as `vaescope.regime.verify` found it."""

    verdict: str
    tolerance: float
    distance: Distance | None
    """None without a latent of the kind that the statement is about."""


@dataclass(frozen=True)
class Histogram:
    edges: tuple[float, ...]
    counts: dict[str, tuple[float, ...]]
    """By quantity: the keys of `PANELS`."""


PANELS: Mapping[str, tuple[str, ...]] = {
    "means": ("mean",),
    "variances": ("variance", "prior_variance"),
    "samples": ("sample", "prior_sample", "mean"),
}
LatentHistograms = dict[str, Histogram]
"""The panels of one latent: the quantities that each of `PANELS` shows."""


@dataclass(frozen=True)
class Accuracy:
    """Mean accuracy of classifiers of shape and scale; None without latents of that kind."""

    all_latents: float
    used: float | None
    passive: float | None


@dataclass(frozen=True)
class RegimeCurve:
    """After every epoch; empty where it was not recorded."""

    active: tuple[float, ...] = ()
    """Number of active latents."""
    mixed: tuple[float, ...] = ()
    """Number of mixed latents."""
    distances: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """By statement: the distance of the worst latent, 0 without a latent of the kind that the statement is about."""


@dataclass(frozen=True)
class RegimeMeasurement:
    per_latent: PerLatent
    boundary: int
    """Number of latents whose kind changes with thresholds half or twice as large."""
    collapse: str
    truncation: Truncation
    statements: dict[str, StatementRow]
    """By the name of the statement, such as `Theorem 1`."""
    active_histograms: LatentHistograms | None
    """Of the most used active latent."""
    passive_histograms: LatentHistograms | None
    """Of the least used passive latent."""
    mean_accuracy: Accuracy
    sampled_accuracy: Accuracy
    curve: RegimeCurve = field(default_factory=RegimeCurve)

    @property
    def accuracies(self) -> dict[str, Accuracy]:
        return {"mean codes": self.mean_accuracy, "sampled codes": self.sampled_accuracy}

    def count(self, kind: str) -> int:
        """Number of latents of this kind."""
        return self.per_latent.kind.count(kind)


RegimeResult = Result[RegimeCell, RegimeMeasurement]
Results = Sequence[RegimeResult]


def select(results: Results, *kind: object) -> list[RegimeResult]:
    """Members of this model, number of latents and β."""
    return [r for r in results if (r.cell.model, r.cell.latents, r.cell.beta) == kind]


def of_model(results: Results, model: str) -> list[RegimeResult]:
    return [r for r in results if r.cell.model == model]


def active_counts(results: Results) -> list[float]:
    return [float(r.measured.count("active")) for r in results]


def of_passive(results: Results, values: Callable[[PerLatent], Sequence[T]]) -> list[T]:
    """The values of the passive latents of all members."""
    return [value for r in results for value in r.measured.per_latent.of_kind("passive", values(r.measured.per_latent))]


def worst_by_seed(results: Results, value: Callable[[RegimeMeasurement], float | None]) -> list[float]:
    """The largest value over the members of every seed, which share their images: a seed is one independent unit.

    Members without a value (None) are left out.
    """
    found: dict[int, float] = {}
    for r in results:
        if (own := value(r.measured)) is not None:
            found[r.cell.seed] = max(own, found.get(r.cell.seed, own))
    return list(found.values())
