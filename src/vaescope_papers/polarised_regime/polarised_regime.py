"""The polarised regime of VAEs and iVAEs on images (Bonheme & Grzes 2023, Figs. 1 to 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import matplotlib as mpl
import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from vaescope import regime
from vaescope.analysis.encoding import EncodedSample, encode
from vaescope.core import randomness
from vaescope.data.dataset import split
from vaescope.data.rendering import DSprites, LabelledImages
from vaescope.models import VAE, AuxiliarySettings, Member
from vaescope.models.networks import Params
from vaescope.objectives import Objective, beta_elbo
from vaescope.objectives.weighted import balanced
from vaescope.protocol import LatentModel
from vaescope.regime.verify import Statement, Tolerances, Verification
from vaescope.report import figures
from vaescope.theory import jacobian
from vaescope.training import MemberSpec
from vaescope.training.loop import EpochMetrics
from vaescope_papers.claims import FEWEST_LATE, TOO_SHORT, ClaimSpec, settled, show
from vaescope_papers.criteria import Bound, Interval, IntervalsBelow, above, at_most
from vaescope_papers.experiment import ReportFigure, ReportTable, TableRow
from vaescope_papers.polarised_regime import POLARISED_REGIME
from vaescope_papers.results import DIVERGED, Result
from vaescope_papers.statistics import median
from vaescope_papers.trained import FactorData, TrainedExperiment, TrainedSettings, TrainingStack, train_stack

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
class MeasuredStatement:
    sentence: str
    tolerance: float


STATEMENTS: Mapping[str, MeasuredStatement] = {
    "Theorem 1": MeasuredStatement(
        "Posteriors of used latents are polarised: equal to their prior, or clearly narrower.", Tolerances.between
    ),
    "Proposition 1 (i)": MeasuredStatement(
        "For every sample, a passive posterior equals its prior.", Tolerances.pointwise
    ),
    "Proposition 1 (ii)": MeasuredStatement(
        "For every sample, an active posterior is far narrower than its prior, so that z ≈ μ.", Tolerances.small
    ),
    "Proposition 2 (i)": MeasuredStatement(
        "Over the data, passive means have the mean and the variance of the prior's means.", Tolerances.moments
    ),
    "Proposition 2 (ii)": MeasuredStatement("If the prior mean is fixed, passive means hardly vary.", Tolerances.small),
    "Proposition 3 (i)": MeasuredStatement(
        "Over the data, passive variances have the mean and the variance of the prior's variances.",
        Tolerances.moments,
    ),
    "Proposition 3 (ii)": MeasuredStatement("Active variances are small and hardly vary.", Tolerances.small),
    "Theorem 2 (i)": MeasuredStatement("Passive latents are distributed like their prior.", Tolerances.distribution),
    "Theorem 2 (ii)": MeasuredStatement("Active latents are distributed like their means.", Tolerances.distribution),
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


PASSIVE_VARIANCE_STATEMENT = "Proposition 3 (i)"
VARIANCE_RULE = "variance near 1"  # a baseline rule of `vaescope.regime`
PAPER = "Bonheme & Grzes 2023"
Spec = ClaimSpec[RegimeResult, RegimeSettings, Any]


# conditions: what refutes a claim must last ---------------------------------------------------

number_settled = settled("number of active latents", lambda r: r.measured.curve.active, tolerance=0.0)


def lasts(values: Sequence[float], settings: RegimeSettings, *, above: float) -> bool:
    """Whether values after every epoch were above a limit over the last third of all epochs."""
    late = values[-settings.late_epochs :]
    return len(late) >= FEWEST_LATE and min(late) > above


def lasting_contradiction(name: str, model: str) -> Callable[[Results, RegimeSettings], str | None]:
    """A condition: a member that contradicts the statement did so after every late epoch, so that it is no accident of
    the last one. A regime in which latents stay between kinds never settles, but its contradictions last.
    """
    tolerance = STATEMENTS[name].tolerance

    def condition(results: Results, settings: RegimeSettings) -> str | None:
        rows = [(r.measured.statements[name].distance, r) for r in results if r.cell.model == model]
        contradicting = [r for distance, r in rows if distance is not None and distance.low > tolerance]
        curves = [r.measured.curve.distances.get(name, ()) for r in contradicting]
        if not contradicting or any(lasts(curve, settings, above=tolerance) for curve in curves):
            return None
        found = f"{_contradict(len(contradicting))} the statement at the end, but not after every late epoch."
        return _unless_short(settings, found)

    return condition


def _unless_short(settings: RegimeSettings, reason: str) -> str:
    """This reason, unless training is so short that nothing could have lasted."""
    return TOO_SHORT if settings.late_epochs < FEWEST_LATE else reason


def _contradict(count: int) -> str:
    return f"{count} members contradict" if count > 1 else "1 member contradicts"


def mixed_lasts(results: Results, settings: RegimeSettings) -> str | None:
    if any(lasts(r.measured.curve.mixed, settings, above=0.0) for r in results):
        return None
    return _unless_short(settings, "No member has mixed latents after every late epoch.")


def gain_lasts(
    pairs: Callable[[Results, RegimeSettings], list[Pair]],
) -> Callable[[Results, RegimeSettings], str | None]:
    """A condition: a pair of models differs in the number of active latents after every late epoch."""

    def condition(results: Results, settings: RegimeSettings) -> str | None:
        if any(lasts(pair.gains_by_epoch(), settings, above=0.0) for pair in pairs(results, settings) if pair.gain > 0):
            return None
        return _unless_short(
            settings, "No pair of models differs in the number of active latents after every late epoch."
        )

    return condition


# the statements of the paper ------------------------------------------------------------------


def intervals(name: str, model: str) -> Callable[[Results, object], list[Interval]]:
    """The distance of every member of a model that has latents of the kind that the statement is about."""

    def measure(results: Results, _: object) -> list[Interval]:
        rows = [(r.cell, r.measured.statements[name].distance) for r in results if r.cell.model == model]
        return [Interval(f"{c.title}, seed {c.seed}:", d.value, d.low, d.high) for c, d in rows if d is not None]

    return measure


def has_latents(name: str, model: str) -> Callable[[Results, object], str | None]:
    """A condition: some member has latents of the kind that the statement is about."""
    measure = intervals(name, model)
    return lambda results, _: None if measure(results, _) else "No member has latents of this kind."


def _statement_claims() -> list[ClaimSpec[RegimeResult, RegimeSettings, Sequence[Interval]]]:
    """Every statement for every model that it is about."""
    about = [(name, model) for model in MODELS for name in STATEMENTS]
    return [_statement_claim(*claim) for claim in about if claim != (FIXED_MEAN_STATEMENT, "ivae-mean")]


def _statement_claim(name: str, model: str) -> ClaimSpec[RegimeResult, RegimeSettings, Sequence[Interval]]:
    statement = STATEMENTS[name]
    return ClaimSpec(
        sentence=f"{MODELS[model]}: {statement.sentence[0].lower()}{statement.sentence[1:]}",
        source=f"{PAPER}, {name}",
        measure=intervals(name, model),
        criterion=IntervalsBelow("distance of the worst latent from the statement", statement.tolerance),
        note=passive_variance_note(model) if name == PASSIVE_VARIANCE_STATEMENT else "",
        requires=(has_latents(name, model), lasting_contradiction(name, model)),
    )


def passive_variance_note(model: str) -> Callable[[Results, object], str]:
    """How wide the posteriors of passive latents would be if they were optimal for the decoder."""

    def note(results: Results, _: object) -> str:
        latents = [r.measured.per_latent for r in results if r.cell.model == model]
        found, optimal = (
            [ratio for own in latents for ratio in own.of_kind("passive", values(own))]
            for values in (lambda own: own.variance_ratio, lambda own: own.optimal_variance_ratio)
        )
        if not found:
            return ""
        return (
            f"Posterior variances of passive latents are {show(median(found))} of the prior's in the median. Optimal "
            f"for the decoder would be {show(median(optimal))}: below 1 where the decoder still responds to them."
        )

    return note


# counts of latents ----------------------------------------------------------------------------


def mixed_latents(results: Results, _: object) -> list[float]:
    return [float(r.measured.count("mixed")) for r in results]


def boundary_note(results: Results, _: object) -> str:
    boundary, total = sum(r.measured.boundary for r in results), sum(r.cell.latents for r in results)
    return f"{boundary} of {total} latents are close to a boundary: other thresholds would change their kind."


@dataclass(frozen=True)
class Pair:
    """Members of one model with fewer and with more latents, or with a lower and a higher β."""

    before: Results
    after: Results

    @property
    def gain(self) -> float:
        """Active latents (median over seeds) of the second less those of the first."""
        counts = ([float(r.measured.count("active")) for r in own] for own in (self.before, self.after))
        first, second = (median(own) for own in counts)
        return second - first

    def gains_by_epoch(self) -> list[float]:
        """The same along training."""
        before, after = (
            zip(*(r.measured.curve.active for r in own), strict=False) for own in (self.before, self.after)
        )
        return [median(second) - median(first) for first, second in zip(before, after, strict=False)]


def pairs_of(results: Results, few: tuple[int, float], many: tuple[int, float]) -> list[Pair]:
    """VAE and iVAE with (latents, β) of `few` and of `many`.

    Only where every model with `few` has latents that it does not use: one that uses all may need more.
    """
    pairs = [Pair(select(results, model, *few), select(results, model, *many)) for model in COMPARED]
    return [p for p in pairs if p.before and p.after and all(r.measured.count("passive") for r in p.before)]


def pairs_by_latents(results: Results, settings: RegimeSettings) -> list[Pair]:
    """All pairs of a narrower and a wider model."""
    beta, sizes = settings.betas[0], sorted(set(settings.latents))
    wider = [(few, many) for few in sizes for many in sizes if few < many]
    return [pair for few, many in wider for pair in pairs_of(results, (few, beta), (many, beta))]


def pairs_by_beta(results: Results, settings: RegimeSettings) -> list[Pair]:
    lowest, *others = sorted(set(settings.betas))
    latents = settings.latents[0]
    return [pair for higher in others for pair in pairs_of(results, (latents, lowest), (latents, higher))]


def gains(pairs: Callable[[Results, RegimeSettings], list[Pair]]) -> Callable[[Results, RegimeSettings], list[float]]:
    return lambda results, settings: [pair.gain for pair in pairs(results, settings)]


def active_note(results: Results, settings: RegimeSettings) -> str:
    """Active latents by the number of latents, for VAE and iVAE, and which model of a pair is not at its optimum."""

    def counts(model: str) -> str:
        sizes = [(n, select(results, model, n, settings.betas[0])) for n in sorted(set(settings.latents))]
        medians = [(n, median([float(r.measured.count("active")) for r in own])) for n, own in sizes if own]
        return ", ".join(f"{active:g} of {n}" for n, active in medians)

    active = "Active latents: " + "; ".join(f"{MODELS[model]} {counts(model)}" for model in COMPARED) + "."
    gaining = [pair for pair in pairs_by_latents(results, settings) if pair.gain > 0]
    return " ".join([active, *filter(None, map(optimum_note, gaining))])


def optimum_note(pair: Pair) -> str:
    """Which of the two is not at its optimum, by the ELBO of the wider model with as many latents and with all."""
    few, many = pair.before[0].cell, pair.after[0].cell
    elbos = [[r.measured.truncation.elbo for r in members] for members in (pair.before, pair.after)]
    if not all(curve for group in elbos for curve in group):
        return ""
    own, cut = (median([curve[few.latents] for curve in group]) for group in elbos)
    full = median([curve[-1] for curve in elbos[1]])
    if cut > own:
        return (
            f"{many.title}, cut to its {few.latents} most used latents, has an ELBO of {show(cut)} nats against "
            f"{show(own)} of {few.title}: the narrower model ended in a worse optimum than {few.latents} latents allow."
        )
    compared = f"{many.title} has an ELBO of {show(full)} nats against {show(own)} of {few.title}"
    return f"{compared}: its further active latents {'raise' if full > own else 'do not raise'} the ELBO."


# classifiers, decoder and prior ---------------------------------------------------------------

AccuracyOf = Callable[[RegimeMeasurement], Accuracy]


def accuracy_lost(model: str, accuracy: AccuracyOf) -> Callable[[Results, object], list[float]]:
    """Accuracy on all latents less that on used latents, of members that have both used and passive latents."""

    def measure(results: Results, _: object) -> list[float]:
        own = [accuracy(r.measured) for r in results if r.cell.model == model and r.measured.count("passive")]
        return [a.all_latents - a.used for a in own if a.used is not None]

    return measure


def leak_note(results: Results, _: object) -> str:
    """What classifiers read from passive latents alone."""

    def passive(model: str, accuracy: AccuracyOf) -> list[float]:
        values = [accuracy(r.measured).passive for r in results if r.cell.model == model]
        return [v for v in values if v is not None]

    found = {
        "means of VAEs": passive("vae", lambda m: m.mean_accuracy),
        "means of iVAEs": passive("ivae", lambda m: m.mean_accuracy),
        "samples of iVAEs": passive("ivae", lambda m: m.sampled_accuracy),
    }
    if not all(found.values()):
        return ""
    listed = ", ".join(f"{show(median(values))} on {words}" for words, values in found.items())
    return (
        f"On passive latents alone the accuracy is {listed} (chance is 0.25). Mean and variance of an iVAE's passive "
        "latents follow p(z | factors), so a classifier can read the factors from them."
    )


def passive_effects(results: Results, _: object) -> list[float]:
    """The largest absolute effect of a passive latent on the reconstruction, per member."""
    effects = [r.measured.per_latent.of_kind("passive", r.measured.per_latent.effect) for r in results]
    return [max(abs(e) for e in own) for own in effects if own]


def misjudged_shares(results: Results, _: object) -> list[float]:
    """The share of an iVAE's passive latents that the rule on variances does not call passive."""
    latents = [r.measured.per_latent for r in results if r.cell.model == "ivae"]
    kinds = [own.of_kind("passive", own.baseline_rules[VARIANCE_RULE]) for own in latents]
    return [sum(kind != "passive" for kind in own) / len(own) for own in kinds if own]


def passive_prior_variances(results: Results, _: object) -> list[float]:
    """The median prior variance of an iVAE's passive latents."""
    latents = [r.measured.per_latent for r in results if r.cell.model == "ivae"]
    return [median(values) for own in latents if (values := own.of_kind("passive", own.prior_variance))]


def _dropping(
    model: str, accuracy: AccuracyOf, codes: str, source: str, note: str | Callable[[Results, object], str] = ""
) -> ClaimSpec[RegimeResult, RegimeSettings, Sequence[float]]:
    return ClaimSpec(
        sentence=f"Dropping passive latents does not hurt a classifier on {codes}.",
        source=source,
        measure=accuracy_lost(model, accuracy),
        criterion=Bound("loss of accuracy", at_most(0.01), statistic="largest"),
        note=note,
    )


# all claims -----------------------------------------------------------------------------------

TREES_NOTE = "Decision trees ignore scale: they can read changes of a mean that are far below the noise of its latent."


def claims(settings: RegimeSettings) -> list[Spec]:
    """All claims that these settings are about."""
    return [*_statement_claims(), *COUNTS, *([BETA] if len(settings.betas) > 1 else []), *USES]


COUNTS: tuple[Spec, ...] = (
    ClaimSpec(
        sentence="No latent is mixed on this data.",
        source=f"{PAPER}, appendix B",
        measure=mixed_latents,
        criterion=Bound("number of mixed latents", at_most(0.0), statistic="largest"),
        published="none observed",
        note=boundary_note,
        requires=(mixed_lasts,),
    ),
    ClaimSpec(
        sentence="Models with more latents do not have more active latents.",
        source=f"{PAPER}, Theorem 1",
        measure=gains(pairs_by_latents),
        criterion=Bound(
            "gain of active latents in a wider model", at_most(0.0), statistic="largest", over="pairs of models"
        ),
        note=active_note,
        requires=(gain_lasts(pairs_by_latents),),
    ),
)
BETA: Spec = ClaimSpec(
    sentence="Models with a higher β do not have more active latents.",
    source="Beyond the paper",
    measure=gains(pairs_by_beta),
    criterion=Bound("gain of active latents at a higher β", at_most(0.0), statistic="largest", over="pairs of models"),
    requires=(gain_lasts(pairs_by_beta),),
)
USES: tuple[Spec, ...] = (
    _dropping(
        "vae",
        lambda m: m.mean_accuracy,
        "the mean codes of a VAE",
        "Bonheme & Grzes 2021, cited by the paper",
        TREES_NOTE,
    ),
    _dropping("ivae", lambda m: m.mean_accuracy, "the mean codes of an iVAE", "Beyond the paper", leak_note),
    _dropping("vae", lambda m: m.sampled_accuracy, "the sampled codes of a VAE", "Beyond the paper"),
    ClaimSpec(
        sentence="The decoder ignores passive latents.",
        source="Beyond the paper: passive latents, seen from the decoder",
        measure=passive_effects,
        criterion=Bound(
            "effect of a passive latent drawn from its prior, as a share of the data's variance,",
            at_most(0.01),
            statistic="largest",
        ),
        note="The effect is the absolute change of the squared error: a decoder that improves is not ignoring it.",
        requires=(number_settled,),
    ),
    ClaimSpec(
        sentence="A rule on the posterior variance alone misjudges the passive latents of an iVAE.",
        source="Beyond the paper; the authors' code has such a rule",
        measure=misjudged_shares,
        criterion=Bound(f"share of passive latents that '{VARIANCE_RULE}' does not call passive", above(0.5)),
        requires=(number_settled,),
    ),
    ClaimSpec(
        sentence="The prior variance of an iVAE's passive latents stays close to zero.",
        source=f"{PAPER}, appendix B, on Fig. 1",
        measure=passive_prior_variances,
        criterion=Bound("prior variance of passive latents", at_most(0.2)),
        published="close to zero (Fig. 1c)",
        requires=(number_settled,),
    ),
)


MIN_KL = 1e-4  # nats; smaller values are drawn here
COLOURS = {"active": "#d1592b", "passive": "#1f5fa8", "mixed": "#2c8a5b"}
LABELS = {
    "mean": "μ",
    "variance": "posterior variance σ²",
    "prior_variance": "prior variance σ†²",
    "sample": "z from the posterior",
    "prior_sample": "z† from the prior",
}
LATENTS_CAPTION = (
    "Every latent of every member: its KL against the ratio of posterior and prior variance. A polarised model has two "
    "groups with little between them. Right: the posterior variance by itself, where the passive latents of an iVAE "
    "have the small values that active latents of a VAE have."
)
PASSIVE_CAPTION = (
    "One passive latent of each model (Figs. 1 and 4 of the paper): its means, its posterior and prior variances, and "
    "samples from its posterior and prior."
)
ACTIVE_CAPTION = (
    "One active latent of each model (Figs. 2 and 3 of the paper): its posterior variance is far below that of the "
    "prior, and its samples are distributed like its means."
)
COUNTS_CAPTION = (
    "Number of active latents over the number of latents and over β: medians over seeds, with a band where seeds "
    "differ."
)
TRUNCATION_CAPTION = (
    "What every latent adds, most used ones first, without retraining: squared error at the mean code, and ELBO of the "
    "truncated code. Dotted: the number of latents in use. If the prior mean is learned from the factors, even a code "
    "without latents reconstructs, because the prior already knows the image."
)


def figures_of(results: Results, settings: RegimeSettings) -> list[ReportFigure]:
    drawn = [ReportFigure("regime_latents", _latent_map(results), LATENTS_CAPTION)]
    members = figure_members(results, settings)
    if members:
        passive = _histogram_figure(members, "passive", lambda m: m.passive_histograms)
        active = _histogram_figure(members, "active", lambda m: m.active_histograms)
        drawn += [
            ReportFigure("regime_passive", passive, PASSIVE_CAPTION),
            ReportFigure("regime_active", active, ACTIVE_CAPTION),
        ]
    drawn.append(ReportFigure("regime_counts", _counts(results, settings), COUNTS_CAPTION))
    if members:
        drawn.append(ReportFigure("regime_truncation", _truncation(members), TRUNCATION_CAPTION))
    return drawn


# all latents ----------------------------------------------------------------------------------


def _latent_map(results: Results) -> Figure:
    figure, axes = figures.row_of_panels(len(MODELS) + 1, width=3.9, height=3.8)
    for axis, (model, name) in zip(axes, MODELS.items(), strict=False):
        own = [r.measured.per_latent for r in results if r.cell.model == model]
        _points(axis, own, lambda latents: latents.variance_ratio)
        figures.format_axis(axis, title=name, x="σ²/σ†²", y="KL in nats", log="xy", legend=False)
        axis.set_xlim(1e-3, 3)
    _points(axes[-1], [r.measured.per_latent for r in results if r.cell.model == "ivae"], _posterior_variance)
    figures.format_axis(
        axes[-1], title="iVAE, not relative to its prior", x="σ²", y="KL in nats", log="xy", legend=False
    )
    for axis in axes:
        axis.set_ylim(MIN_KL / 2, 10)
    figures.shared_legend(figure, axes[0])
    return figure


def _posterior_variance(latents: PerLatent) -> list[float]:
    return [ratio * prior for ratio, prior in zip(latents.variance_ratio, latents.prior_variance, strict=True)]


def _points(axis: Axes, members: Sequence[PerLatent], x: Callable[[PerLatent], Sequence[float]]) -> None:
    for kind, colour in COLOURS.items():
        across = [value for latents in members for value in latents.of_kind(kind, x(latents))]
        up = [max(value, MIN_KL) for latents in members for value in latents.of_kind(kind, latents.kl)]
        axis.plot(across, up, "o", color=colour, markersize=5, alpha=0.6, label=kind)


# histograms -----------------------------------------------------------------------------------


def _histogram_figure(
    members: Results, kind: str, pick: Callable[[RegimeMeasurement], LatentHistograms | None]
) -> Figure:
    """A row per model, a column per panel."""
    figure, axes = figures.grid_of_panels(len(members), len(PANELS), width=4.0, height=2.5)
    for row, result in enumerate(members):
        found = pick(result.measured)
        own = axes[row * len(PANELS) : (row + 1) * len(PANELS)]
        panels = (None,) * len(PANELS) if found is None else (found.means, found.variances, found.samples)
        for axis, panel, histogram in zip(own, PANELS, panels, strict=True):
            hidden = {"mean"} if (kind, panel) == ("passive", "samples") else set()
            _draw_histogram(axis, histogram, hidden, empty=f"no {kind} latent")
            title = MODELS[result.cell.model] if panel == "means" else ""
            figures.format_axis(axis, title=title, x="", y="", log="", legend=histogram is not None)
    return figure


def _draw_histogram(axis: Axes, histogram: Histogram | None, hidden: set[str], *, empty: str) -> None:
    axis.set_yticks([])
    axis.xaxis.set_major_locator(MaxNLocator(5))
    if histogram is None:
        axis.text(0.5, 0.5, empty, ha="center", transform=axis.transAxes)
        return
    shown = [name for name in histogram.counts if name not in hidden]
    for name, colour in zip(shown, figures.COLOURS, strict=False):
        _steps(axis, histogram.counts[name], histogram.edges, LABELS[name], colour)


def _steps(axis: Axes, counts: Sequence[float], edges: Sequence[float], label: str, colour: str) -> None:
    with mpl.rc_context({"lines.linewidth": 1.4}):
        axis.stairs(counts, edges, label=label, color=colour, fill=True, alpha=0.35)
        axis.stairs(counts, edges, color=colour, linewidth=1.2)


# counts and truncation ------------------------------------------------------------------------


def _counts(results: Results, settings: RegimeSettings) -> Figure:
    figure, axes = figures.row_of_panels(2, width=4.6)
    latents, beta = settings.latents[0], settings.betas[0]
    widths = {float(n): (n, beta) for n in sorted(settings.latents)}
    betas = {b: (latents, b) for b in sorted(settings.betas)}
    highest = max([5, *(r.measured.count("active") for r in results if r.cell.model in COMPARED)])
    for axis, settings_at, label in ((axes[0], widths, "number of latents"), (axes[1], betas, "β")):
        for index, model in enumerate(COMPARED):
            groups = [select(results, model, *at) for at in settings_at.values()]
            values = [[r.measured.count("active") for r in group] for group in groups]
            shifted = [x * (1 + 0.01 * (2 * index - 1)) for x in settings_at]
            figures.plot_median_and_range(axis, shifted, values, label=MODELS[model], dashed=bool(index))
        figures.format_axis(axis, title="Active latents", x=label, y="active", log="")
        axis.set_ylim(0, highest + 1)
        axis.set_xticks(list(settings_at))
        axis.legend(loc="lower right")
    return figure


def _truncation(members: Sequence[RegimeResult]) -> Figure:
    figure, axes = figures.row_of_panels(2, width=4.6)
    for index, (result, colour) in enumerate(zip(members, figures.COLOURS, strict=False)):
        found, label = result.measured.truncation, MODELS[result.cell.model]
        for axis, values in zip(axes, (found.error, found.elbo), strict=True):
            axis.plot(np.arange(len(values)), values, "-o", markersize=4, color=colour, label=label)
            axis.axvline(found.used + 0.06 * (index - 1), color=colour, linestyle=":", linewidth=1.2)
    figures.format_axis(axes[0], title="Reconstruction", x="latents kept", y="squared error per image", log="")
    figures.format_axis(axes[1], title="ELBO", x="latents kept", y="nats", log="")
    return figure


BINS = 60
JACOBIAN_SAMPLES = 64  # test images at which the decoder is differentiated
RECORDED_SAMPLES = 1000  # test images on which the regime is recorded after every epoch
STATEMENT_SAMPLES = 10_000  # further images on which statements are measured, as many as in the paper's histograms
TRUNCATION_SAMPLES = 200  # test images on which codes are truncated
PRIOR_HIDDEN = (50, 50, 50)  # of the prior's networks, as in the authors' code
HELD_OUT = 0.1  # of the images; half for validation and classifiers, half for measuring
RESAMPLES = 200  # for the intervals of statements
FEWEST_RESAMPLES = 20  # where only the distance is needed
FURTHER_SEED = 1_000_000  # added to a member's seed for further images
FINISHING_RATE = 0.1  # of the learning rate, in finishing epochs
CLASSIFIED = ("shape", "scale")  # factors with few values


@dataclass(frozen=True, eq=False)
class RegimeData(FactorData):
    """With the factors of the validation images, on which classifiers are trained, and further images."""

    validation_factors: Float[Tensor, "M k"]
    further: Float[Tensor, "S n"]
    """Rows of further images, on which the statements are measured at the end."""


class PolarisedRegimeExperiment(TrainedExperiment[RegimeSettings, RegimeCell, RegimeMeasurement]):
    info = POLARISED_REGIME
    about = (
        "VAEs and iVAEs are trained on images with the structure of dSprites. The auxiliary input of the iVAEs is the "
        "five factors of an image; the variance of their prior p(z | factors) is learned, and its mean is fixed at 0 "
        "or learned. Every latent is compared with its own prior. Histograms show one active and one passive latent "
        "of each model, as in the paper. Every statement of the paper is then measured as a distance with a bootstrap "
        "interval. Distances are relative to the prior, because the learned priors are so narrow that all variances "
        "are far below one. The quick and laptop profiles have images of 32 x 32 pixels, with the log-likelihood "
        "weighted by 4 so that it counts as much against the KL as at 64 x 64, and about 1,100 and 30,000 steps at a "
        "learning rate of 1e-3, which decays; the laptop profile adds 15,000 steps from 1e-4 on, along which the "
        "statements are measured after every epoch. The paper has 300,000 steps at 1e-4. A statement is refuted if a "
        "member contradicts it, with its interval, and did so after every one of the last third of the epochs."
    )
    quick = RegimeSettings(
        seeds=1,
        samples=16_000,
        epochs=5,
        patience=5,
        learning_rate=1e-3,
        decay="cosine",
        size=32,
        latents=(10, 20),
        betas=(1.0,),
    )
    laptop = replace(
        quick,
        seeds=3,
        samples=40_000,
        epochs=54,
        patience=54,
        latents=(10, 5, 20, 30),
        compared_seeds=1,
        finishing_epochs=27,
    )
    paper = RegimeSettings(seeds=3, samples=100_000, epochs=213, patience=213, learning_rate=1e-4)
    cell_type = RegimeCell
    measured_type = RegimeMeasurement

    def cells(self, settings: RegimeSettings) -> list[RegimeCell]:
        """The models of the figures, then VAE and iVAE with other numbers of latents, and with other β."""
        first, beta = settings.latents[0], settings.betas[0]
        figures = [(model, first, beta) for model in MODELS]
        compared = [(model, latents, beta) for latents in settings.latents[1:] for model in COMPARED]
        compared += [(model, first, other) for other in settings.betas[1:] for model in COMPARED]
        seeds = settings.seeds if settings.compared_seeds is None else min(settings.seeds, settings.compared_seeds)
        kinds = [(kind, settings.seeds) for kind in figures] + [(kind, seeds) for kind in compared]
        return [RegimeCell(*kind, seed) for kind, count in kinds for seed in range(count)]

    def stack_key(self, cell: RegimeCell) -> tuple[str, int]:
        return cell.model, cell.latents

    def data_key(self, cell: RegimeCell) -> tuple[int, bool]:
        return cell.seed, cell.model != "vae"

    def member(self, cell: RegimeCell, data_index: int, settings: RegimeSettings) -> MemberSpec:
        return MemberSpec(cell.seed, beta=cell.beta, data=data_index)

    def model(self, cell: RegimeCell, settings: RegimeSettings) -> VAE:
        return VAE.conv(
            (1, settings.size, settings.size),
            cell.latents,
            architecture="regime",
            likelihood="bernoulli",
            auxiliary=AuxiliarySettings(
                dim=0 if cell.model == "vae" else len(DSprites().factors),
                prior_mean="learned" if cell.model == "ivae-mean" else "fixed",
                hidden=PRIOR_HIDDEN,
            ),
        )

    def data(self, cell: RegimeCell, settings: RegimeSettings) -> RegimeData:
        drawn = _images(settings.samples, settings.size, cell.seed)
        rows = _rows(drawn, cell.model)
        parts = split(rows, fractions=(1 - HELD_OUT, HELD_OUT / 2))
        first = len(parts.train)
        validation = drawn.factors[first : first + len(parts.validation)]
        further = _rows(_images(STATEMENT_SAMPLES, settings.size, cell.seed + FURTHER_SEED), cell.model)
        return RegimeData(parts, drawn.factors[-len(parts.test) :], validation, further)

    def objective(self, cell: RegimeCell, samples: int, settings: RegimeSettings) -> Objective:
        return balanced(beta_elbo, size=settings.size, reference=settings.balanced_size)

    def training_of(self, cell: RegimeCell, settings: RegimeSettings) -> RegimeSettings:
        """The finishing epochs, if there are any: `before_training` trains the others."""
        if not settings.finishing_epochs:
            return settings
        epochs, rate = settings.finishing_epochs, FINISHING_RATE * settings.learning_rate
        return replace(settings, epochs=epochs, patience=epochs, learning_rate=rate)

    def before_training(
        self, stack: TrainingStack, cells: Sequence[RegimeCell], settings: RegimeSettings
    ) -> Params | None:
        """The weights after the first epochs, which share the checkpoint of the stack; NaN of members that diverged."""
        if not settings.finishing_epochs:
            return None
        members = train_stack(replace(stack, settings=settings.training(stack.settings.device)))
        kept = [1.0 if m.summary().status != DIVERGED else math.nan for m in members]
        names = members[0].params
        return {name: torch.cat([k * m.params[name] for k, m in zip(kept, members, strict=True)]) for name in names}

    def epoch_metrics(self, data: Mapping[int, FactorData], settings: RegimeSettings) -> EpochMetrics:
        """The regime after every epoch: what refutes a claim about it must last."""

        def measure(epoch: int, member: Member) -> dict[str, float]:
            x, auxiliary = member.split_auxiliary(data[member.seed].observations.test[:RECORDED_SAMPLES])
            found = _verified(encode(member, x, auxiliary), resamples=FEWEST_RESAMPLES)
            distances = {name: found[name].distance if found[name].latents else 0.0 for name in STATEMENTS}
            return {"active": float(found.kind.count("active")), "mixed": float(found.kind.count("mixed")), **distances}

        return measure

    def measure(
        self, cell: RegimeCell, member: Member, data: FactorData, settings: RegimeSettings
    ) -> RegimeMeasurement:
        assert isinstance(data, RegimeData)
        x, auxiliary = member.split_auxiliary(data.observations.test)
        judged = regime.of_model(member, x, auxiliary=auxiliary)
        encoded = encode(member, x, auxiliary)
        advice = regime.advise(member, x, auxiliary=auxiliary, samples=TRUNCATION_SAMPLES)
        active, passive = _histograms(judged, encoded, member.seed)
        on_means, on_draws = _accuracies(member, data, judged)
        return RegimeMeasurement(
            per_latent=_per_latent(judged, encoded, _optimal_ratios(member, encoded, settings)),
            boundary=int(judged.boundary.sum()),
            collapse=judged.collapse.kind,
            truncation=Truncation(
                used=advice.latents,
                sufficient=advice.latents_by_elbo,
                error=_floats(advice.error),
                elbo=_floats(() if advice.elbo is None else advice.elbo),
            ),
            statements=_statements(encode(member, *member.split_auxiliary(data.further))),
            active_histograms=active,
            passive_histograms=passive,
            mean_accuracy=on_means,
            sampled_accuracy=on_draws,
            curve=_curve(member),
        )

    def claims(self, settings: RegimeSettings) -> Sequence[ClaimSpec[RegimeResult, RegimeSettings, Any]]:
        return claims(settings)

    def figures(self, results: Sequence[RegimeResult], settings: RegimeSettings) -> list[ReportFigure]:
        return figures_of(results, settings)

    def tables(self, results: Sequence[RegimeResult], settings: RegimeSettings) -> list[ReportTable]:
        return tables(results, settings)


def _images(count: int, size: int, seed: int) -> LabelledImages:
    return DSprites(size=size).sample(count, seed=seed, distributions="grid")


def _rows(drawn: LabelledImages, model: str) -> Float[Tensor, "N n"]:
    """Pixels, and for iVAEs the factors, from -1 to 1."""
    if model == "vae":
        return drawn.images.flatten(1)
    low, high = torch.tensor([(factor.low, factor.high) for factor in DSprites().factors]).T
    auxiliary = (2 * (drawn.factors - low) / (high - low) - 1).float()
    return torch.cat([drawn.images.flatten(1), auxiliary], dim=1)


def _curve(member: Member) -> RegimeCurve:
    recorded = {name: tuple(values) for name, values in member.history.items()}
    distances = {name: recorded[name] for name in STATEMENTS if name in recorded}
    return RegimeCurve(recorded.get("active", ()), recorded.get("mixed", ()), distances)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


def _optimal_ratios(member: LatentModel, encoded: EncodedSample, settings: RegimeSettings) -> Float[Tensor, " d"]:
    """Optimal posterior variance over prior variance, given the decoder: 1 / (1 + σ†² w Σ_i J_ij² / (x̂_i (1 - x̂_i))).

    w is the weight on the log-likelihood. Below 1 only for latents that the decoder responds to.
    """
    rows = slice(JACOBIAN_SAMPLES)
    z = encoded.mean[rows].double()
    output, J = member.decode(z), jacobian(member.decode, z)
    weights = (settings.balanced_size / settings.size) ** 2 / (output * (1 - output)).clamp(min=1e-6)
    information = (J.square() * weights.unsqueeze(2)).sum(1)
    return (1 / (1 + encoded.prior_variance[rows].double() * information)).log().mean(0).exp().detach()


def _per_latent(judged: regime.Regime, encoded: EncodedSample, optimal_ratios: Tensor) -> PerLatent:
    assert judged.effect is not None  # members have a decoder
    return PerLatent(
        kind=tuple(judged.kind),
        kl=_floats(judged.kl),
        variance_ratio=_floats(judged.variance_ratio),
        optimal_variance_ratio=_floats(optimal_ratios),
        effect=_floats(judged.effect),
        prior_variance=_floats(encoded.prior_variance.mean(0)),
        baseline_rules={name: tuple(kinds) for name, kinds in judged.baseline_rules.verdicts().items()},
    )


def _statements(encoded: EncodedSample) -> dict[str, StatementRow]:
    """Distance, interval and verdict of every statement, by name."""
    return {name: _statement_row(statement) for name, statement in _verified(encoded).statements.items()}


def _verified(encoded: EncodedSample, resamples: int = RESAMPLES) -> Verification:
    return regime.verify(
        encoded.mean,
        encoded.variance,
        prior_mean=encoded.prior_mean,
        prior_variance=encoded.prior_variance,
        resamples=resamples,
    )


def _statement_row(statement: Statement) -> StatementRow:
    distance = Distance(float(statement.distance), float(statement.low), float(statement.high))
    return StatementRow(statement.verdict, statement.tolerance, distance if statement.latents else None)


# histograms -----------------------------------------------------------------------------------


def _histograms(
    judged: regime.Regime, encoded: EncodedSample, seed: int
) -> tuple[LatentHistograms | None, LatentHistograms | None]:
    """Figs. 1 to 4: of the most used active latent, and of the least used passive one."""
    noise = torch.randn((2, *encoded.mean.shape), generator=randomness.generator(seed, "histograms"))
    values = {
        "mean": encoded.mean,
        "variance": encoded.variance,
        "prior_variance": encoded.prior_variance,
        "sample": encoded.mean + encoded.variance.sqrt() * noise[0],
        "prior_sample": encoded.prior_mean + encoded.prior_variance.sqrt() * noise[1],
    }

    def of_latent(latents: list[int]) -> LatentHistograms | None:
        if not latents:
            return None
        columns = {name: value[:, latents[0]].numpy() for name, value in values.items()}
        return LatentHistograms(
            **{panel: _histogram({name: columns[name] for name in names}) for panel, names in PANELS.items()}
        )

    return of_latent(judged.active[:1]), of_latent(judged.passive[-1:])


def _histogram(columns: dict[str, np.ndarray]) -> Histogram:
    """Counts in bins that all columns share."""
    low = min(float(v.min()) for v in columns.values())
    high = max(float(v.max()) for v in columns.values())
    edges = np.linspace(low, high if high > low else low + 1e-6, BINS + 1)
    return Histogram(_floats(edges), {name: _floats(np.histogram(v, edges)[0]) for name, v in columns.items()})


# classifiers ----------------------------------------------------------------------------------


def _accuracies(member: Member, data: RegimeData, judged: regime.Regime) -> tuple[Accuracy, Accuracy]:
    """Accuracy of classifiers of shape and scale, on mean codes and on sampled codes.

    On sampled codes too, because a classifier that ignores scale can read changes of a mean that are far below the
    noise of its latent.
    """
    parts = data.observations.validation, data.observations.test
    encoded = [encode(member, *member.split_auxiliary(part)) for part in parts]
    generator = randomness.generator(member.seed, "downstream")
    sampled = [e.mean + e.variance.sqrt() * torch.randn(e.mean.shape, generator=generator) for e in encoded]
    return _accuracy([e.mean for e in encoded], data, judged), _accuracy(sampled, data, judged)


def _accuracy(codes: Sequence[Tensor], data: RegimeData, judged: regime.Regime) -> Accuracy:
    def on(latents: list[int]) -> float | None:
        return _classified([c[:, sorted(latents)].numpy() for c in codes], data) if latents else None

    everything = on(list(range(judged.latent_dim)))
    assert everything is not None
    return Accuracy(everything, on(judged.used), on(judged.passive))


def _classified(codes: Sequence[np.ndarray], data: RegimeData) -> float:
    """Trained on validation codes; the mean accuracy over factors on test codes."""
    scores = []
    for name in CLASSIFIED:
        column = DSprites().factor_names.index(name)
        labels = [(100 * f[:, column]).round().long().numpy() for f in (data.validation_factors, data.test_factors)]
        classifier = HistGradientBoostingClassifier(max_iter=30, random_state=0)
        classifier.fit(codes[0], labels[0])
        scores.append(classifier.score(codes[1], labels[1]))
    return float(np.mean(scores))


EXPERIMENT = PolarisedRegimeExperiment()
