"""Claims of orthogonality: on each image set, and over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from vaescope.papers.claims import (
    ClaimSpec,
    Criterion,
    lasting_refutation,
    late_value,
    members_converged,
    settled,
)
from vaescope.papers.criteria import Bound, Groups, LargerGroup, Pairs, RankCorrelation, at_least, below
from vaescope.papers.statistics import rank_test, relative_ranks
from vaescope.papers.why_vaes_disentangle.disentangling import (
    OBJECTIVES,
    PAPER,
    DisentanglingSettings,
    ImageSet,
    by_images,
    of_objective,
    on_images,
)
from vaescope.papers.why_vaes_disentangle.orthogonality_results import (
    PUBLISHED,
    OrthogonalityMeasurement,
    OrthogonalityResult,
    Results,
    Score,
    Variant,
    in_use,
    od_scores,
)
from vaescope.papers.why_vaes_disentangle.orthogonality_theorems import NEIGHBOURS, SLOPES

HIGH_MIG = 0.35
MIN_SEEDS = 5
MIN_RANGE = 0.3  # with a smaller MIG of all models, a correlation with it cannot be decided
SETTLED_MIG = 0.02  # range of a member's MIG over the last third of the epochs
Spec = ClaimSpec[OrthogonalityResult, DisentanglingSettings, Any]
D = TypeVar("D")
Gap = Callable[[OrthogonalityMeasurement], float]
PairsOf = Callable[[Results], Pairs]


def claims(image_sets: Sequence[ImageSet]) -> list[Spec]:
    return [
        *(claim for images in image_sets for claim in _claims_on(images)),
        *CORRELATIONS,
        *ORTHOGONAL,
        *SLOPES,
        *NEIGHBOURS,
    ]


# disentanglement on one image set -------------------------------------------------------------


def _mig(found: OrthogonalityMeasurement) -> float:
    return found.disentanglement.mig


def _mig_sup(found: OrthogonalityMeasurement) -> float:
    return found.disentanglement.mig_sup


def _mig_curve(result: OrthogonalityResult) -> Sequence[float]:
    return result.measured.mig_curve


def objective_groups(gap: Gap, larger: str, smaller: str) -> Callable[[Results, object], Groups]:
    """MIG or MIG-sup of the members of two objectives."""

    def measure(results: Results, _: object) -> Groups:
        return Groups(*([gap(r.measured) for r in of_objective(results, o)] for o in (larger, smaller)))

    return measure


def gaps_of(gap: Gap, objective: str) -> Callable[[Results, object], list[float]]:
    return lambda results, _: [gap(r.measured) for r in of_objective(results, objective)]


def score_pairs(variant: Variant, gap: Gap) -> PairsOf:
    """OD-Score and MIG or MIG-sup of the members of one image set that have a score."""

    def measure(results: Results) -> Pairs:
        scores = od_scores(results, variant)
        known = [(s.trained, gap(r.measured)) for r, s in zip(results, scores, strict=True) if s]
        return Pairs([x for x, _ in known], [y for _, y in known])

    return measure


def contrast_pairs(gap: Gap) -> PairsOf:
    """c_IMA of the Jacobian and MIG of the members with at least two latents in use."""

    def measure(results: Results) -> Pairs:
        known = [(c.contrast, gap(r.measured)) for r in results if (c := r.measured.columns)]
        return Pairs([x for x, _ in known], [y for _, y in known])

    return measure


def ranked_within(pairs: PairsOf) -> Callable[[Results, object], Pairs]:
    """Ranks of both quantities within their image set, over all image sets: levels differ between them."""

    def measure(results: Results, _: object) -> Pairs:
        found = [pairs(own) for own in by_images(results).values()]
        x = [rank for own in found for rank in relative_ranks(own.x)]
        return Pairs(x, [rank for own in found for rank in relative_ranks(own.y)])

    return measure


def per_image_set(pairs: PairsOf) -> Callable[[Results, object], str]:
    """The correlation on every image set."""

    def note(results: Results, _: object) -> str:
        found = {images.title: pairs(own) for images, own in by_images(results).items()}
        varied = {title: p for title, p in found.items() if min(len(set(p.x)), len(set(p.y))) > 2}
        tests = {title: rank_test(list(p.x), list(p.y)) for title, p in varied.items()}
        return "".join(f"On {title}: ρ = {rho:.2f}, p = {p:.2g}. " for title, (rho, p) in tests.items()).strip()

    return note


def enough_seeds(objective: str) -> Callable[[Results, object], str | None]:
    """A condition: a median over seeds is one over at least `MIN_SEEDS` of them."""

    def condition(results: Results, _: object) -> str | None:
        found = len(of_objective(results, objective))
        return None if found >= MIN_SEEDS else f"A median over seeds needs {MIN_SEEDS} of them, this run has {found}."

    return condition


def wide_range(gap: Gap, name: str) -> Callable[[Results, object], str | None]:
    """A condition: some model is disentangled, so that a correlation with disentanglement can show."""

    def condition(results: Results, _: object) -> str | None:
        if not results or any(gap(r.measured) >= MIN_RANGE for r in results):
            return None
        return f"All models have a {name} below {MIN_RANGE:g}: the range is too small to decide."

    return condition


mig_settled = settled("MIG", _mig_curve, tolerance=SETTLED_MIG)


def lasting(
    criterion: Criterion[D], measure: Callable[[Gap], Callable[[Results, object], D]], gap: Gap
) -> Callable[[Results, object], str | None]:
    """A condition of claims about the MIG: they fail at all late epochs, given everything else that was measured at the
    end. The MIG-sup is not recorded after every epoch; claims about it need the MIG to have settled.

    Args:
        criterion: of the claim.
        measure: of the claim, for any gap.
        gap: that of the claim.
    """
    if gap is not _mig:
        return mig_settled

    def late(results: Results, part: float | None) -> D:
        return measure(_mig if part is None else lambda found: late_value(found.mig_curve, part))(results, None)

    return lasting_refutation(criterion, late, _mig_curve, "MIG")


def _claims_on(images: ImageSet) -> list[Spec]:
    tables = {"MIG": ("Tab. 4", _mig), "MIG-sup": ("Tab. 5", _mig_sup)}
    claims = [
        _more_disentangled(images, gap, name, table, (objective, "vae"))
        for name, (table, gap) in tables.items()
        for objective in ("beta-tcvae", "beta-vae")
    ]
    return [_high_gap(images), *claims] if images.data == "dsprites" else claims


def _high_gap(images: ImageSet) -> Spec:
    def measure(gap: Gap) -> Callable[[Results, object], list[float]]:
        return gaps_of(gap, "beta-tcvae")

    criterion = Bound("MIG of β-TCVAEs", at_least(HIGH_MIG))
    return ClaimSpec(
        sentence=f"On {images.title}, a β-TCVAE separates the factors.",
        source=f"{PAPER}, Tab. 4",
        measure=on_images(images, measure(_mig)),
        criterion=criterion,
        published=f"{PUBLISHED[images.data, 'beta-tcvae'].mig:g} on the official images",
        if_refuted=GAIN_REFUTED,
        requires=(
            on_images(images, enough_seeds("beta-tcvae")),
            on_images(images, lasting(criterion, measure, _mig)),
        ),
    )


def _more_disentangled(images: ImageSet, gap: Gap, name: str, table: str, objectives: tuple[str, str]) -> Spec:
    def measure(gap: Gap) -> Callable[[Results, object], Groups]:
        return objective_groups(gap, *objectives)

    titles = OBJECTIVES[objectives[0]], OBJECTIVES[objectives[1]]
    criterion = LargerGroup(name, *titles)
    published = [(p.mig if name == "MIG" else p.mig_sup) for o in objectives if (p := PUBLISHED.get((images.data, o)))]
    return ClaimSpec(
        sentence=f"On {images.title}, a {titles[0]} has a higher {name} than a {titles[1]}.",
        source=f"{PAPER}, {table}",
        measure=on_images(images, measure(gap)),
        criterion=criterion,
        published=" and ".join(f"{v:g}" for v in published) + " on the official images" if published else None,
        if_refuted=GAIN_REFUTED,
        requires=(on_images(images, lasting(criterion, measure, gap)),),
    )


def _correlation(
    pairs: Callable[[Gap], PairsOf], names: tuple[str, str], gap: Gap, source: str, if_refuted: str
) -> Spec:
    criterion = RankCorrelation(-1, over="members (ranked within their image set)")
    return ClaimSpec(
        sentence=f"Models with a higher {names[0]} have a lower {names[1]}.",
        source=source,
        measure=ranked_within(pairs(gap)),
        criterion=criterion,
        note=per_image_set(pairs(gap)),
        if_refuted=if_refuted,
        requires=(wide_range(gap, names[1]), lasting(criterion, lambda other: ranked_within(pairs(other)), gap)),
    )


GAIN_REFUTED = (
    "The paper does not say for how long it trains, and its images are the official ones at 64 x 64 pixels. The table "
    "shows which members have few latents in use."
)
OD_REFUTED = (
    "The authors' script fits M_D with an orthogonality weight that differs between models, so the matrices that are "
    "compared were pulled towards orthogonality, each by its own weight. Here the objective is the fit alone, for all "
    "models. Scores are relative to the largest among the compared models, and d_Σ depends on the norms of columns as "
    "much as on their angles."
)
PUBLISHED_OD_REFUTED = (
    "The published score compares U, Σ and V with those that Lemma 4 predicts without matching their order and signs. "
    "An exactly orthogonal matrix scores as badly as a random one, so the published values, all between 0.90 and 0.99, "
    "say little about angles."
)
CONTRAST_REFUTED = (
    "An optimal encoder favours orthogonal columns in every decoder, disentangled or not: a VAE may be orthogonal "
    "along axes that mix the factors."
)

FIG_4 = f"{PAPER}, Fig. 4"
CORRELATIONS = (
    _correlation(partial(score_pairs, in_use), ("OD-Score", "MIG"), _mig, f"{FIG_4} (i) to (l)", OD_REFUTED),
    _correlation(partial(score_pairs, in_use), ("OD-Score", "MIG-sup"), _mig_sup, f"{FIG_4} (m) to (p)", OD_REFUTED),
    _correlation(
        partial(score_pairs, lambda d: d.published),
        ("OD-Score as published", "MIG"),
        _mig,
        f"{FIG_4}, with the published score",
        PUBLISHED_OD_REFUTED,
    ),
    _correlation(contrast_pairs, ("c_IMA of the Jacobian", "MIG"), _mig, "Beyond the paper", CONTRAST_REFUTED),
)


# orthogonality of decoders --------------------------------------------------------------------


def score_ratios(other: Callable[[Score], float]) -> Callable[[Results, object], list[float]]:
    """The OD-Score of every member over another score."""

    def measure(results: Results, _: object) -> list[float]:
        scores = [s for s in od_scores(results) if s is not None]
        return [s.trained / other(s) for s in scores if other(s)]

    return measure


ORTHOGONAL: tuple[Spec, ...] = (
    ClaimSpec(
        sentence="Every trained decoder is closer to orthogonal than random directions of the same norms.",
        source=f"{PAPER}, Theorem 1, in numbers that the paper does not give",
        measure=score_ratios(lambda s: s.random),
        criterion=Bound("OD-Score / OD-Score of random directions", below(1.0), statistic="largest"),
        if_refuted=(
            "In the hundreds of dimensions of an image, random directions are nearly orthogonal (cosines of about "
            "1/√n). The same decoder with rotated latents is the fair comparison."
        ),
    ),
    ClaimSpec(
        sentence="Every trained decoder is closer to orthogonal than the same decoder with randomly rotated latents.",
        source="Beyond the paper: random directions are no fair comparison in high dimensions",
        measure=score_ratios(lambda s: s.rotated),
        criterion=Bound("OD-Score / OD-Score with rotated latents", below(1.0), statistic="largest"),
        note="This claim was added after the comparison with random directions had been refuted.",
        requires=(members_converged(),),
    ),
)
