"""Orthogonality of decoders and disentanglement (Bhowal et al. 2024, Tabs. 4 to 6, Fig. 4, Theorems 1 and 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from math import isnan, nan
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from vaescope import metrics, orthogonality, regime, theory
from vaescope.core import randomness
from vaescope.core.errors import InputError
from vaescope.models import Member
from vaescope.orthogonality.neighbours import expected_distance
from vaescope.report import figures
from vaescope_papers.claims import (
    ClaimSpec,
    ClaimSpecs,
    Criterion,
    PublishedRuns,
    Statement,
    lasting_verdict,
    late_value,
    members_converged,
    show,
)
from vaescope_papers.criteria import Bound, Groups, LargerGroup, Pairs, RankCorrelation, at_most, below, within
from vaescope_papers.experiment import ReportFigure, ReportTable
from vaescope_papers.results import Result
from vaescope_papers.statistics import (
    Comparison,
    median,
    median_interval,
    rank_correlation,
    rank_test,
    relative_ranks,
)
from vaescope_papers.trained import FactorData
from vaescope_papers.why_vaes_disentangle import EXPERIMENTS, PAPER
from vaescope_papers.why_vaes_disentangle.disentangling import (
    OBJECTIVES,
    DisentanglingCell,
    DisentanglingExperiment,
    DisentanglingSettings,
    ImageSet,
    by_images,
    by_model,
    compare_models,
    floats,
    known_numbers,
    looks,
    of_objective,
    on_images,
)
from vaescope_papers.why_vaes_disentangle.theorems import linear_vaes_along_beta

D = TypeVar("D")

# measurement ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disentanglement:
    """MIG and MIG-sup: of mean codes by bins, and of posteriors through the aggregated posterior."""

    mig: float
    mig_floor: float
    """The MIG that codes without information would have."""
    mig_sup: float
    aggregated_mig: float
    aggregated_mig_sup: float


@dataclass(frozen=True)
class Distances:
    """Squared distances of U, Σ and V to those of orthogonal columns: three numbers per image."""

    trained: tuple[float, ...]
    """Of the local decoder's matrix."""
    random: tuple[float, ...]
    """Of random directions with the same norms."""
    rotated: tuple[float, ...]
    """Of the same matrix with randomly rotated latents."""


@dataclass(frozen=True)
class ODDistances:
    """The variants of the OD-Score; distances are empty without latents in use."""

    in_use: Distances
    """Latents in use, aligned."""
    all_latents: Distances
    """All latents, aligned."""
    published: Distances
    """All latents, not aligned."""


@dataclass(frozen=True)
class ColumnStatistics:
    """Orthogonality of the columns of latents in use, without alignment."""

    contrast: float
    """Median c_IMA of the Jacobian."""
    gram_share: float
    """Mean squared cosine between two columns of the Jacobian."""
    local_contrast: float
    """Median c_IMA of the local decoder's matrix."""
    angles: tuple[float, ...]
    """Mean angles between columns of the Jacobian, in degrees: a square matrix by rows."""
    weighted_contrast: float = nan
    """Median c_IMA of the Jacobian with pixels weighted as by the likelihood; NaN where it was not measured."""


@dataclass(frozen=True)
class SlopeFit:
    slope: float
    r2: float


@dataclass(frozen=True)
class InverseSquares:
    """Slope of log σ_j² on log ‖c_j‖² over latents in use; None where it is not defined."""

    jacobian: SlopeFit | None
    """Columns of the Jacobian."""
    local: SlopeFit | None
    """Columns of the local decoder's matrix."""
    weighted: SlopeFit | None
    """As the Bernoulli likelihood predicts: log 1/(1/σ_j² - 1), with pixels weighted by 1/(x̂(1 - x̂))."""


@dataclass(frozen=True)
class NeighbourDistances:
    """Mean squared distance between the codes of nearest neighbours in data space."""

    sampled: float
    """Of samples from the posteriors."""
    mean: float
    """Of mean codes."""
    relative: float
    """Of mean codes, relative to the typical distance between codes."""
    in_use: float = nan
    """Expected, of samples from the posteriors, over latents in use; NaN where it was not measured."""


@dataclass(frozen=True)
class OrthogonalityMeasurement:
    disentanglement: Disentanglement
    kl: float
    """In nats, summed over latents."""
    latents_in_use: tuple[int, ...]
    """By decreasing KL."""
    od_distances: ODDistances
    columns: ColumnStatistics | None
    """None with fewer than two latents in use."""
    inverse_squares: InverseSquares
    norms: tuple[float, ...]
    """Column norms of the Jacobian at a few images, of latents in use."""
    variances: tuple[float, ...]
    """Posterior variances at the same images, in the same order."""
    neighbours: NeighbourDistances
    mig_curve: tuple[float, ...] = ()
    """MIG of mean codes after every epoch."""


OrthogonalityResult = Result[DisentanglingCell, OrthogonalityMeasurement]
Results = Sequence[OrthogonalityResult]
Values = Mapping[DisentanglingCell, float]
"""A value of every member that has one."""
Gap = Callable[[OrthogonalityMeasurement], float]
Claims = ClaimSpecs[OrthogonalityResult, DisentanglingSettings]


def mig(measured: OrthogonalityMeasurement) -> float:
    return measured.disentanglement.mig


def mig_sup(measured: OrthogonalityMeasurement) -> float:
    return measured.disentanglement.mig_sup


@dataclass(frozen=True)
class Score:
    """OD-Scores, relative to the largest distances among the models that are compared; lower is more orthogonal."""

    trained: float
    random: float
    rotated: float


def od_scores(results: Results, variant: str = "in_use") -> dict[DisentanglingCell, Score]:
    """The score of every member with latents in use, among the members of its image set.

    Every distance is divided by the largest of the compared models at the same image, then averaged. `variant` is a
    field of `ODDistances`.
    """
    scores = {}
    for own in by_images(results).values():
        distances = {r.cell: getattr(r.measured.od_distances, variant) for r in own}
        if known := {cell: d for cell, d in distances.items() if d.trained}:
            largest = np.max([d.trained for d in known.values()], axis=0)
            scale = np.where(largest > 0, largest, 1.0)
            for cell, d in known.items():
                scores[cell] = Score(*(float((np.asarray(v) / scale).mean()) for v in (d.trained, d.random, d.rotated)))
    return {r.cell: scores[r.cell] for r in results if r.cell in scores}


def trained_scores(results: Results, variant: str = "in_use") -> Values:
    return {cell: score.trained for cell, score in od_scores(results, variant).items()}


# claims on one image set ----------------------------------------------------------------------


class DisentanglementScore(NamedTuple):
    """MIG or MIG-sup, by one of its estimators."""

    name: str
    estimator: str
    """`mig`, of mean codes by bins, or `aggregated_mig`, of posteriors (Chen et al. 2018)."""

    @property
    def title(self) -> str:
        return f"{self.name} {'of mean codes' if self.estimator == 'mig' else 'of posteriors'}"

    @property
    def column(self) -> str:
        """Of the published numbers."""
        return self.name.lower().replace("-", "_")

    @property
    def table(self) -> str:
        return {"MIG": "Tab. 4", "MIG-sup": "Tab. 5"}[self.name]

    def of(self, measured: OrthogonalityMeasurement, part: float | None = None) -> float:
        """At the end of training, or at a part of the last third of its epochs.

        The MIG of mean codes is recorded after every epoch. Other scores are taken to have changed by as much.
        """
        field = self.estimator if self.name == "MIG" else f"{self.estimator}_sup"
        final: float = getattr(measured.disentanglement, field)
        return final if part is None else final + late_value(measured.mig_curve, part) - mig(measured)


def all_scores() -> list[DisentanglementScore]:
    return [DisentanglementScore(*own) for own in product(("MIG", "MIG-sup"), ("mig", "aggregated_mig"))]


def lasting(
    criterion: Criterion[D],
    measure: Callable[[Results, float | None], D],
    score: DisentanglementScore,
) -> Callable[[Results, object], str | None]:
    """A condition: the verdict is the same with the scores after every epoch of the last third."""
    return lasting_verdict(criterion, measure, lambda r: r.measured.mig_curve, score.name)


def order_claim(
    images: ImageSet, score: DisentanglementScore, first: str, second: str, settings: DisentanglingSettings
) -> ClaimSpec[OrthogonalityResult, object, Groups]:
    """Whether one objective has the higher score, as it has in the published table."""

    def measure(results: Results, part: float | None = None) -> Groups:
        return Groups(*([score.of(r.measured, part) for r in of_objective(results, o)] for o in (first, second)))

    criterion = LargerGroup(score.name, OBJECTIVES[first], OBJECTIVES[second])
    means = [known_numbers("orthogonality")[images.data][o][score.column] for o in (first, second)]
    spreads = [known_numbers("orthogonality")[images.data][o][f"{score.column}_spread"] for o in (first, second)]
    near = abs(means[0] - means[1]) < max(spreads)
    close = "The two published means are closer than their spreads. " if near else ""
    words = " and ".join(f"{m:.2f} ± {s:.2f}" for m, s in zip(means, spreads, strict=True))
    return ClaimSpec(
        sentence=f"On {images.title}, a {OBJECTIVES[first]} has a higher {score.title} than a {OBJECTIVES[second]}.",
        source=f"{PAPER}, {score.table}",
        measure=on_images(images, lambda results, _: measure(results)),
        criterion=criterion,
        published=f"{words} on the official images",
        published_runs=PublishedRuns((round(means[0] - means[1], 3),), f"{words} on the official images"),
        scale=images.scale(settings),
        if_refuted=f"{close}The paper does not say for how long it trains, nor which estimator it uses.",
        requires=(on_images(images, lambda results, _: lasting(criterion, measure, score)(results, _)),),
        family=score.table,
        looks=looks(settings),
    )


def claims_on(images: ImageSet, settings: DisentanglingSettings) -> Claims:
    """The published order of the three objectives, by MIG and MIG-sup."""
    return [
        order_claim(images, score, first, second, settings)
        for score in all_scores()
        for first, second in combinations(
            sorted(
                OBJECTIVES, key=lambda objective: -known_numbers("orthogonality")[images.data][objective][score.column]
            ),
            2,
        )
    ]


# claims on all image sets ---------------------------------------------------------------------


def ranked_within(pairs: Callable[[Results], Pairs]) -> Callable[[Results, object], Pairs]:
    """Ranks of both quantities within their image set, over all image sets: levels differ between them."""

    def measure(results: Results, _: object) -> Pairs:
        found = [pairs(own) for own in by_images(results).values()]
        x = [rank for own in found for rank in relative_ranks(own.x)]
        return Pairs(x, [rank for own in found for rank in relative_ranks(own.y)])

    return measure


def each_image_set(pairs: Callable[[Results], Pairs]) -> Callable[[Results, object], str]:
    """A note: the correlation on every image set, which may differ."""

    def note(results: Results, _: object) -> str:
        found = {images.title: pairs(own) for images, own in by_images(results).items()}
        varied = {title: p for title, p in found.items() if min(len(set(p.x)), len(set(p.y))) > 2}
        tests = {title: rank_test(list(p.x), list(p.y)) for title, p in varied.items()}
        return "".join(f"On {title}: ρ = {rho:.2f}, p = {p:.2g}. " for title, (rho, p) in tests.items()).strip()

    return note


def pooled_correlation(sign: int) -> RankCorrelation:
    return RankCorrelation(sign, over="members (ranked within their image set)")


def correlation_claims(settings: DisentanglingSettings, groups: int) -> Claims:
    """Models that are more orthogonal are more disentangled (Fig. 4): both forms of the OD-Score, all scores."""

    def claim(
        values: Callable[[Results], Values], name: str, score: DisentanglementScore
    ) -> ClaimSpec[OrthogonalityResult, object, Pairs]:
        def pairs(results: Results, part: float | None = None) -> Pairs:
            known = values(results)
            own = [r for r in results if r.cell in known]
            return Pairs([known[r.cell] for r in own], [score.of(r.measured, part) for r in own])

        criterion = pooled_correlation(-1)

        def late(results: Results, part: float | None) -> Pairs:
            return ranked_within(lambda own: pairs(own, part))(results, None)

        return ClaimSpec(
            sentence=f"Models with a higher {name} have a lower {score.title}.",
            source="Beyond the paper",
            measure=ranked_within(pairs),
            criterion=criterion,
            note=each_image_set(pairs),
            requires=(lasting(criterion, late, score),),
            looks=looks(settings, groups),
        )

    of_weights = (
        "The authors' script fits M_D with an orthogonality weight that differs between models, so the matrices that "
        "are compared were pulled towards orthogonality, each by its own weight. Here the objective is the fit alone, "
        "for all models. Scores are relative to the largest among the compared models, and d_Σ depends on the norms of "
        "columns as much as on their angles."
    )
    of_alignment = (
        "The published score compares U, Σ and V with those that Lemma 4 predicts without matching their order and "
        "signs. An exactly orthogonal matrix scores as badly as a random one, so the published values, all between "
        "0.90 and 0.99, say little about angles."
    )
    variants = (("OD-Score as published", "published", of_alignment), ("aligned OD-Score", "in_use", of_weights))

    def with_variant(variant: str) -> Callable[[Results], Values]:
        return lambda own: trained_scores(own, variant)

    figure_4 = [
        replace(
            claim(with_variant(variant), name, score),
            source=f"{PAPER}, Fig. 4 ({'i) to (l' if score.name == 'MIG' else 'm) to (p'})",
            published_runs=_published_correlations(score),
            scale=f"{settings.size} x {settings.size} rendered images and {settings.seeds} members of each objective",
            if_refuted=why,
            family="Fig. 4",
        )
        for (name, variant, why), score in product(variants, all_scores())
    ]
    contrast = claim(
        lambda own: {r.cell: c for r in own if not isnan(c := weighted_contrast(r))},
        "c_IMA of the Jacobian, weighted as by the likelihood,",
        all_scores()[0],
    )
    return [*figure_4, contrast]


def _published_correlations(score: DisentanglementScore) -> PublishedRuns:
    """Over the three objectives, of published means on every data set."""
    found = [
        rank_correlation(*(np.array([rows[o][column] for o in OBJECTIVES]) for column in ("od", score.column)))
        for rows in known_numbers("orthogonality").values()
    ]
    return PublishedRuns(tuple(found), "means of three objectives on each of four data sets, Tabs. 4 to 6")


_converged: Callable[[Results, object], str | None] = members_converged()


def optimum_reached(results: Results, settings: object) -> str | None:
    """A condition for claims about minima of the loss."""
    unmet = _converged(results, settings)
    return unmet and f"{unmet} A restart at a higher rate, or longer training at a constant one, would decide it."


def weighted_contrast(result: OrthogonalityResult) -> float:
    """Median c_IMA of the Jacobian with the weights of the likelihood; NaN where these were not measured.

    A Gaussian likelihood weights all pixels alike. Under a Bernoulli likelihood the weights are 1/(x̂(1 - x̂)).
    """
    columns = result.measured.columns
    if columns is None:
        return nan
    return columns.contrast if result.cell.likelihood == "gaussian" else columns.weighted_contrast


def orthogonality_claims(sets: Sequence[ImageSet], settings: DisentanglingSettings) -> Claims:
    """Theorem 1 (b): against rotated latents, and as the contrast that a minimum does not have."""

    def ratios(results: Results) -> list[float]:
        return [score.trained / score.rotated for score in od_scores(results).values() if score.rotated]

    def median_ratios(results: Results, _: object) -> str:
        found = [
            f"{median(own):.2f} on {images.title}" for images, r in by_images(results).items() if (own := ratios(r))
        ]
        return f"Medians: {', '.join(found)}."

    def contrasts(results: Results, _: object) -> str:
        found = {
            OBJECTIVES[o]: [r.measured.columns.contrast for r in of_objective(results, o) if r.measured.columns]
            for o in OBJECTIVES
        }
        medians = ", ".join(f"{show(median(own))} ({title})" for title, own in found.items() if own)
        missing = (
            " The Jacobian weighted as by the Bernoulli likelihood was not measured in these runs, and their weights "
            "are not kept: training again, which measures it, would decide it."
        )
        more = missing if all(isnan(weighted_contrast(r)) for r in results) else ""
        return f"Medians over members of c_IMA with all pixels weighted alike, in nats: {medians}.{more}"

    def orthogonal(images: ImageSet) -> ClaimSpec[OrthogonalityResult, object, Sequence[float]]:
        return ClaimSpec(
            sentence=f"On {images.title}, the columns of the decoder's Jacobian are orthogonal.",
            source=f"{PAPER}, Theorem 1 (b)",
            measure=on_images(images, lambda results, _: [weighted_contrast(r) for r in results if r.measured.columns]),
            criterion=Bound("c_IMA, weighted as by the likelihood, in nats,", at_most(0.1)),
            note=on_images(images, contrasts),
            requires=(on_images(images, optimum_reached),),
            family="Theorem 1 (b)",
            looks=looks(settings, len(OBJECTIVES)),
            robust_over=(0.02, 0.1, 0.5),
        )

    rotated = ClaimSpec[OrthogonalityResult, DisentanglingSettings, Sequence[float]](
        sentence="Trained decoders are closer to orthogonal than the same decoders with randomly rotated latents.",
        source=f"{PAPER}, Theorem 1 (b), in numbers that the paper does not give",
        measure=lambda results, _: ratios(results),
        criterion=Bound("OD-Score / OD-Score with rotated latents", below(1.0), statistic="largest"),
        note=median_ratios,
        family="Theorem 1 (b)",
        looks=looks(settings, len(sets) * len(OBJECTIVES)),
    )
    return [rotated, *(orthogonal(images) for images in sets)]


def random_directions_claim(
    settings: DisentanglingSettings, groups: int
) -> ClaimSpec[OrthogonalityResult, DisentanglingSettings, Sequence[float]]:
    return ClaimSpec(
        sentence="Trained decoders are closer to orthogonal than random directions of the same norms.",
        source="Beyond the paper: a baseline that is found here to be no fair one",
        measure=lambda results, _: [s.trained / s.random for s in od_scores(results).values() if s.random],
        criterion=Bound("OD-Score / OD-Score of random directions", below(1.0), statistic="largest"),
        if_refuted=(
            "In the hundreds of dimensions of an image, random directions are nearly orthogonal (cosines of about "
            "1/√n). The same decoder with rotated latents is the fair comparison; it was added when this was known."
        ),
        looks=looks(settings, groups),
    )


def slope_claims(settings: DisentanglingSettings, groups: int) -> Claims:
    """Theorem 1 (c): posterior variances are inverse to squared column norms."""

    def claim(
        sentence: str, source: str, columns: str, family: str = ""
    ) -> ClaimSpec[OrthogonalityResult, DisentanglingSettings, Sequence[float]]:
        def fits(results: Results) -> list[SlopeFit]:
            found = [getattr(r.measured.inverse_squares, columns) for r in results]
            return [fit for fit in found if fit is not None]

        def note(results: Results, _: object) -> str:
            medians = [
                f"{show(median([fit.slope for fit in found]))} on {images.title}"
                for images, own in by_images(results).items()
                if (found := fits(own))
            ]
            r2 = [fit.r2 for fit in fits(results)]
            return f"Medians: {', '.join(medians)}. Median R²: {median(r2):.2f}." if r2 else ""

        return ClaimSpec(
            sentence=sentence,
            source=source,
            measure=lambda results, _: [fit.slope for fit in fits(results)],
            criterion=Bound("slope of logarithms, with a constant per image,", within(-1.0, 0.2)),
            note=note,
            if_refuted=(
                "The theorem assumes a Gaussian likelihood and columns so long that the prior does not matter: then "
                "σ_j² = β/(γ²‖c_j‖²). Under a Bernoulli likelihood every pixel has the weight 1/(x̂(1 - x̂)), and "
                "latents that are hardly used have σ² near 1 whatever their column is."
            ),
            requires=(optimum_reached,),
            family=family,
            looks=looks(settings, groups),
            robust_over=(0.1, 0.15, 0.2, 0.3),
        )

    proportional = "Posterior variances σ_j² are proportional to 1/‖c_j‖², c_j the columns of the"
    theorem = "Theorem 1 (c)"
    return [
        claim(f"{proportional} Jacobian.", f"{PAPER}, {theorem}", "jacobian", theorem),
        claim(f"{proportional} local decoder's matrix.", f"{PAPER}, {theorem}", "local", theorem),
        claim(
            "With pixels weighted by their inverse variance, 1/(1/σ_j² - 1) is proportional to 1/‖c_j‖².",
            "Beyond the paper: Eq. 12 of Reizinger et al. 2022 for a Bernoulli likelihood",
            "weighted",
        ),
    ]


def drawn_distance(measured: OrthogonalityMeasurement) -> float:
    """The expected squared distance between draws of nearest neighbours, over latents in use.

    Eq. 58 sums the KL over latents in use. A latent that is not in use adds nothing to the KL and up to 2 to the
    distance. Runs that did not measure it have the distances of means, and variances at a few images.
    """
    if not isnan(measured.neighbours.in_use) or not measured.latents_in_use:
        return measured.neighbours.in_use
    spread = np.reshape(measured.variances, (-1, len(measured.latents_in_use))).mean(0).sum()
    return measured.neighbours.mean + 2 * float(spread)


def of_means(measured: OrthogonalityMeasurement) -> float:
    return measured.neighbours.mean


def neighbour_claims(sets: Sequence[ImageSet], settings: DisentanglingSettings) -> Claims:
    """Theorem 2 (b): codes of neighbours are closer at a lower KL; of linear VAEs exactly, and over trained models."""

    of_wide_posteriors = (
        "The distance is between draws, E‖z_i - z_k‖² = ‖μ_i - μ_k‖² + Σ_j (σ_ij² + σ_kj²), and posteriors are wider "
        "at a lower KL. The proof compares means."
    )

    def pairs(distance: Callable[[OrthogonalityMeasurement], float]) -> Callable[[Results], Pairs]:
        def measure(own: Results) -> Pairs:
            used = [r.measured for r in own if r.measured.latents_in_use]
            return Pairs([m.kl for m in used], [distance(m) for m in used])

        return measure

    def all_latents(results: Results, _: object) -> str:
        p = pairs(lambda m: m.neighbours.sampled)(results)
        few = all(isnan(r.measured.neighbours.in_use) for r in results)
        how = "Variances are those at 16 images, and distances of means include latents that are not in use. "
        every = f"Over all latents ρ = {rank_test(list(p.x), list(p.y))[0]:.2f}" if len(p.x) > 2 else ""
        why = "each that is not in use adds up to 2 to the distance and nothing to the KL"
        return f"{how if few else ''}{every}: {why}." if every else ""

    def trained(
        codes: str, distance: Callable[[OrthogonalityMeasurement], float]
    ) -> ClaimSpec[OrthogonalityResult, object, Pairs]:
        return ClaimSpec(
            sentence=f"Codes of neighbouring images are closer in models with a lower KL: {codes}.",
            source=f"{PAPER}, Theorem 2 (b), over trained models",
            measure=ranked_within(pairs(distance)),
            criterion=pooled_correlation(1),
            note=each_image_set(pairs(distance)),
            looks=looks(settings, len(sets) * len(OBJECTIVES)),
        )

    def on_one(
        images: ImageSet, codes: str, distance: Callable[[OrthogonalityMeasurement], float]
    ) -> ClaimSpec[OrthogonalityResult, object, Pairs]:
        claim = trained(codes, distance)
        return replace(
            claim,
            sentence=f"On {images.title}, codes of neighbours are closer in models with a lower KL: {codes}.",
            measure=on_images(images, lambda results, _: pairs(distance)(results)),
            criterion=RankCorrelation(1),
            note=on_images(images, all_latents) if distance is drawn_distance else "",
            if_refuted=of_wide_posteriors,
            family="Theorem 2",
            looks=looks(settings, len(OBJECTIVES)),
        )

    def along_beta(codes: str, of_draws: bool) -> ClaimSpec[OrthogonalityResult, object, Sequence[float]]:
        def steps(_: Results, __: object) -> list[float]:
            return np.diff([step.draws if of_draws else step.means for step in linear_vaes_along_beta()]).tolist()

        return ClaimSpec(
            sentence=f"Of linear VAEs at their optimum, neighbours are closer at a lower KL (a higher β): {codes}.",
            source=f"{PAPER}, Theorem 2 (b), in closed form",
            measure=steps,
            criterion=Bound(
                "change of the squared distance from one β to the next", below(0.0), "largest", "steps", exact=True
            ),
            note="All latents are in use at every β, and the KL falls at every step.",
            if_refuted=of_wide_posteriors,
            kind=Statement.MATHEMATICAL,
        )

    relative = replace(
        trained("mean codes, relative to the typical distance between codes", lambda m: m.neighbours.relative),
        source="Beyond the paper: a lower KL shrinks all distances between means",
    )
    kinds = (("draws of latents in use", drawn_distance), ("mean codes", of_means))
    return [
        along_beta("draws", True),
        along_beta("means", False),
        *(on_one(images, codes, distance) for images in sets for codes, distance in kinds),
        relative,
    ]


def columns_of(results: Results) -> dict[str, Values]:
    """What the tables show of every member, by label."""
    by_cell = {r.cell: r.measured for r in results}
    scores = od_scores(results)
    columns = {cell: m.columns for cell, m in by_cell.items() if m.columns is not None}
    gaps = {
        "MIG": "mig",
        "MIG without information": "mig_floor",
        "MIG of posteriors": "aggregated_mig",
        "MIG-sup": "mig_sup",
        "MIG-sup of posteriors": "aggregated_mig_sup",
    }
    return {
        **{label: {c: getattr(m.disentanglement, gap) for c, m in by_cell.items()} for label, gap in gaps.items()},
        "OD-Score": {cell: s.trained for cell, s in scores.items()},
        "rotated latents": {cell: s.rotated for cell, s in scores.items()},
        "random directions": {cell: s.random for cell, s in scores.items()},
        "all latents": trained_scores(results, "all_latents"),
        "as published": trained_scores(results, "published"),
        "c_IMA of J": {cell: c.contrast for cell, c in columns.items()},
        "squared cosine": {cell: c.gram_share for cell, c in columns.items()},
        "latents in use": {cell: float(len(m.latents_in_use)) for cell, m in by_cell.items()},
        "KL": {cell: m.kl for cell, m in by_cell.items()},
    }


def known_values(values: Values, results: Results) -> list[float]:
    return [values[r.cell] for r in results if r.cell in values]


def tables_of(results: Results) -> list[ReportTable]:
    """The three objectives, the highest median MIG first, with intervals over seeds; and medians of all columns."""
    columns = columns_of(results)
    groups = [
        (images, objective, {label: known_values(values, own) for label, values in columns.items()})
        for images, objective, own in by_model(results)
    ]
    sets = list(by_images(results))
    ranked = sorted(groups, key=lambda g: (sets.index(g[0]), -median(g[2]["MIG"]) if g[2]["MIG"] else 0.0))

    def with_interval(values: Sequence[float]) -> str | None:
        if not values:
            return None
        low, high = median_interval(values)
        return f"{median(values):.3f} ({low:.3f} to {high:.3f})"

    ranking = [
        {"data": images.title, "model": OBJECTIVES[objective], "members": len(found["MIG"])}
        | {
            label: with_interval(found[label])
            for label in ("MIG", "MIG of posteriors", "MIG-sup", "MIG-sup of posteriors", "OD-Score")
        }
        for images, objective, found in ranked
    ]
    medians = [
        {"data": images.title, "model": OBJECTIVES[objective]}
        | {label: median(own) if own else None for label, own in found.items() if label != "MIG-sup of posteriors"}
        for images, objective, found in groups
    ]
    return [
        ReportTable("Objectives by MIG: medians over seeds with 95 % bootstrap intervals", ranking),
        ReportTable("Tables 4 to 6: medians over seeds", medians),
    ]


# figures --------------------------------------------------------------------------------------


def draw_scores(results: Results) -> Figure:
    """The MIG of every model against its OD-Score, a panel per image set."""
    groups = by_images(results)
    figure, axes = figures.row_of_panels(max(1, len(groups)), width=4.0)
    for axis, (images, own) in zip(axes, groups.items(), strict=False):
        _draw_points(axis, own, mig, "MIG", title=images.title_in_lines)
    figures.shared_legend(figure, axes[0])
    return figure


def _draw_points(axis: Axes, own: Results, gap: Gap, label: str, *, title: str) -> None:
    scores = trained_scores(own)
    for objective, model in OBJECTIVES.items():
        known = [r for r in of_objective(own, objective) if r.cell in scores]
        figures.plot_points(axis, [scores[r.cell] for r in known], [gap(r.measured) for r in known], label=model)
    figures.format_axis(axis, title=title, x="OD-Score (0: orthogonal)", y=label, log="", legend=False)
    axis.grid(visible=True)


def draw_figure_4(results: Results) -> Figure:
    groups = by_images(results)
    figure, axes = figures.grid_of_panels(max(1, len(groups)), 4, width=3.3, height=3.1)
    for row, (images, own) in enumerate(groups.items()):
        for column, (label, gap) in enumerate((("MIG", mig), ("MIG-sup", mig_sup))):
            strips, points = axes[4 * row + column], axes[4 * row + column + 2]
            values = [[gap(r.measured) for r in of_objective(own, objective)] for objective in OBJECTIVES]
            figures.plot_strips(strips, list(OBJECTIVES.values()), values, label=label)
            strips.set_ylim(bottom=0)
            title = f"{images.title_in_lines}: {label}"
            figures.format_axis(strips, title=title, x="", y=label, log="", legend=False)
            _draw_points(points, own, gap, label, title=f"{label} and OD-Score")
    figures.shared_legend(figure, axes[2])
    return figure


def draw_angles(results: Results) -> Figure:
    """Mean angles between columns of the Jacobian, for the first member of every model with two latents in use."""
    figure, axes = figures.grid_of_panels(max(1, len(by_images(results))), len(OBJECTIVES), width=2.9, height=2.9)
    shaded: AxesImage | None = None
    for axis, (images, objective, own) in zip(axes, by_model(results), strict=False):
        axis.set_title(f"{images.title_in_lines}, {OBJECTIVES[objective]}", fontsize=10)
        shaded = _draw_angle_map(axis, [r.measured for r in own]) or shaded
    if shaded is not None:
        figure.colorbar(shaded, ax=list(axes), shrink=0.7, label="degrees (90: orthogonal)")
    return figure


def _draw_angle_map(axis: Axes, members: Sequence[OrthogonalityMeasurement]) -> AxesImage | None:
    known = [(m.latents_in_use, m.columns.angles) for m in members if m.columns is not None]
    if not known:
        axis.text(0.5, 0.5, "fewer than two\nlatents in use", ha="center", va="center", transform=axis.transAxes)
        axis.set_axis_off()
        return None
    latents, flat = known[0]
    angles = np.reshape(flat, (len(latents), len(latents)))
    np.fill_diagonal(angles, np.nan)
    for i, j in product(range(len(latents)), repeat=2):
        if i != j:
            colour = "white" if angles[i, j] < 60 else "#10151a"
            axis.text(j, i, f"{angles[i, j]:.0f}", ha="center", va="center", fontsize=8, color=colour)
    names = [f"z{k}" for k in latents]
    axis.set_xticks(range(len(latents)), names)
    axis.set_yticks(range(len(latents)), names)
    axis.tick_params(length=0)
    return axis.imshow(angles, cmap="viridis", vmin=0, vmax=90)


def draw_theorems(results: Results) -> Figure:
    figure, axes = figures.row_of_panels(3, width=4.0)
    first = [min(own, key=lambda r: r.cell.seed) for _, _, own in by_model(results) if own]
    for objective, label in OBJECTIVES.items():
        shown = [r.measured for r in of_objective(first, objective)]
        norms, variances = [v for m in shown for v in m.norms], [v for m in shown for v in m.variances]
        axes[0].plot(norms, variances, ".", markersize=3, alpha=0.5, label=label)
    figures.format_axis(axes[0], title="Theorem 1 (c)", x="‖c_j‖, column of the Jacobian", y="σ_j²")
    for axis, kind, distance in zip(axes[1:], ("draws", "means"), (drawn_distance, of_means), strict=True):
        for objective, label in OBJECTIVES.items():
            own = [r.measured for r in of_objective(results, objective) if r.measured.latents_in_use]
            figures.plot_points(axis, [m.kl for m in own], [distance(m) for m in own], label=label)
        y = "mean squared distance of neighbours"
        figures.format_axis(axis, title=f"Theorem 2 (b): {kind}", x="KL (nats)", y=y, log="")
    return figure


# experiment -----------------------------------------------------------------------------------


class OrthogonalityExperiment(DisentanglingExperiment[OrthogonalityMeasurement]):
    info = EXPERIMENTS["orthogonality"]
    about = (
        "VAE, β-VAE and β-TCVAE are trained on images with known factors. Disentanglement is measured by MIG and "
        "MIG-sup of mean codes, and of the posteriors through the aggregated posterior. Orthogonality is measured by "
        "the OD-Score of the local decoder's matrix at test images; lower is more orthogonal. All models use the same "
        "images and the same fit. The score is computed over latents in use, with V aligned to the identity before it "
        "is compared. The score as published is shown next to it, and so are the contrast c_IMA and the mean squared "
        "cosine of the Jacobian's columns, which need no alignment, and the scores of random directions. Claims about "
        "the order of models are about these models as they were trained; claims about minima of the loss need members "
        "that have converged. "
        f"{DisentanglingSettings.smaller_profiles}"
    )
    measured_type = OrthogonalityMeasurement
    shares_members_with = ("local-nonlinearity",)

    def measure(
        self, cell: DisentanglingCell, member: Member, data: FactorData, settings: DisentanglingSettings
    ) -> OrthogonalityMeasurement:
        x = data.observations.test
        mean, variance = (t.detach() for t in member.encode(x))
        judged = regime.of_model(member, x, decoder=False)
        in_use = [kind != "passive" for kind in judged.kind]
        latents = [k for k in np.argsort(-judged.kl).tolist() if in_use[k]]
        z, spread = mean[: settings.points].double(), variance[: settings.points].double()
        J = theory.jacobian(member.decode, z)
        M = orthogonality.local_fit(member.decode, z, spread, draws=settings.draws).slope
        weights = _pixel_weights(member, z)
        first, shown = slice(1000), slice(16)  # images with nearest neighbours, and those whose columns are drawn
        return OrthogonalityMeasurement(
            disentanglement=_disentanglement(mean, variance, data.test_factors, in_use),
            kl=float(judged.kl.sum()),
            latents_in_use=tuple(latents),
            od_distances=ODDistances(
                in_use=_distances(M[:, :, latents], align=True),
                all_latents=_distances(M, align=True),
                published=_distances(M, align=False),
            ),
            columns=_columns(J[:, :, latents], M[:, :, latents], weights),
            inverse_squares=_inverse_squares(spread, J, M, weights, latents),
            norms=floats(J.norm(dim=1)[shown][:, latents]),
            variances=floats(spread[shown][:, latents]),
            neighbours=_neighbours(x[first], mean[first], variance[first], latents, member.seed),
            mig_curve=tuple(member.history.get("mig", ())),
        )

    def claims(self, settings: DisentanglingSettings) -> Claims:
        sets = self.image_sets(settings)
        groups = len(sets) * len(OBJECTIVES)
        return [
            *correlation_claims(settings, groups),
            *orthogonality_claims(sets, settings),
            random_directions_claim(settings, groups),
            *slope_claims(settings, groups),
            *neighbour_claims(sets, settings),
            *(claim for images in sets for claim in claims_on(images, settings)),
        ]

    def comparisons(self, results: Results, settings: DisentanglingSettings) -> list[Comparison]:
        of_mig = (
            "Published values are those of the official images. Rendered images have the structure of the official "
            "data set, but are not the same images, and are smaller in the quick and laptop profiles: their values "
            "stand beside the published ones, without a ratio. The paper does not say which estimator it uses; that of "
            "Chen et al. 2018, from the posteriors, is the usual one with a β-TCVAE, and bins of mean codes are the "
            "other common choice."
        )
        of_od = (
            "Scores are relative to the largest among the models that are compared, so their level cannot be compared "
            "across papers. The authors' script also fits the matrix with an orthogonality weight that differs between "
            "models."
        )
        columns = columns_of(results)
        known = known_numbers("orthogonality")

        def panel(table: str, quantity: str, label: str, column: str, why: str) -> Comparison:
            rows = compare_models(
                results,
                lambda own: known_values(columns[label], own),
                lambda data, objective: known.get(data, {}).get(objective, {}).get(column),
            )
            return Comparison(table, quantity, rows, why)

        return [
            panel("Tab. 4", "MIG of posteriors", "MIG of posteriors", "mig", of_mig),
            panel("Tab. 4", "MIG of mean codes", "MIG", "mig", of_mig),
            panel("Tab. 5", "MIG-sup of posteriors", "MIG-sup of posteriors", "mig_sup", of_mig),
            panel("Tab. 5", "MIG-sup of mean codes", "MIG-sup", "mig_sup", of_mig),
            panel("Tab. 6", "OD-Score as published", "as published", "od", of_od),
        ]

    def figures(self, results: Results, settings: DisentanglingSettings) -> list[ReportFigure]:
        scores = (
            "Figure 4: every dot is a trained model. The paper expects dots to fall from left to right: the less "
            "orthogonal the columns of the local decoder over latents in use, the less disentangled the codes."
        )
        figure_4 = (
            "Figure 4 with the MIG-sup: every dot is a trained model. Left: disentanglement of the codes, by model. "
            "Right: the same against the OD-Score of the local decoder over latents in use."
        )
        angles = (
            "Angles between columns of the Jacobian, from 0° (parallel) to 90°, with all pixels weighted alike, "
            "averaged over test images, for one member of each model and the latents it uses, by decreasing KL."
        )
        theorems = (
            "Left: posterior variances against column norms, at 16 images of one member of each model and image set; "
            "the theorem predicts lines of slope -2. Middle and right: distance between the codes of nearest images, "
            "of draws of the latents in use and of means. The theorem predicts that they rise with the KL."
        )
        return [
            ReportFigure("a_scores", draw_scores(results), scores),
            ReportFigure("a_figure_4", draw_figure_4(results), figure_4),
            ReportFigure("b_angles", draw_angles(results), angles),
            ReportFigure("c_theorems", draw_theorems(results), theorems),
        ]

    def tables(self, results: Results, settings: DisentanglingSettings) -> list[ReportTable]:
        return tables_of(results)


def _disentanglement(mean: Tensor, variance: Tensor, factors: Tensor, in_use: list[bool]) -> Disentanglement:
    """Both gaps, of means by bins and of posteriors; MIG-sup over latents in use."""
    binned, posteriors = metrics.mig(mean, factors), metrics.aggregated_mig(mean, variance, factors, active=in_use)
    return Disentanglement(
        mig=binned.score,
        mig_floor=binned.floor,
        mig_sup=metrics.mig_sup(mean, factors, active=in_use).score,
        aggregated_mig=posteriors.score,
        aggregated_mig_sup=posteriors.sup,
    )


def _distances(matrices: Float[Tensor, "P n d"], *, align: bool) -> Distances:
    """From orthogonal columns, at every image; empty without latents in use."""
    if not matrices.shape[2]:
        return Distances((), (), ())
    found = orthogonality.od_report(matrices, align=align, null_draws=4)  # per image
    return Distances(floats(found.distances), floats(found.null_distances), floats(found.rotated_distances))


def _pixel_weights(member: Member, z: Float[Tensor, "P d"]) -> Float[Tensor, "P n"]:
    """The curvature of -log p(x|z) in the mean of a pixel: 1 / (x̂ (1 - x̂)) if it is Bernoulli, else constant."""
    output = member.decode(z)
    return 1 / (output * (1 - output)).clamp(min=1e-6) if member.likelihood == "bernoulli" else torch.ones_like(output)


def _columns(
    J: Float[Tensor, "P n d"], M: Float[Tensor, "P n d"], weights: Float[Tensor, "P n"]
) -> ColumnStatistics | None:
    """Measures of orthogonality that need no alignment; None with fewer than two columns."""
    if J.shape[2] < 2:
        return None
    return ColumnStatistics(
        contrast=float(orthogonality.column_contrast(J).median()),
        gram_share=float(orthogonality.gram_share(J).mean()),
        local_contrast=float(orthogonality.column_contrast(M).median()),
        angles=floats(orthogonality.column_angles(J).nanmean(0)),
        weighted_contrast=float(orthogonality.column_contrast(J * weights.sqrt().unsqueeze(2)).median()),
    )


def _inverse_squares(
    variance: Float[Tensor, "P d"],
    J: Float[Tensor, "P n d"],
    M: Float[Tensor, "P n d"],
    weights: Float[Tensor, "P n"],
    latents: list[int],
) -> InverseSquares:
    """Theorem 1 (c) with columns of J and of the local decoder, and in the form of the likelihood.

    Under a Bernoulli likelihood an optimal posterior has 1/σ_j² - 1 = Σ_i J_ij² / (x̂_i (1 - x̂_i)) / β, to first order.
    """

    def slope(variance: Float[Tensor, "P d"], norms: Float[Tensor, "P d"]) -> SlopeFit | None:
        """None if no slope is defined: fewer than two latents in use, or columns of equal norm."""
        try:
            line = orthogonality.inverse_square(variance[:, latents], norms[:, latents].clamp(min=1e-12))
        except InputError:
            return None
        return SlopeFit(line.slope, line.r2)

    weighted_norms = (J.square() * weights.unsqueeze(2)).sum(1).sqrt()
    return InverseSquares(
        jacobian=slope(variance, J.norm(dim=1)),
        local=slope(variance, M.norm(dim=1)),
        weighted=slope(1 / (1 / variance - 1).clamp(min=1e-6), weighted_norms),
    )


def _neighbours(x: Tensor, mean: Tensor, variance: Tensor, latents: list[int], seed: int) -> NeighbourDistances:
    """Theorem 2 (b): of samples, as printed; of means; and of means relative to typical distances between codes."""
    noise = torch.randn(mean.shape, generator=randomness.generator(seed, "neighbours"))
    sampled = mean + variance.sqrt() * noise
    return NeighbourDistances(
        sampled=float(orthogonality.neighbour_distance(x, sampled, typical=False).square().mean()),
        mean=float(orthogonality.neighbour_distance(x, mean, typical=False).square().mean()),
        relative=float(orthogonality.neighbour_distance(x, mean).square().mean()),
        in_use=float(expected_distance(x, mean[:, latents], variance[:, latents]).mean()) if latents else 0.0,
    )


EXPERIMENT = OrthogonalityExperiment()
