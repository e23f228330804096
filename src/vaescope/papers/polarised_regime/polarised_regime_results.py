"""Results of polarised-regime: settings, typed rows, the statements of the paper, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from vaescope.papers.claims import show
from vaescope.papers.experiment import ReportTable, TableRow
from vaescope.papers.results import Result
from vaescope.papers.trained import TrainedSettings
from vaescope.regime.verify import Tolerances

MODELS = {"vae": "VAE", "ivae": "iVAE, prior mean 0", "ivae-mean": "iVAE, learned prior mean"}
COMPARED = ("vae", "ivae")  # models that are also trained with other numbers of latents and other β
T = TypeVar("T")


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
    def late_epochs(self) -> int:
        """The last third of all epochs."""
        return max(1, (self.epochs + self.finishing_epochs) // 3)


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


# measurement ----------------------------------------------------------------------------------


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


@dataclass(frozen=True)
class LatentHistograms:
    """The three panels of one latent."""

    means: Histogram
    variances: Histogram
    samples: Histogram


PANELS: Mapping[str, tuple[str, ...]] = {
    "means": ("mean",),
    "variances": ("variance", "prior_variance"),
    "samples": ("sample", "prior_sample", "mean"),
}
"""The quantities of every panel of `LatentHistograms`."""


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

    def count(self, kind: str) -> int:
        """Number of latents of this kind."""
        return self.per_latent.kind.count(kind)


RegimeResult = Result[RegimeCell, RegimeMeasurement]
Results = Sequence[RegimeResult]


def select(results: Results, model: str, latents: int, beta: float) -> list[RegimeResult]:
    wanted = (model, latents, beta)
    return [r for r in results if (r.cell.model, r.cell.latents, r.cell.beta) == wanted]


def figure_members(results: Results, settings: RegimeSettings) -> list[RegimeResult]:
    """One member of each model, with the first number of latents and the first β: its first finished seed."""
    groups = [select(results, model, settings.latents[0], settings.betas[0]) for model in MODELS]
    return [min(group, key=lambda r: r.cell.seed) for group in groups if group]


# statements -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statement:
    sentence: str
    tolerance: float


STATEMENTS: Mapping[str, Statement] = {
    "Theorem 1": Statement(
        "Posteriors of used latents are polarised: equal to their prior, or clearly narrower.", Tolerances.between
    ),
    "Proposition 1 (i)": Statement("For every sample, a passive posterior equals its prior.", Tolerances.pointwise),
    "Proposition 1 (ii)": Statement(
        "For every sample, an active posterior is far narrower than its prior, so that z ≈ μ.", Tolerances.small
    ),
    "Proposition 2 (i)": Statement(
        "Over the data, passive means have the mean and the variance of the prior's means.", Tolerances.moments
    ),
    "Proposition 2 (ii)": Statement("If the prior mean is fixed, passive means hardly vary.", Tolerances.small),
    "Proposition 3 (i)": Statement(
        "Over the data, passive variances have the mean and the variance of the prior's variances.",
        Tolerances.moments,
    ),
    "Proposition 3 (ii)": Statement("Active variances are small and hardly vary.", Tolerances.small),
    "Theorem 2 (i)": Statement("Passive latents are distributed like their prior.", Tolerances.distribution),
    "Theorem 2 (ii)": Statement("Active latents are distributed like their means.", Tolerances.distribution),
}
MIXED_STATEMENT = "Theorem 2 (iii)"  # in the table only: on this data no latent should be mixed
FIXED_MEAN_STATEMENT = "Proposition 2 (ii)"  # only about priors with a fixed mean


# tables ---------------------------------------------------------------------------------------


def tables(results: Results, settings: RegimeSettings) -> list[ReportTable]:
    return [
        ReportTable("Every member", [_member_row(r) for r in results]),
        ReportTable(
            "Accuracy of classifiers of shape and scale (chance is 0.25), on mean codes and on sampled codes",
            [_accuracy_row(r) for r in results],
        ),
        ReportTable(
            "Every statement: distance of the worst latent, and verdict", [_statements_row(r) for r in results]
        ),
        ReportTable(
            "Every latent of the models in the figures",
            [row for r in figure_members(results, settings) for row in _latent_rows(r)],
        ),
    ]


def _member_row(result: RegimeResult) -> TableRow:
    measured = result.measured
    return {
        "model": result.cell.title,
        "seed": result.cell.seed,
        "active": measured.count("active"),
        "passive": measured.count("passive"),
        "mixed": measured.count("mixed"),
        "close to a boundary": measured.boundary,
        "in use": measured.truncation.used,
        "sufficient by ELBO": measured.truncation.sufficient,
        "ELBO": result.elbo,
        "collapse": measured.collapse,
    }


def _accuracy_row(result: RegimeResult) -> TableRow:
    kinds = {"mean codes": result.measured.mean_accuracy, "sampled codes": result.measured.sampled_accuracy}
    row: dict[str, object] = {"model": result.cell.title, "seed": result.cell.seed}
    for codes, accuracy in kinds.items():
        row |= {
            f"{codes}: all": accuracy.all_latents,
            f"{codes}: used": accuracy.used,
            f"{codes}: passive": accuracy.passive,
        }
    return row


def _statements_row(result: RegimeResult) -> TableRow:
    row: dict[str, object] = {"model": result.cell.title, "seed": result.cell.seed}
    for name in (*STATEMENTS, MIXED_STATEMENT):
        found = result.measured.statements[name]
        short = name.replace("Proposition", "P").replace("Theorem", "T")
        row[short] = found.verdict if found.distance is None else f"{show(found.distance.value)} {found.verdict}"
    return row


def _latent_rows(result: RegimeResult) -> list[TableRow]:
    """A row per latent, by decreasing KL."""
    own = result.measured.per_latent
    return [
        {
            "model": MODELS[result.cell.model],
            "latent": k,
            "kind": own.kind[k],
            "KL": own.kl[k],
            "σ²/σ†²": own.variance_ratio[k],
            "σ†²": own.prior_variance[k],
            "effect": own.effect[k],
            **{name: kinds[k] for name, kinds in own.baseline_rules.items()},
        }
        for k in sorted(range(len(own.kind)), key=lambda k: -own.kl[k])
    ]
