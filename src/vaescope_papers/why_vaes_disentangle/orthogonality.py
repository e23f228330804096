"""Orthogonality of decoders and disentanglement (Bhowal et al. 2024, Tabs. 4 to 6, Fig. 4, Theorems 1 and 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

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
from vaescope.report import figures
from vaescope_papers.claims import (
    ClaimSpec,
    ClaimSpecs,
    Criterion,
    lasting_verdict,
    late_value,
    members_converged,
    settled,
)
from vaescope_papers.criteria import Bound, Groups, LargerGroup, Pairs, RankCorrelation, at_least, below, within
from vaescope_papers.experiment import ReportFigure, ReportTable
from vaescope_papers.published import published
from vaescope_papers.results import Result
from vaescope_papers.statistics import Comparison, median, median_interval, rank_test, relative_ranks
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
    of_objective,
    on_images,
)

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


def lasting(
    criterion: Criterion[D], measure: Callable[[Gap], Callable[[Results, object], D]], gap: Gap
) -> Callable[[Results, object], str | None]:
    """A condition of claims about the MIG: they fail at all late epochs, given everything else that was measured at the
    end. The MIG-sup is not recorded after every epoch; claims about it need the MIG to have settled.
    """

    def late(results: Results, part: float | None) -> D:
        return measure(mig if part is None else lambda found: late_value(found.mig_curve, part))(results, None)

    if gap is mig:
        return lasting_verdict(criterion, late, lambda r: r.measured.mig_curve, "MIG")
    # the tolerance is a convention, like the other limits of the MIG below
    return settled("MIG", lambda r: r.measured.mig_curve, tolerance=0.02)


def claims_on(images: ImageSet) -> Claims:
    """The order of the objectives; on dSprites also how well the best one separates the factors."""
    refuted = (
        "The paper does not say for how long it trains, and its images are the official ones at 64 x 64 pixels. The "
        "table shows which members have few latents in use."
    )
    known: Mapping[str, Mapping[str, float]] = published("why_vaes_disentangle")["orthogonality"].get(images.data, {})

    def larger(table: str, name: str, gap: Gap, objective: str) -> ClaimSpec[OrthogonalityResult, object, Groups]:
        def measure(gap: Gap) -> Callable[[Results, object], Groups]:
            return lambda results, _: Groups(
                *([gap(r.measured) for r in of_objective(results, o)] for o in (objective, "vae"))
            )

        title, column = OBJECTIVES[objective], name.lower().replace("-", "_")
        criterion = LargerGroup(name, title, OBJECTIVES["vae"])
        values = [f"{known[o][column]:g}" for o in (objective, "vae") if o in known]
        return ClaimSpec(
            sentence=f"On {images.title}, a {title} has a higher {name} than a {OBJECTIVES['vae']}.",
            source=f"{PAPER}, {table}",
            measure=on_images(images, measure(gap)),
            criterion=criterion,
            published=" and ".join(values) + " on the official images" if values else None,
            if_refuted=refuted,
            requires=(on_images(images, lasting(criterion, measure, gap)),),
        )

    claims: Claims = [
        larger(table, name, gap, objective)
        for table, name, gap in (("Tab. 4", "MIG", mig), ("Tab. 5", "MIG-sup", mig_sup))
        for objective in ("beta-tcvae", "beta-vae")
    ]
    if images.data != "dsprites":
        return claims

    def of_best(gap: Gap) -> Callable[[Results, object], list[float]]:
        return lambda results, _: [gap(r.measured) for r in of_objective(results, "beta-tcvae")]

    def enough_seeds(results: Results, _: object) -> str | None:
        found = len(of_objective(results, "beta-tcvae"))
        return None if found >= 5 else f"A median over seeds needs 5 of them, this run has {found}."

    criterion = Bound("MIG of β-TCVAEs", at_least(0.35))
    separates = ClaimSpec(
        sentence=f"On {images.title}, a β-TCVAE separates the factors.",
        source=f"{PAPER}, Tab. 4",
        measure=on_images(images, of_best(mig)),
        criterion=criterion,
        published=f"{known['beta-tcvae']['mig']:g} on the official images",
        if_refuted=refuted,
        requires=(on_images(images, enough_seeds), on_images(images, lasting(criterion, of_best, mig))),
    )
    return [separates, *claims]


# claims on all image sets ---------------------------------------------------------------------


def ranked_within(pairs: Callable[[Results], Pairs]) -> Callable[[Results, object], Pairs]:
    """Ranks of both quantities within their image set, over all image sets: levels differ between them."""

    def measure(results: Results, _: object) -> Pairs:
        found = [pairs(own) for own in by_images(results).values()]
        x = [rank for own in found for rank in relative_ranks(own.x)]
        return Pairs(x, [rank for own in found for rank in relative_ranks(own.y)])

    return measure


def correlation_claims() -> Claims:
    """Models that are more orthogonal are more disentangled (Fig. 4)."""

    def claim(
        values: Callable[[Results], Values], score: str, gap: Gap, name: str, source: str, if_refuted: str
    ) -> ClaimSpec[OrthogonalityResult, object, Pairs]:
        def pairs(results: Results, gap: Gap = gap) -> Pairs:
            known = values(results)
            own = [r for r in results if r.cell in known]
            return Pairs([known[r.cell] for r in own], [gap(r.measured) for r in own])

        def per_image_set(results: Results, _: object) -> str:
            found = {images.title: pairs(own) for images, own in by_images(results).items()}
            varied = {title: p for title, p in found.items() if min(len(set(p.x)), len(set(p.y))) > 2}
            tests = {title: rank_test(list(p.x), list(p.y)) for title, p in varied.items()}
            return "".join(f"On {title}: ρ = {rho:.2f}, p = {p:.2g}. " for title, (rho, p) in tests.items()).strip()

        def wide_range(results: Results, _: object) -> str | None:
            """Some model is disentangled, so that a correlation with disentanglement can show."""
            if not results or any(gap(r.measured) >= 0.3 for r in results):
                return None
            return f"All models have a {name} below 0.3: the range is too small to decide."

        criterion = RankCorrelation(-1, over="members (ranked within their image set)")
        late = lasting(criterion, lambda other: ranked_within(lambda own: pairs(own, other)), gap)
        return ClaimSpec(
            sentence=f"Models with a higher {score} have a lower {name}.",
            source=source,
            measure=ranked_within(pairs),
            criterion=criterion,
            note=per_image_set,
            if_refuted=if_refuted,
            requires=(wide_range, late),
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
    of_contrast = (
        "An optimal encoder favours orthogonal columns in every decoder, disentangled or not: a VAE may be orthogonal "
        "along axes that mix the factors."
    )
    figure = f"{PAPER}, Fig. 4"
    return [
        claim(trained_scores, "OD-Score", mig, "MIG", f"{figure} (i) to (l)", of_weights),
        claim(trained_scores, "OD-Score", mig_sup, "MIG-sup", f"{figure} (m) to (p)", of_weights),
        claim(
            lambda own: trained_scores(own, "published"),
            "OD-Score as published",
            mig,
            "MIG",
            f"{figure}, with the published score",
            of_alignment,
        ),
        claim(
            lambda own: {r.cell: columns.contrast for r in own if (columns := r.measured.columns)},
            "c_IMA of the Jacobian",
            mig,
            "MIG",
            "Beyond the paper",
            of_contrast,
        ),
    ]


def baseline_claims() -> Claims:
    """Trained decoders are closer to orthogonal than two baselines."""

    def ratios(baseline: str) -> Callable[[Results, object], list[float]]:
        return lambda results, _: [
            score.trained / other for score in od_scores(results).values() if (other := getattr(score, baseline))
        ]

    return [
        ClaimSpec(
            sentence="Every trained decoder is closer to orthogonal than random directions of the same norms.",
            source=f"{PAPER}, Theorem 1, in numbers that the paper does not give",
            measure=ratios("random"),
            criterion=Bound("OD-Score / OD-Score of random directions", below(1.0), statistic="largest"),
            if_refuted=(
                "In the hundreds of dimensions of an image, random directions are nearly orthogonal (cosines of about "
                "1/√n). The same decoder with rotated latents is the fair comparison."
            ),
        ),
        ClaimSpec(
            sentence=(
                "Every trained decoder is closer to orthogonal than the same decoder with randomly rotated latents."
            ),
            source="Beyond the paper: random directions are no fair comparison in high dimensions",
            measure=ratios("rotated"),
            criterion=Bound("OD-Score / OD-Score with rotated latents", below(1.0), statistic="largest"),
            note="This claim was added after the comparison with random directions had been refuted.",
            requires=(members_converged(),),
        ),
    ]


def slope_claims() -> Claims:
    """Theorem 1 (c): posterior variances are inverse to squared column norms."""

    def claim(
        sentence: str, source: str, columns: str
    ) -> ClaimSpec[OrthogonalityResult, DisentanglingSettings, Sequence[float]]:
        def fits(results: Results) -> list[SlopeFit]:
            found = [getattr(r.measured.inverse_squares, columns) for r in results]
            return [fit for fit in found if fit is not None]

        def median_r2(results: Results, _: object) -> str:
            values = [fit.r2 for fit in fits(results)]
            return f"Median R² over members: {median(values):.2f}." if values else ""

        return ClaimSpec(
            sentence=sentence,
            source=source,
            measure=lambda results, _: [fit.slope for fit in fits(results)],
            criterion=Bound("slope of logarithms, with a constant per image,", within(-1.0, 0.2)),
            note=median_r2,
            if_refuted=(
                "The theorem assumes a Gaussian likelihood and columns so long that the prior does not matter: then "
                "σ_j² = β/(γ²‖c_j‖²). Under a Bernoulli likelihood every pixel has the weight 1/(x̂(1 - x̂)), and "
                "latents that are hardly used have σ² near 1 whatever their column is."
            ),
            requires=(members_converged(),),
        )

    proportional = "Posterior variances σ_j² are proportional to 1/‖c_j‖², c_j the columns of the"
    return [
        claim(f"{proportional} Jacobian.", f"{PAPER}, Theorem 1 (c)", "jacobian"),
        claim(f"{proportional} local decoder's matrix.", f"{PAPER}, Theorem 1 (c)", "local"),
        claim(
            "With pixels weighted by their inverse variance, 1/(1/σ_j² - 1) is proportional to 1/‖c_j‖².",
            "Beyond the paper: Eq. 12 of Reizinger et al. 2022 for a Bernoulli likelihood",
            "weighted",
        ),
    ]


def neighbour_claims() -> Claims:
    """Theorem 2 (b): codes of neighbours are closer in models with a lower KL."""

    def pairs(distance: str) -> Callable[[Results], Pairs]:
        return lambda own: Pairs([r.measured.kl for r in own], [getattr(r.measured.neighbours, distance) for r in own])

    table = (
        (
            "sampled codes",
            f"{PAPER}, Theorem 2 (b), as printed",
            "sampled",
            "As printed, the distance is between samples: E‖z_i - z_k‖² = ‖μ_i - μ_k‖² + Σ_j (σ_ij² + σ_kj²), and "
            "models with a lower KL have wider posteriors. A collapsed model, with KL 0, has the largest distance, 2d. "
            "The proof compares means.",
        ),
        ("mean codes", f"{PAPER}, Theorem 2 (b), of means", "mean", ""),
        (
            "mean codes, relative to the typical distance between codes",
            "Beyond the paper: a lower KL shrinks all distances between means",
            "relative",
            "A lower KL shrinks all distances between means; relative to them, neighbours are not closer.",
        ),
    )
    return [
        ClaimSpec(
            sentence=f"Codes of neighbouring images are closer in models with a lower KL: {codes}.",
            source=source,
            measure=ranked_within(pairs(distance)),
            criterion=RankCorrelation(1, over="members (ranked within their image set)"),
            if_refuted=if_refuted,
        )
        for codes, source, distance, if_refuted in table
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


def draw_figure_4(results: Results) -> Figure:
    groups = by_images(results)
    figure, axes = figures.grid_of_panels(max(1, len(groups)), 4, width=3.3, height=3.1)
    for row, (images, own) in enumerate(groups.items()):
        scores = trained_scores(own)
        for column, (label, gap) in enumerate((("MIG", mig), ("MIG-sup", mig_sup))):
            strips, points = axes[4 * row + column], axes[4 * row + column + 2]
            values = [[gap(r.measured) for r in of_objective(own, objective)] for objective in OBJECTIVES]
            figures.plot_strips(strips, list(OBJECTIVES.values()), values, label=label)
            strips.set_ylim(bottom=0)
            title = f"{images.title_in_lines}: {label}"
            figures.format_axis(strips, title=title, x="", y=label, log="", legend=False)
            for objective, model in OBJECTIVES.items():
                known = [r for r in of_objective(own, objective) if r.cell in scores]
                x, y = [scores[r.cell] for r in known], [gap(r.measured) for r in known]
                figures.plot_points(points, x, y, label=model)
            x_label = "OD-Score (0: orthogonal)"
            figures.format_axis(points, title=f"{label} and OD-Score", x=x_label, y=label, log="", legend=False)
            points.grid(visible=True)
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
    for axis, distance in zip(axes[1:], ("sampled", "mean"), strict=True):
        for objective, label in OBJECTIVES.items():
            own = [r.measured for r in of_objective(results, objective)]
            distances = [getattr(m.neighbours, distance) for m in own]
            figures.plot_points(axis, [m.kl for m in own], distances, label=label)
        y = "mean squared distance of neighbours"
        figures.format_axis(axis, title=f"Theorem 2 (b): {distance} codes", x="KL (nats)", y=y, log="")
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
        "cosine of the Jacobian's columns, which need no alignment, and the scores of random directions. "
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
            columns=_columns(J[:, :, latents], M[:, :, latents]),
            inverse_squares=_inverse_squares(member, z, spread, J, M, latents),
            norms=floats(J.norm(dim=1)[shown][:, latents]),
            variances=floats(spread[shown][:, latents]),
            neighbours=_neighbours(x[first], mean[first], variance[first], member.seed),
            mig_curve=tuple(member.history.get("mig", ())),
        )

    def claims(self, settings: DisentanglingSettings) -> Claims:
        on_image_sets = [claim for images in self.image_sets(settings) for claim in claims_on(images)]
        return [*on_image_sets, *correlation_claims(), *baseline_claims(), *slope_claims(), *neighbour_claims()]

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
        known: Mapping[str, Mapping[str, Mapping[str, float]]] = published("why_vaes_disentangle")["orthogonality"]

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
        figure_4 = (
            "Figure 4: every dot is a trained model. Left: disentanglement of the codes, by model. Right: the same "
            "against the OD-Score of the local decoder over latents in use. The paper expects dots to fall from left "
            "to right."
        )
        angles = (
            "Angles between columns of the Jacobian, from 0° (parallel) to 90°, averaged over test images, for one "
            "member of each model and the latents it uses, by decreasing KL."
        )
        theorems = (
            "Left: posterior variances against column norms, at 16 images of one member of each model and image set; "
            "the theorem predicts lines of slope -2. Middle and right: distance between the codes of nearest images. "
            "Samples of a model with a low KL are far apart because its posteriors are wide."
        )
        return [
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


def _columns(J: Float[Tensor, "P n d"], M: Float[Tensor, "P n d"]) -> ColumnStatistics | None:
    """Measures of orthogonality that need no alignment; None with fewer than two columns."""
    if J.shape[2] < 2:
        return None
    return ColumnStatistics(
        contrast=float(orthogonality.column_contrast(J).median()),
        gram_share=float(orthogonality.gram_share(J).mean()),
        local_contrast=float(orthogonality.column_contrast(M).median()),
        angles=floats(orthogonality.column_angles(J).nanmean(0)),
    )


def _inverse_squares(
    member: Member,
    z: Float[Tensor, "P d"],
    variance: Float[Tensor, "P d"],
    J: Float[Tensor, "P n d"],
    M: Float[Tensor, "P n d"],
    latents: list[int],
) -> InverseSquares:
    """Theorem 1 (c) with columns of J and of the local decoder, and in the form of the likelihood.

    Under a Bernoulli likelihood an optimal posterior has 1/σ_j² - 1 = Σ_i J_ij² / (x̂_i (1 - x̂_i)) / β, to first order:
    1 / (x̂ (1 - x̂)) is the curvature of -log p(x|z) in the decoder's mean of a pixel.
    """

    def slope(variance: Float[Tensor, "P d"], norms: Float[Tensor, "P d"]) -> SlopeFit | None:
        """None if no slope is defined: fewer than two latents in use, or columns of equal norm."""
        try:
            line = orthogonality.inverse_square(variance[:, latents], norms[:, latents].clamp(min=1e-12))
        except InputError:
            return None
        return SlopeFit(line.slope, line.r2)

    output = member.decode(z)
    bernoulli = member.likelihood == "bernoulli"
    weights = 1 / (output * (1 - output)).clamp(min=1e-6) if bernoulli else torch.ones_like(output)
    weighted_norms = (J.square() * weights.unsqueeze(2)).sum(1).sqrt()
    return InverseSquares(
        jacobian=slope(variance, J.norm(dim=1)),
        local=slope(variance, M.norm(dim=1)),
        weighted=slope(1 / (1 / variance - 1).clamp(min=1e-6), weighted_norms),
    )


def _neighbours(x: Tensor, mean: Tensor, variance: Tensor, seed: int) -> NeighbourDistances:
    """Theorem 2 (b): of samples, as printed; of means; and of means relative to typical distances between codes."""
    noise = torch.randn(mean.shape, generator=randomness.generator(seed, "neighbours"))
    sampled = mean + variance.sqrt() * noise
    return NeighbourDistances(
        sampled=float(orthogonality.neighbour_distance(x, sampled, typical=False).square().mean()),
        mean=float(orthogonality.neighbour_distance(x, mean, typical=False).square().mean()),
        relative=float(orthogonality.neighbour_distance(x, mean).square().mean()),
    )


EXPERIMENT = OrthogonalityExperiment()
