"""Local decoders, linear and with one non-linearity (Bhowal et al. 2024, Tabs. 1 and 2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from vaescope.models import Member
from vaescope.orthogonality import local_fit, loss_split
from vaescope.report import figures
from vaescope_papers.claims import ClaimSpec, ClaimSpecs, PublishedRuns, show
from vaescope_papers.criteria import Bound, PairedSamples, PairedTest, at_most, below
from vaescope_papers.experiment import ReportFigure, ReportTable, TableRow
from vaescope_papers.results import Result
from vaescope_papers.statistics import Comparison, ComparisonRow, compare, median
from vaescope_papers.trained import FactorData
from vaescope_papers.why_vaes_disentangle import EXPERIMENTS, PAPER
from vaescope_papers.why_vaes_disentangle.disentangling import (
    OBJECTIVES,
    TITLES,
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

# measurement ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """One approximation of Δ(ε), per test image, on draws that were not used for fitting."""

    error: tuple[float, ...]
    """E‖approximation - Δ‖²."""
    energy: tuple[float, ...]
    """E‖approximation‖², its estimate of L^stoch."""


@dataclass(frozen=True)
class LossParts:
    """The reconstruction loss and its parts (Eq. 7), averaged over images."""

    total: float
    mean: float
    stochastic: float
    cross: float


@dataclass(frozen=True)
class Fits:
    jacobian: Fit
    """J ε: the decoder's linearisation, which is not fitted."""
    linear: Fit
    """M ε + c, by least squares."""
    nonlinear: Fit
    """a tanh(M ε + b) + c."""


@dataclass(frozen=True)
class LocalMeasurement:
    energy: tuple[float, ...]
    """E‖Δ‖² of every test image."""
    fits: Fits
    loss: LossParts
    cross_share: float
    """The cross term as a share of the loss."""


LocalResult = Result[DisentanglingCell, LocalMeasurement]
Results = Sequence[LocalResult]
FITS = {"jacobian": "J ε (linearisation)", "linear": "M ε + c (least squares)", "nonlinear": "a tanh(M ε + b) + c"}


def error_shares(results: Results, fit: str) -> np.ndarray:
    """Errors of a fit as shares of E‖Δ‖², of all images of all members."""
    shares = [np.divide(getattr(r.measured.fits, fit).error, r.measured.energy) for r in results]
    return np.concatenate(shares) if shares else np.zeros(0)


def estimate_errors(results: Results, fit: str) -> np.ndarray:
    """Distances of the estimates of L^stoch to L^stoch, as shares of it, of all images of all members."""
    shares = [np.divide(getattr(r.measured.fits, fit).energy, r.measured.energy) for r in results]
    return np.abs(np.concatenate(shares) - 1) if shares else np.zeros(0)


class Question(NamedTuple):
    """Is the non-linear fit better than another one, by some measure of its error?"""

    errors: Callable[[Results, str], np.ndarray]
    other: str
    """A key of `FITS`."""
    columns: tuple[str, ...] = ()
    """Of the published errors: the non-linear one, and the other; empty if there are none."""

    def pair(self, results: Results) -> PairedSamples:
        """The errors at every image; images of one member are one unit."""
        units = np.repeat(np.arange(len(results)), [len(r.measured.energy) for r in results])
        return PairedSamples(self.errors(results, "nonlinear"), self.errors(results, self.other), units)

    def by_objective(self, results: Results, _: object) -> dict[str, PairedSamples]:
        """The pair of every objective that has finished members."""
        return {name: self.pair(own) for key, name in OBJECTIVES.items() if (own := of_objective(results, key))}

    def compared(self, results: Results) -> list[ComparisonRow]:
        """Ratios of the errors, medians of members, next to those of the published columns."""
        return compare_models(results, lambda own: self.pair(own).ratios(), self.published_ratio)

    def published_ratio(self, data: str, objective: str) -> float | None:
        """Of two published columns; None where there are none."""
        row = known_numbers("local-nonlinearity").get(data, {}).get(objective)
        return None if row is None or not self.columns else row[self.columns[0]] / row[self.columns[1]]

    def published_ratios(self, data: Sequence[str]) -> tuple[float, ...]:
        """Of all objectives on these data sets."""
        found = [self.published_ratio(name, objective) for name in data for objective in OBJECTIVES]
        return tuple(ratio for ratio in found if ratio is not None)


TABLE_1 = Question(error_shares, "linear", ("nonlinear", "linear"))
TABLE_2 = Question(estimate_errors, "jacobian", ("nonlinear_estimate", "jacobian_estimate"))

# claims ---------------------------------------------------------------------------------------


def failed_fits(results: Results, _: object) -> str:
    """The images at which the non-linear fit is worse than no change at all: a median does not show them."""
    errors = error_shares(results, "nonlinear")
    failed = errors[errors > 1]
    if not len(failed):
        return ""
    return (
        f"{len(failed)} of {len(errors)} non-linear fits are worse on new draws than predicting no change, with errors "
        f"up to {show(float(failed.max()))} of E‖Δ‖². Medians do not show them. The paper takes averages, and in "
        "averages of these shares they would outweigh all others."
    )


def claims_on(images: ImageSet, settings: DisentanglingSettings) -> ClaimSpecs[LocalResult, DisentanglingSettings]:
    questions = (
        (
            "the non-linear local decoder has a smaller error than the linear one",
            "Tab. 1",
            TABLE_1,
            "errors on new draws, non-linear / linear,",
            "The paper's linear map is a network without a non-linearity, trained by gradient descent on each image. "
            "If it is not trained to convergence, its error is larger than that of the best linear map, which is used "
            "here. The paper does not say that errors are measured on held-out draws, and the non-linear network has "
            "more weights to fit its training draws with.",
        ),
        (
            "the non-linear fit estimates L^stoch better than the linearisation J ε",
            "Tab. 2",
            TABLE_2,
            "distances to L^stoch, non-linear / Jacobian,",
            "The paper compares a map that is fitted to draws of Δ with a Jacobian that is not fitted, and sums "
            "estimates over images before it squares their error, so that errors of opposite signs cancel. Here every "
            "image counts.",
        ),
        (
            "the non-linear fit estimates L^stoch better than a fitted linear map",
            "",
            Question(estimate_errors, "linear"),
            "distances to L^stoch, non-linear / linear,",
            "A linear map fitted by least squares already explains most of E‖Δ‖².",
        ),
    )

    def runs(question: Question) -> PublishedRuns | None:
        ratios = question.published_ratios([images.data])
        return PublishedRuns(ratios, "ratios of published means, one per objective") if ratios else None

    return [
        ClaimSpec(
            sentence=f"On {images.title}, {statement}.",
            source=f"{PAPER}, {table}" if table else "Beyond the paper: both maps are fitted",
            measure=on_images(images, question.by_objective),
            criterion=PairedTest(quantity, "objective"),
            if_refuted=if_refuted,
            published_runs=runs(question),
            scale=images.scale(settings),
            note=on_images(images, failed_fits),
            family=table or "both maps fitted",
            looks=looks(settings),
        )
        for statement, table, question, quantity, if_refuted in questions
    ]


def printed_claims() -> ClaimSpecs[LocalResult, DisentanglingSettings]:
    """What the published tables say themselves, on four data sets."""

    def every_entry(table: str, question: Question, note: str) -> ClaimSpec[LocalResult, object, Sequence[float]]:
        return ClaimSpec(
            sentence=f"In {table} as printed, the non-linear map has the smaller error in every entry.",
            source=f"{PAPER}, {table}",
            measure=lambda _, __: question.published_ratios(list(known_numbers("local-nonlinearity"))),
            criterion=Bound("published error / that of the other map", below(1.0), "largest", "entries", exact=True),
            note=note,
        )

    plain = [
        f"{TITLES[data]}, {OBJECTIVES[objective]}"
        for data, rows in known_numbers("local-nonlinearity").items()
        for objective, row in rows.items()
        if not row["stars"]
    ]
    return [
        every_entry("Tab. 1", TABLE_1, "The β-VAE on MPI3D has 0.8043 against 0.5240 of the linear map."),
        every_entry("Tab. 2", TABLE_2, "All differences but one are below 0.04."),
        ClaimSpec(
            sentence="In Tab. 2 as printed, every entry is marked as significant (p < 0.05).",
            source=f"{PAPER}, Tab. 2",
            measure=lambda _, __: [float(len(plain))],
            criterion=Bound("number of entries without a star", at_most(0), over="", exact=True),
            note=f"Without a star: {'; '.join(plain)}.",
        ),
    ]


def cross_term_claim(
    settings: DisentanglingSettings, groups: int
) -> ClaimSpec[LocalResult, DisentanglingSettings, Sequence[float]]:
    def medians(results: Results, _: object) -> str:
        shares = [
            f"{images.title}, {OBJECTIVES[objective]} {median([r.measured.cross_share for r in own]):+.1%}"
            for images, objective, own in by_model(results)
            if own
        ]
        return f"Medians over seeds: {'; '.join(shares)}."

    return ClaimSpec(
        sentence="The cross term between L^μ and L^stoch is at most 5 % of the loss.",
        source=f"{PAPER}, Eq. 7, which omits it",
        measure=lambda results, _: [abs(r.measured.cross_share) for r in results],
        criterion=Bound("|cross term| / loss", at_most(0.05), statistic="largest"),
        note=medians,
        looks=looks(settings, groups),
        robust_over=(0.005, 0.01, 0.02, 0.05),
        if_refuted=(
            "A decoder that is curved within its posterior shifts its mean output, and a trained encoder makes use of "
            "it: the mean code is not the code with the best reconstruction."
        ),
    )


# experiment -----------------------------------------------------------------------------------


class LocalNonlinearityExperiment(DisentanglingExperiment[LocalMeasurement]):
    info = EXPERIMENTS["local-nonlinearity"]
    measured_type = LocalMeasurement
    shares_members_with = ("orthogonality",)
    about = (
        "How a decoder varies within the posterior of a test image, Δ(ε) = f(μ + ε) - f(μ), is approximated by a "
        "linear map and by one non-linearity after a linear map. The linear map is the exact least-squares solution, "
        "and the non-linear fit starts from it. The decoder's own Jacobian, which is not fitted, is compared with "
        "them. Errors are measured on draws of ε that were not used for fitting, as a share of E‖Δ‖². They are "
        "compared image by image, and the images of one trained model count as one, with their median. Claims are "
        f"about the decoders as these runs trained them. {DisentanglingSettings.smaller_profiles}"
    )

    def measure(
        self, cell: DisentanglingCell, member: Member, data: FactorData, settings: DisentanglingSettings
    ) -> LocalMeasurement:
        x = data.observations.test
        mean, variance = (t.detach() for t in member.encode(x))
        points, part = slice(settings.points), slice(256)  # the loss is split at 256 test images
        found = local_fit(
            member.decode, mean[points].double(), variance[points].double(), draws=settings.draws, linearise=True
        )
        parts = loss_split(member.decode, x[part], mean[part], variance[part])
        return LocalMeasurement(
            energy=floats(found.energy),
            fits=Fits(
                jacobian=Fit(floats(found.jacobian_error), floats(found.jacobian_energy)),
                linear=Fit(floats(found.linear_error), floats(found.linear_energy)),
                nonlinear=Fit(floats(found.nonlinear_error), floats(found.nonlinear_energy)),
            ),
            loss=LossParts(
                total=float(parts.total.mean()),
                mean=float(parts.mean.mean()),
                stochastic=float(parts.stochastic.mean()),
                cross=float(parts.cross.mean()),
            ),
            cross_share=parts.cross_share,
        )

    def claims(self, settings: DisentanglingSettings) -> ClaimSpecs[LocalResult, DisentanglingSettings]:
        sets = self.image_sets(settings)
        on_image_sets = [claim for images in sets for claim in claims_on(images, settings)]
        return [*on_image_sets, *printed_claims(), cross_term_claim(settings, len(sets) * len(OBJECTIVES))]

    def comparisons(self, results: Results, settings: DisentanglingSettings) -> list[Comparison]:
        why = (
            "These are ratios, because the paper does not state the unit of its errors. Its linear maps are trained by "
            "gradient descent, ours are exact. Its images are the official ones at 64 x 64, so that rendered images "
            "have no ratio to it. For a β-VAE on MPI3D, its Tab. 1 has a smaller error for the linear map, against its "
            "own claim."
        )
        errors, estimates = TABLE_1.compared(results), TABLE_2.compared(results)
        return [
            Comparison("Tab. 1", "errors, non-linear / linear", errors, why),
            Comparison("Tab. 2", "distances to L^stoch, non-linear / Jacobian", estimates, why),
        ]

    def tables(self, results: Results, settings: DisentanglingSettings) -> list[ReportTable]:
        groups = [
            ({"data": images.title, "model": OBJECTIVES[objective]}, own)
            for images, objective, own in by_model(results)
            if own
        ]

        def of_fits(own: Results, question: Question) -> TableRow:
            errors = {label: median(question.errors(own, fit).tolist()) for fit, label in FITS.items()}
            ratio = compare("", question.pair(own).ratios(), None)
            assert ratio.ours is not None
            name = f"tanh / {'least squares' if question.other == 'linear' else 'linearisation'}, by member"
            return errors | {name: f"{ratio.ours:.3f} ({ratio.lowest:.3f} to {ratio.highest:.3f})"}

        def of_loss(own: Results) -> TableRow:
            parts = {"L": "total", "L^μ": "mean", "L^stoch": "stochastic", "cross term": "cross"}
            return {label: median([getattr(r.measured.loss, part) for r in own]) for label, part in parts.items()}

        return [
            ReportTable(
                "Table 1: median error on new draws, as a share of E‖Δ‖²; ratios with the range of members",
                [{**names, **of_fits(own, TABLE_1)} for names, own in groups],
            ),
            ReportTable(
                "Table 2: median distance of the estimate to L^stoch, as a share of it; ratios as in Table 1",
                [{**names, **of_fits(own, TABLE_2)} for names, own in groups],
            ),
            ReportTable(
                "Parts of the reconstruction loss, medians over members",
                [{**names, **of_loss(own)} for names, own in groups],
            ),
        ]

    def figures(self, results: Results, settings: DisentanglingSettings) -> list[ReportFigure]:
        errors = (
            "Every dot is an image: the error of an approximation of Δ(ε) on new draws, as a share of E‖Δ‖². "
            "Predicting no change at all scores 1; dots far above it are fits that failed. Bars are medians."
        )
        pairs = "The same errors in pairs, one per image. Below the dotted line, the non-linear fit is better."
        return [
            ReportFigure("errors", draw_errors(results), errors),
            ReportFigure("pairs", draw_pairs(results), pairs),
        ]


# figures --------------------------------------------------------------------------------------


def draw_errors(results: Results) -> Figure:
    groups = by_images(results)
    figure, axes = figures.row_of_panels(max(1, len(groups)), width=5.2)
    for axis, (images, own) in zip(axes, groups.items(), strict=False):
        for index, (fit, label) in enumerate(FITS.items()):
            values = [error_shares(of_objective(own, objective), fit).tolist() for objective in OBJECTIVES]
            figures.plot_strips(
                axis, list(OBJECTIVES.values()), values, label=label, offset=0.26 * (index - 1), index=index
            )
        figures.format_axis(axis, title=images.title, x="", y="error on new draws / E‖Δ‖²", log="", legend=False)
        axis.set_yscale("log")
    figures.shared_legend(figure, axes[0])
    return figure


def draw_pairs(results: Results) -> Figure:
    groups = by_images(results)
    figure, axes = figures.row_of_panels(max(1, len(groups)), width=4.6, height=4.2)
    for axis, (images, own) in zip(axes, groups.items(), strict=False):
        for objective, label in OBJECTIVES.items():
            pair = TABLE_1.pair(of_objective(own, objective))
            figures.plot_points(axis, pair.theirs.tolist(), pair.ours.tolist(), label=label)
        low, high = axis.get_xlim()
        axis.plot([max(low, 1e-6), high], [max(low, 1e-6), high], color="#6b7680", lw=1, ls=":", label="equal")
        figures.format_axis(axis, title=images.title, x="error of the linear fit", y="error of the non-linear fit")
    return figure


EXPERIMENT = LocalNonlinearityExperiment()
