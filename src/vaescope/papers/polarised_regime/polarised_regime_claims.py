"""Claims of polarised-regime: the statements of the paper, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vaescope.papers.claims import FEWEST_LATE, TOO_SHORT, ClaimSpec, settled, show
from vaescope.papers.criteria import Bound, Interval, IntervalsBelow, above, at_most
from vaescope.papers.polarised_regime.polarised_regime_results import (
    COMPARED,
    FIXED_MEAN_STATEMENT,
    MODELS,
    STATEMENTS,
    Accuracy,
    RegimeMeasurement,
    RegimeResult,
    RegimeSettings,
    Results,
    select,
)
from vaescope.papers.statistics import median

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
