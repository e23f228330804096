"""The claims of `polarised-regime`: every statement of Bonheme & Grzes 2023, and what rests on it.

Statements about trained models are judged over seeds, because members of one seed share their images; the value of a
seed is that of its worst member. What counts as active is a choice, so latents are also labelled by every threshold
from 0.01 to 0.3 nats, and by variances that are small as printed, not relative to the prior.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from vaescope.regime.verify import STATEMENTS, Tolerances
from vaescope_papers.claims import (
    ClaimSpec,
    Criterion,
    D,
    Judgement,
    PublishedRuns,
    Statement,
    lasting_verdict,
    late_value,
    members_converged,
    settled,
    show,
)
from vaescope_papers.criteria import Bound, Limit, at_most
from vaescope_papers.polarised_regime.theorems import (
    equal_moments_distance,
    printed_mixture_error,
    two_optima_misfit,
    used_where_u_determines_x,
    vanishing_but_unused,
)
from vaescope_papers.results import Result, grouped
from vaescope_papers.statistics import ALPHA, median, published
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


PAPER = "Bonheme & Grzes 2023"
LOOKS = (3, 3, 3, 3, 3, 3, 15)
"""Seeds at each look: after 18 epochs with up to 20 latents, and with up to 30, after 54, and after 81; measured on
further images, and in another unit of Prop. 2 (i). The last one is planned."""
THRESHOLDS = (0.01, 0.05, 0.1, 0.3)
"""Nats above which a latent counts as active."""
VARIANCE_RULE = "variance near 1"  # a baseline rule of `vaescope.regime`

Spec = ClaimSpec[RegimeResult, RegimeSettings, Any]
Condition = Callable[[Results, RegimeSettings], str | None]
Note = Callable[[Results, RegimeSettings], str]
Value = Callable[[RegimeMeasurement], float | None]

number_settled = settled("number of active latents", lambda r: r.measured.curve.active, tolerance=0.0)


def judged_statements(settings: RegimeSettings) -> list[Spec]:
    """All claims that these settings are about."""
    models = "ivae", "ivae-mean", "vae"  # that of the paper first
    about = [(name, model) for model in models for name in STATEMENTS]
    about.remove(("Proposition 2 (ii)", "ivae-mean"))  # its prior mean is learned
    compared = [model for model in models if model in COMPARED]
    return [
        *(_statement_claim(*claim) for claim in about),
        *(claim for model in models for claim in _label_claims(model)),
        *(_mixed_claim(model, settings) for model in models),
        *(_gain_claim(model, pairs_by_latents, "more latents") for model in compared),
        *(_gain_claim(model, pairs_by_beta, "a higher β") for model in compared if len(settings.betas) > 1),
        *_use_claims(),
        *_mathematical_claims(),
    ]


def only(model: str, condition: Condition) -> Condition:
    """A condition on the members of one model."""
    return lambda results, settings: condition(of_model(results, model), settings)


def undecided_note(results: Results) -> str:
    """What would decide a claim about trained members."""
    seeds = len({r.cell.seed for r in results})
    if seeds >= LOOKS[-1]:
        return ""
    return f"To decide it: {LOOKS[-1]} seeds, trained at a constant rate until the ELBO is flat."


def _claim(
    sentence: str,
    source: str,
    measure: Callable[[Results, RegimeSettings], D],
    criterion: Criterion[D],
    *,
    requires: tuple[Condition, ...],
    notes: Sequence[str | Note] = (),
    family: str = "",
    robust_over: tuple[float, ...] = (),
    published: str | None = None,
    published_runs: PublishedRuns | None = None,
    scale: str = "",
) -> Spec:
    """A claim about trained members: with the looks at them, and what would decide it."""

    def note(results: Results, settings: RegimeSettings) -> str:
        texts = [own if isinstance(own, str) else own(results, settings) for own in notes]
        return " ".join(filter(None, [*texts, undecided_note(results)]))

    return ClaimSpec(
        sentence,
        source,
        measure,
        criterion,
        published=published,
        note=note,
        requires=requires,
        published_runs=published_runs,
        scale=scale,
        family=family,
        looks=LOOKS,
        robust_over=robust_over,
    )


# statements of the paper ----------------------------------------------------------------------


def _statement_claim(name: str, model: str) -> Spec:
    """The distance of the worst latent of the kind that the statement is about."""
    _, tolerance_name, sentence = STATEMENTS[name]
    tolerance: float = getattr(Tolerances(), tolerance_name)
    criterion = Bound("distance of the worst latent from the statement", at_most(tolerance), over="seeds")

    def distances(results: Results, part: float | None = None) -> list[float]:
        def value(m: RegimeMeasurement) -> float | None:
            found = m.statements[name].distance
            if found is None or part is None:
                return None if found is None else found.value
            return late_value(m.curve.distances[name], part)

        return worst_by_seed(of_model(results, model), value)

    lasting = lasting_verdict(
        criterion, distances, lambda r: r.measured.curve.distances.get(name, ()), "distance from the statement"
    )
    shown_by = {
        "Proposition 2 (ii)": ", Fig. 1",
        "Proposition 3 (i)": ", Fig. 1",
        "Proposition 3 (ii)": ", Fig. 2",
        "Theorem 2 (i)": ", Fig. 4",
        "Theorem 2 (ii)": ", Fig. 3",
    }
    figure = shown_by.get(name, "") if model == "ivae" else ""  # the model of the figures
    notes: list[str | Note] = [lambda results, _: _members_note(of_model(results, model), name, tolerance)]
    if name == "Proposition 3 (i)":
        notes.append(lambda results, _: passive_variance_note(of_model(results, model)))
    if name == "Proposition 3 (i)" and model != "vae":
        notes.append(
            "The committed distances are in units of σ†² on average; in those of its root mean square over the images, "
            "as for Prop. 2 (i), none is larger."
        )
    return _claim(
        f"{MODELS[model]}: {sentence[0].lower()}{sentence[1:]}",
        f"{PAPER}, {name}{figure}",
        lambda results, _: distances(results),
        criterion,
        notes=notes,
        family=name.partition(" (")[0],
        robust_over=(0.4 * tolerance, tolerance, 2 * tolerance),
        requires=(only(model, members_converged()), only(model, lasting)),
    )


def _members_note(results: Results, name: str, tolerance: float) -> str:
    """How many of the members are within the tolerance, with their intervals over images."""
    found = [d for r in results if (d := r.measured.statements[name].distance) is not None]
    if not found:
        return "No member has latents of this kind."
    within, beyond = sum(d.high <= tolerance for d in found), sum(d.low > tolerance for d in found)
    spread = f"{show(min(d.value for d in found))} to {show(max(d.value for d in found))}"
    return (
        f"Of the {len(found)} members with such latents {within} are within the tolerance and {beyond} beyond it "
        f"({spread}), with their 95 % intervals over images."
    )


def passive_variance_note(results: Results) -> str:
    """How wide the posteriors of passive latents would be if they were optimal for the decoder."""
    found = of_passive(results, lambda own: own.variance_ratio)
    if not found:
        return ""
    optimal = of_passive(results, lambda own: own.optimal_variance_ratio)
    return (
        f"Posterior variances of passive latents are {show(median(found))} of the prior's in the median. Optimal for "
        f"the decoder would be {show(median(optimal))}: below 1 where the decoder still responds to them."
    )


# other labels ---------------------------------------------------------------------------------


class LatentValue(NamedTuple):
    """A latent with its KL, for every choice of what counts as active, and the value that is judged."""

    seed: int
    kl: float
    value: float


@dataclass(frozen=True)
class WorstLatent:
    """The largest value of a seed's latents above a threshold in nats (or up to it) is judged by a bound over seeds."""

    bound: Bound
    threshold: float = 0.05
    active: bool = True

    @property
    def region(self) -> Limit:
        return self.bound.limit

    @property
    def demand(self) -> str:
        return f"{self.bound.demand}, of latents with a KL {self._side} {self.threshold:g} nats"

    @property
    def _side(self) -> str:
        return "above" if self.active else "of at most"

    def with_tolerance(self, tolerance: float) -> WorstLatent:
        """With another threshold."""
        return replace(self, threshold=tolerance)

    def worst(self, data: Sequence[LatentValue]) -> list[float]:
        """The largest value of every seed."""
        found: dict[int, float] = {}
        for seed, kl, value in data:
            if (kl > self.threshold) is self.active:
                found[seed] = max(value, found.get(seed, value))
        return list(found.values())

    def judge(self, data: Sequence[LatentValue], alpha: float = ALPHA) -> Judgement:
        return self.bound.judge(self.worst(data), alpha)


def _label_claims(model: str) -> list[Spec]:
    """Active and passive latents by every threshold, relative to the prior and as printed.

    Results have variances and KLs of every latent, but other distances only for the worst latent above 0.05 nats.
    """
    small = Tolerances().small
    ratio: Callable[[PerLatent], Sequence[float]] = lambda own: own.variance_ratio  # noqa: E731
    relative, printed, equal = (
        WorstLatent(Bound("σ²/σ†² (geometric mean over images) of the widest latent", at_most(small), over="seeds")),
        WorstLatent(Bound("σ² of the widest latent", at_most(small), over="seeds")),
        WorstLatent(
            Bound(
                "|log σ²/σ†²| (mean of the logarithm over images) of the worst latent",
                at_most(Tolerances().pointwise),
                over="seeds",
            ),
            active=False,
        ),
    )
    estimated = (
        "Where results.parquet has no σ², it is the geometric mean of σ²/σ†² times the mean of σ†². Passive latents "
        "of iVAEs have σ² ≪ 1 too, so that as printed it does not tell the kinds apart."
    )
    both = "Proposition 1 (ii) and Proposition 3 (ii)"
    return [
        _threshold_claim(model, "latents in use are far narrower than their prior.", both, ratio, relative),
        _threshold_claim(
            model,
            "latents in use have a variance far below one, as printed.",
            f"{both}, as printed (σ ≪ 1)",
            lambda own: own.absolute_variance,
            printed,
            estimated,
        ),
        _threshold_claim(
            model,
            "latents that are not in use are as wide as their prior.",
            "Proposition 1 (i) and Proposition 3 (i)",
            lambda own: [abs(math.log(value)) for value in own.variance_ratio],
            equal,
        ),
    ]


def _threshold_claim(
    model: str,
    sentence: str,
    source: str,
    values: Callable[[PerLatent], Sequence[float]],
    criterion: WorstLatent,
    *notes: str,
) -> Spec:
    def data(results: Results, _: object) -> list[LatentValue]:
        return [
            LatentValue(r.cell.seed, kl, value)
            for r in of_model(results, model)
            for kl, value in zip(r.measured.per_latent.kl, values(r.measured.per_latent), strict=True)
        ]

    def range_note(results: Results, settings: RegimeSettings) -> str:
        own = data(results, settings)
        found = {t: criterion.with_tolerance(t).worst(own) for t in THRESHOLDS}
        listed = "; ".join(f"{t:g} nats: {show(max(v)) if v else 'no latent'}" for t, v in found.items())
        return f"The largest of all members, by the threshold of what is in use: {listed}."

    return _claim(
        f"{MODELS[model]}: {sentence}",
        f"{PAPER}, {source}",
        data,
        criterion,
        notes=(range_note, *notes),
        family="Proposition 1",
        robust_over=THRESHOLDS,
        requires=(only(model, members_converged()), only(model, number_settled)),
    )


def _mixed_claim(model: str, settings: RegimeSettings) -> Spec:
    criterion = Bound("number of mixed latents", at_most(0), over="seeds")

    def counts(results: Results, part: float | None = None) -> list[float]:
        return worst_by_seed(
            of_model(results, model),
            lambda m: float(m.count("mixed")) if part is None else late_value(m.curve.mixed, part),
        )

    published = model != "ivae-mean"
    lasting = lasting_verdict(criterion, counts, lambda r: r.measured.curve.mixed, "number of mixed latents")
    return _claim(
        f"{MODELS[model]}: no latent is mixed on this data.",
        f"{PAPER}, appendix B" if published else "Beyond the paper: a learned prior mean on its data",
        lambda results, _: counts(results),
        criterion,
        notes=(lambda results, _: boundary_note(of_model(results, model)),),
        published_runs=PublishedRuns((0.0,), PUBLISHED["mixed_latents"]) if published else None,
        scale=settings.scale,
        requires=(only(model, members_converged()), only(model, lasting)),
    )


def boundary_note(results: Results) -> str:
    boundary, total = sum(r.measured.boundary for r in results), sum(r.cell.latents for r in results)
    return (
        f"{boundary} of {total} latents are close to a boundary: thresholds half or twice as large would change their "
        "kind. results.parquet has no labels by other thresholds of single samples."
    )


# more latents, higher β -----------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """Two members of one model and seed: with fewer and with more latents, or with a lower and a higher β."""

    before: RegimeResult
    after: RegimeResult

    @property
    def gain(self) -> float:
        """Active latents of the second less those of the first."""
        first, second = active_counts([self.before, self.after])
        return second - first


Pairs = Callable[[Results, RegimeSettings, str], list[Pair]]


def pairs_of(results: Results, model: str, kinds: Sequence[tuple[tuple[int, float], tuple[int, float]]]) -> list[Pair]:
    """Members of the same seed with each pair of (latents, β).

    Only where the first has latents that it does not use: one that uses all may need more.
    """
    return [
        Pair(first, second)
        for before, after in kinds
        for first in select(results, model, *before)
        for second in select(results, model, *after)
        if first.cell.seed == second.cell.seed and first.measured.count("passive")
    ]


def pairs_by_latents(results: Results, settings: RegimeSettings, model: str) -> list[Pair]:
    """All pairs of a narrower and a wider model."""
    beta, sizes = settings.betas[0], sorted(set(settings.latents))
    return pairs_of(results, model, [((few, beta), (many, beta)) for few in sizes for many in sizes if few < many])


def pairs_by_beta(results: Results, settings: RegimeSettings, model: str) -> list[Pair]:
    lowest, *others = sorted(set(settings.betas))
    latents = settings.latents[0]
    return pairs_of(results, model, [((latents, lowest), (latents, higher)) for higher in others])


def _gain_claim(model: str, pairs: Pairs, what: str) -> Spec:
    """That no member has more active latents than another one of the same seed with fewer latents, or a lower β."""

    def gains(results: Results, settings: RegimeSettings) -> list[float]:
        found: dict[int, float] = {}
        for pair in pairs(results, settings, model):
            seed = pair.before.cell.seed
            found[seed] = max(pair.gain, found.get(seed, pair.gain))
        return list(found.values())

    def note(results: Results, settings: RegimeSettings) -> str:
        gaining = grouped((p for p in pairs(results, settings, model) if p.gain > 0), lambda pair: pair.before.cell)
        largest = [max(own, key=lambda pair: pair.gain) for own in gaining.values()]
        return " ".join([_counts_words(of_model(results, model)), *filter(None, map(optimum_note, largest))])

    source = f"{PAPER}, Theorem 1" if pairs is pairs_by_latents else "Beyond the paper"
    return _claim(
        f"{MODELS[model]}: members with {what} do not have more active latents.",
        source,
        gains,
        Bound(f"largest gain of active latents with {what}", at_most(0), over="seeds"),
        notes=(note,),
        family="Theorem 1" if pairs is pairs_by_latents else "",
        requires=(only(model, members_converged()), only(model, number_settled)),
    )


def _counts_words(results: Results) -> str:
    own = sorted(results, key=lambda r: (r.cell.seed, r.cell.latents, r.cell.beta))
    listed = (f"{r.measured.count('active')} ({r.cell.title}, seed {r.cell.seed})" for r in own)
    return f"Active latents: {'; '.join(listed)}."


def optimum_note(pair: Pair) -> str:
    """Which of the two is not at its optimum, by the ELBO of the wider model with as many latents and with all."""
    few, many = pair.before.cell, pair.after.cell
    own, wide = pair.before.measured.truncation.elbo, pair.after.measured.truncation.elbo
    if not own or not wide:
        return ""
    cut, reached, full = wide[few.latents], own[few.latents], wide[-1]
    if cut > reached:
        return (
            f"{many.title}, cut to its {few.latents} most used latents, has an ELBO of {show(cut)} nats against "
            f"{show(reached)} of {few.title} (seed {few.seed}): the narrower one ended below what {few.latents} "
            "latents allow, and says nothing about how many the data need."
        )
    compared = f"{many.title} has an ELBO of {show(full)} nats against {show(reached)} of {few.title}"
    return (
        f"{compared} (seed {few.seed}): its further active latents {'raise' if full > reached else 'do not raise'} it."
    )


# what rests on the labels ---------------------------------------------------------------------


def leak_note(results: Results, _: object) -> str:
    """What classifiers read from passive latents alone."""
    asked = (("means of VAEs", "vae", "mean codes"), ("means of iVAEs", "ivae", "mean codes"))
    found = {
        words: [v for r in of_model(results, model) if (v := r.measured.accuracies[codes].passive) is not None]
        for words, model, codes in (*asked, ("samples of iVAEs", "ivae", "sampled codes"))
    }
    if not all(found.values()):
        return ""
    listed = ", ".join(f"{show(median(values))} on {words}" for words, values in found.items())
    return (
        f"On passive latents alone the median accuracy is {listed} (chance is 0.25). Mean and variance of an iVAE's "
        "passive latents follow p(z | factors), so a classifier can read the factors from them."
    )


def _dropping(model: str, codes: str, source: str, *notes: str | Note) -> Spec:
    """Accuracy on all latents less that on used latents, of members that have both used and passive latents."""

    def lost(m: RegimeMeasurement) -> float | None:
        own = m.accuracies[codes]
        return own.all_latents - own.used if m.count("passive") and own.used is not None else None

    return _claim(
        f"{MODELS[model]}: dropping passive latents does not hurt a classifier on {codes}.",
        source,
        lambda results, _: worst_by_seed(of_model(results, model), lost),
        Bound("loss of accuracy", at_most(0.01), over="seeds"),
        notes=notes,
        family="dropping",
        robust_over=(0.005, 0.01, 0.02),
        requires=(only(model, members_converged()), only(model, number_settled)),
    )


def _of_worst_passive(values: Callable[[PerLatent], Sequence[float]]) -> Value:
    def value(m: RegimeMeasurement) -> float | None:
        return max(m.per_latent.of_kind("passive", values(m.per_latent)), default=None)

    return value


def _use_claims() -> list[Spec]:
    conditions: tuple[Condition, ...] = (members_converged(), number_settled)

    def missed(m: RegimeMeasurement) -> float | None:
        """The share of passive latents that the rule calls passive."""
        own = m.per_latent.of_kind("passive", m.per_latent.baseline_rules[VARIANCE_RULE])
        return own.count("passive") / len(own) if own else None

    return [
        _dropping(
            "vae",
            "mean codes",
            "Bonheme & Grzes 2021, cited by the paper",
            "Decision trees ignore scale: they can read changes of a mean that are far below the noise of its latent.",
        ),
        _dropping("ivae", "mean codes", f"{PAPER}, conclusion", leak_note),
        _dropping("vae", "sampled codes", "Beyond the paper"),
        _claim(
            "The decoder ignores passive latents.",
            "Beyond the paper: passive latents, seen from the decoder",
            lambda results, _: worst_by_seed(results, _of_worst_passive(lambda own: [abs(e) for e in own.effect])),
            Bound(
                "effect of a passive latent drawn from its prior, as a share of the data's variance,",
                at_most(0.01),
                over="seeds",
            ),
            notes=(
                "The effect is the absolute change of the squared error: a decoder that improves is not ignoring it.",
            ),
            robust_over=(0.001, 0.01, 0.05),
            requires=conditions,
        ),
        _claim(
            "A rule on the posterior variance alone calls most passive latents of an iVAE something else.",
            "Beyond the paper; the authors' code has such a rule",
            lambda results, _: worst_by_seed(of_model(results, "ivae"), missed),
            Bound(f"share of passive latents that '{VARIANCE_RULE}' calls passive", at_most(0.5), over="seeds"),
            robust_over=(0.1, 0.5, 0.9),
            requires=tuple(only("ivae", condition) for condition in conditions),
        ),
        _claim(
            "The prior variance of an iVAE's passive latents stays close to zero.",
            f"{PAPER}, appendix B, on Fig. 1",
            lambda results, _: worst_by_seed(
                of_model(results, "ivae"), _of_worst_passive(lambda own: own.prior_variance)
            ),
            Bound("largest prior variance of a passive latent", at_most(0.1), over="seeds"),
            published=PUBLISHED["prior_variance"],
            robust_over=(0.01, 0.1, 0.2),
            requires=tuple(only("ivae", condition) for condition in conditions),
        ),
    ]


# mathematical statements ----------------------------------------------------------------------


def _mathematical_claims() -> list[Spec]:
    """What needs no training: counter-examples to steps of the proofs, and a closed form."""

    def exact(sentence: str, source: str, value: Callable[[], float], quantity: str, limit: Limit, note: str) -> Spec:
        return ClaimSpec(
            sentence,
            source,
            lambda *_: [value()],
            Bound(quantity, limit, over="", exact=True),
            note=note,
            kind=Statement.MATHEMATICAL,
        )

    return [
        exact(
            "The variances of the best diagonal posterior, the paper's q, lie between the bounds of Eq. 12.",
            f"{PAPER}, Eqs. 11 and 12 in the proof of Theorem 1",
            two_optima_misfit,
            "largest factor by which a variance misses its bound",
            at_most(1 + 1e-9),
            "A counter-example: J = [[1, 1], [0, 0.1]], γ² = 100, a standard prior. Eq. 11 is the optimum over full "
            "covariances. The theorem is about trained decoders, whose columns may be orthogonal; there both agree.",
        ),
        exact(
            "For a given decoder, no more posterior variances vanish with the noise than it uses directions.",
            f"{PAPER}, the last step of the proof of Theorem 1",
            vanishing_but_unused,
            "vanishing variances less used directions",
            at_most(0),
            "A counter-example: a decoder of z₁ + z₂, with a diagonal q. A trained decoder can avoid it by aligning "
            "its unused directions with latents; the theorem itself is not refuted.",
        ),
        exact(
            "Equal means and variances of μ and μ†, and of σ² and σ†², make z and z† equally distributed.",
            f"{PAPER}, Theorem 2 (i), the inference of its proof",
            equal_moments_distance,
            "Wasserstein distance of z and z† in standard deviations of z†",
            at_most(0),
            "A counter-example: μ† is 1 or -1, μ ~ N(0, 1), σ² = σ†² → 0. From Prop. 1, for every sample, the "
            "conclusion does follow.",
        ),
        exact(
            "A mixed z has the printed distribution c p(z†) + (1 - c) p(μ).",
            f"{PAPER}, Theorem 2 (iii), as printed",
            printed_mixture_error,
            "Kolmogorov distance at c = 1/2",
            at_most(0),
            "A counter-example: N(0, 1) as prior, μ = 0 in the passive half, μ ~ N(0, 1) and σ² → 0 in the other. "
            "With the means of active samples only it is exact, and so it is judged above.",
        ),
        exact(
            "Where u determines x, the best linear iVAE with a learned prior mean uses no latent.",
            "Beyond the paper: the factors determine the images of this experiment",
            lambda: used_where_u_determines_x("learned"),
            "latents in use, of two",
            at_most(0),
            "With a fixed prior mean it uses one on the same data. The trained members with a learned prior mean use "
            "latents: they are not at the optimum of a prior and a decoder that can represent x.",
        ),
    ]
