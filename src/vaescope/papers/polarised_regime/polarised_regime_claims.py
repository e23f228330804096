"""Claims of polarised-regime: the statements of the paper, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vaescope.papers.claims import ClaimSpec, settled, show
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


SETTLED_RATIO = 0.02  # range over the last third of the epochs


def regime_settled(results: Results, settings: object) -> str | None:
    """Claims about the regime are decided once it has settled, although the ELBO may still rise."""
    reasons = [condition(results, settings) for condition in _SETTLED]
    return " ".join(reason for reason in reasons if reason) or None


_SETTLED = (
    settled("number of active latents", lambda r: r.measured.curve.active, tolerance=0.0),
    settled("posterior width of passive latents", lambda r: r.measured.curve.passive_ratio, tolerance=SETTLED_RATIO),
)


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
        requires=(has_latents(name, model), only(model, regime_settled)),
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


def only(model: str, condition: Callable[[Results, object], str | None]) -> Callable[[Results, object], str | None]:
    """A condition on the members of one model."""
    return lambda results, settings: condition([r for r in results if r.cell.model == model], settings)


# counts of latents ----------------------------------------------------------------------------


def mixed_latents(results: Results, _: object) -> list[float]:
    return [float(r.measured.count("mixed")) for r in results]


def boundary_note(results: Results, _: object) -> str:
    boundary, total = sum(r.measured.boundary for r in results), sum(r.cell.latents for r in results)
    return f"{boundary} of {total} latents are close to a boundary: other thresholds would change their kind."


def active_added(results: Results, few: tuple[int, float], many: tuple[int, float]) -> list[float]:
    """Active latents (median over seeds) with (latents, β) of `many`, less those with `few`, for VAE and iVAE.

    Only where the model with `few` has latents that it does not use: one that uses all may need more.
    """
    found = []
    for model in COMPARED:
        before, after = ([r.measured for r in select(results, model, *at)] for at in (few, many))
        if before and after and all(m.count("passive") for m in before):
            found.append(_median_active(after) - _median_active(before))
    return found


def _median_active(members: Sequence[RegimeMeasurement]) -> float:
    return median([float(m.count("active")) for m in members])


def active_added_by_latents(results: Results, settings: RegimeSettings) -> list[float]:
    """Over all pairs of a narrower and a wider model."""
    beta, sizes = settings.betas[0], sorted(set(settings.latents))
    pairs = [(few, many) for few in sizes for many in sizes if few < many]
    return [v for few, many in pairs for v in active_added(results, (few, beta), (many, beta))]


def active_note(results: Results, settings: RegimeSettings) -> str:
    """Active latents by the number of latents, for VAE and iVAE."""

    def counts(model: str) -> str:
        sizes = [(n, select(results, model, n, settings.betas[0])) for n in sorted(set(settings.latents))]
        return ", ".join(f"{_median_active([r.measured for r in own]):g} of {n}" for n, own in sizes if own)

    return "Active latents: " + "; ".join(f"{MODELS[model]} {counts(model)}" for model in COMPARED) + "."


def active_added_by_beta(results: Results, settings: RegimeSettings) -> list[float]:
    lowest, *others = sorted(set(settings.betas))
    latents = settings.latents[0]
    return [v for higher in others for v in active_added(results, (latents, lowest), (latents, higher))]


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
        requires=(regime_settled,),
    ),
    ClaimSpec(
        sentence="Models with more latents do not have more active latents.",
        source=f"{PAPER}, Theorem 1",
        measure=active_added_by_latents,
        criterion=Bound(
            "gain of active latents in a wider model", at_most(0.0), statistic="largest", over="pairs of models"
        ),
        note=active_note,
        requires=(regime_settled,),
    ),
)
BETA: Spec = ClaimSpec(
    sentence="Models with a higher β do not have more active latents.",
    source="Beyond the paper",
    measure=active_added_by_beta,
    criterion=Bound("gain of active latents at a higher β", at_most(0.0), statistic="largest", over="pairs of models"),
    requires=(regime_settled,),
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
        requires=(regime_settled,),
    ),
    ClaimSpec(
        sentence="A rule on the posterior variance alone misjudges the passive latents of an iVAE.",
        source="Beyond the paper; the authors' code has such a rule",
        measure=misjudged_shares,
        criterion=Bound(f"share of passive latents that '{VARIANCE_RULE}' does not call passive", above(0.5)),
        requires=(regime_settled,),
    ),
    ClaimSpec(
        sentence="The prior variance of an iVAE's passive latents stays close to zero.",
        source=f"{PAPER}, appendix B, on Fig. 1",
        measure=passive_prior_variances,
        criterion=Bound("prior variance of passive latents", at_most(0.2)),
        published="close to zero (Fig. 1c)",
        requires=(regime_settled,),
    ),
)
