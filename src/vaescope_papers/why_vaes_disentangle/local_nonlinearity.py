"""Local decoders, linear and with one non-linearity (Bhowal et al. 2024, Tabs. 1 and 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from vaescope.models import Member
from vaescope.orthogonality import local_fit, loss_split
from vaescope.report import figures
from vaescope_papers.claims import ClaimSpec
from vaescope_papers.criteria import Bound, PairedSamples, PairedTest, at_most, wilcoxon_p
from vaescope_papers.experiment import ReportFigure, ReportTable, TableRow
from vaescope_papers.results import Result
from vaescope_papers.statistics import Comparison, ComparisonRow, compare, median
from vaescope_papers.trained import FactorData
from vaescope_papers.why_vaes_disentangle import LOCAL_NONLINEARITY
from vaescope_papers.why_vaes_disentangle.disentangling import (
    OBJECTIVES,
    PAPER,
    SMALLER_CHANGES,
    DisentanglingCell,
    DisentanglingExperiment,
    DisentanglingSettings,
    ImageSet,
    beside,
    by_images,
    of_objective,
    on_images,
)


@dataclass(frozen=True)
class Fit:
    """One approximation of Δ(ε), per test image, on draws that were not used for fitting."""

    error: tuple[float, ...]
    """E‖approximation - Δ‖²."""
    energy: tuple[float, ...]
    """E‖approximation‖², its estimate of L^stoch."""


@dataclass(frozen=True)
class Fits:
    jacobian: Fit
    """J ε: the decoder's linearisation, which is not fitted."""
    linear: Fit
    """M ε + c, by least squares."""
    nonlinear: Fit
    """a tanh(M ε + b) + c."""


@dataclass(frozen=True)
class LossParts:
    """The reconstruction loss and its parts (Eq. 7), averaged over images."""

    total: float
    mean: float
    stochastic: float
    cross: float


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
PickFit = Callable[[Fits], Fit]
FITS: Mapping[str, PickFit] = {
    "J ε (linearisation)": lambda fits: fits.jacobian,
    "M ε + c (least squares)": lambda fits: fits.linear,
    "a tanh(M ε + b) + c": lambda fits: fits.nonlinear,
}


# published values -----------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedErrors:
    """Errors of one model in Tabs. 1 and 2."""

    linear: float
    nonlinear: float
    jacobian: float
    """Distance of J ε to L^stoch (Tab. 2)."""
    nonlinear_estimate: float
    """Distance of the non-linear fit to L^stoch (Tab. 2)."""


PUBLISHED: Mapping[tuple[str, str], PublishedErrors] = {
    ("dsprites", "vae"): PublishedErrors(0.4693, 0.4166, 0.6680, 0.6643),
    ("dsprites", "beta-vae"): PublishedErrors(0.8394, 0.7829, 0.5243, 0.4907),
    ("dsprites", "beta-tcvae"): PublishedErrors(0.9209, 0.8502, 0.4866, 0.4532),
    ("3dshapes", "vae"): PublishedErrors(0.4856, 0.4266, 0.7344, 0.7316),
    ("3dshapes", "beta-vae"): PublishedErrors(0.8244, 0.7944, 0.7215, 0.7010),
    ("3dshapes", "beta-tcvae"): PublishedErrors(0.8848, 0.8122, 0.7257, 0.6879),
    ("mpi3d", "vae"): PublishedErrors(0.5024, 0.4832, 0.8042, 0.8014),
    ("mpi3d", "beta-vae"): PublishedErrors(0.5240, 0.8043, 0.8001, 0.7908),
    ("mpi3d", "beta-tcvae"): PublishedErrors(0.9646, 0.8624, 0.7836, 0.7818),
    ("3dfaces", "vae"): PublishedErrors(0.4956, 0.4236, 0.6039, 0.5887),
    ("3dfaces", "beta-vae"): PublishedErrors(0.8080, 0.7694, 0.5799, 0.5296),
    ("3dfaces", "beta-tcvae"): PublishedErrors(0.8679, 0.8088, 0.5690, 0.5498),
}


# values per image -----------------------------------------------------------------------------


def error_shares(results: Results, fit: PickFit) -> np.ndarray:
    """Errors as shares of E‖Δ‖², of all images of all members."""
    return _concatenated([np.divide(fit(r.measured.fits).error, r.measured.energy) for r in results])


def estimate_errors(results: Results, fit: PickFit) -> np.ndarray:
    """Distances of the estimates of L^stoch to L^stoch, as shares of it, of all images of all members."""
    return _concatenated([np.abs(np.divide(fit(r.measured.fits).energy, r.measured.energy) - 1) for r in results])


def _concatenated(values: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(values) if values else np.zeros(0)


PairOf = Callable[[Results], PairedSamples]


def error_pair(results: Results) -> PairedSamples:
    """Tab. 1: errors of the non-linear and of the linear fit."""
    return PairedSamples(error_shares(results, lambda f: f.nonlinear), error_shares(results, lambda f: f.linear))


def estimate_pair(results: Results) -> PairedSamples:
    """Tab. 2: L^stoch by the non-linear fit and by the Jacobian."""
    return PairedSamples(
        estimate_errors(results, lambda f: f.nonlinear), estimate_errors(results, lambda f: f.jacobian)
    )


def fitted_estimate_pair(results: Results) -> PairedSamples:
    """L^stoch by the non-linear fit and by the linear one."""
    return PairedSamples(estimate_errors(results, lambda f: f.nonlinear), estimate_errors(results, lambda f: f.linear))


# claims ---------------------------------------------------------------------------------------


def by_objective(pair: PairOf) -> Callable[[Results, object], dict[str, PairedSamples]]:
    """The pair of every objective that has finished members."""
    return lambda results, _: {
        name: pair(own) for objective, name in OBJECTIVES.items() if (own := of_objective(results, objective))
    }


def cross_shares(results: Results, _: object) -> list[float]:
    return [abs(r.measured.cross_share) for r in results]


def cross_note(results: Results, _: object) -> str:
    parts = [
        f"{images.title}, {name} {median([r.measured.cross_share for r in members]):+.1%}"
        for images, own in by_images(results).items()
        for objective, name in OBJECTIVES.items()
        if (members := of_objective(own, objective))
    ]
    return f"Medians over seeds: {'; '.join(parts)}."


def claims(image_sets: Sequence[ImageSet]) -> list[ClaimSpec[LocalResult, DisentanglingSettings, Any]]:
    return [*(claim for images in image_sets for claim in _claims_on(images)), CROSS_TERM]


def _claims_on(images: ImageSet) -> list[ClaimSpec[LocalResult, DisentanglingSettings, Any]]:
    return [
        ClaimSpec(
            sentence=f"On {images.title}, the non-linear local decoder has a smaller error than the linear one.",
            source=f"{PAPER}, Tab. 1",
            measure=on_images(images, by_objective(error_pair)),
            criterion=PairedTest("errors on new draws, non-linear / linear,", "objective"),
            if_refuted=ERRORS_REFUTED,
        ),
        ClaimSpec(
            sentence=f"On {images.title}, the non-linear fit estimates L^stoch better than the linearisation J ε.",
            source=f"{PAPER}, Tab. 2",
            measure=on_images(images, by_objective(estimate_pair)),
            criterion=PairedTest("distances to L^stoch, non-linear / Jacobian,", "objective"),
            if_refuted=ESTIMATES_REFUTED,
        ),
        ClaimSpec(
            sentence=f"On {images.title}, the non-linear fit estimates L^stoch better than a fitted linear map.",
            source="Beyond the paper: both maps are fitted",
            measure=on_images(images, by_objective(fitted_estimate_pair)),
            criterion=PairedTest("distances to L^stoch, non-linear / linear,", "objective"),
            if_refuted="A linear map fitted by least squares already explains most of E‖Δ‖².",
        ),
    ]


ERRORS_REFUTED = (
    "The paper's linear map is a network without a non-linearity, trained by gradient descent on each image. If it is "
    "not trained to convergence, its error is larger than that of the best linear map, which is used here. The paper "
    "does not say that errors are measured on held-out draws, and the non-linear network has more weights to fit its "
    "training draws with."
)
ESTIMATES_REFUTED = (
    "The paper compares a map that is fitted to draws of Δ with a Jacobian that is not fitted, and sums estimates over "
    "images before it squares their error, so that errors of opposite signs cancel. Here every image counts."
)
CROSS_TERM: ClaimSpec[LocalResult, DisentanglingSettings, Sequence[float]] = ClaimSpec(
    sentence="The cross term between L^μ and L^stoch is negligible.",
    source=f"{PAPER}, Eq. 7, which omits it",
    measure=cross_shares,
    criterion=Bound("|cross term| / loss", at_most(0.05), statistic="largest"),
    note=cross_note,
    if_refuted=(
        "A decoder that is curved within its posterior shifts its mean output, and a trained encoder makes use of it: "
        "the mean code is not the code with the best reconstruction."
    ),
)


# comparisons and tables -----------------------------------------------------------------------

WHY = (
    "These are ratios, because the paper does not state the unit of its errors. Its linear maps are trained by "
    "gradient descent, ours are exact. Its images are the official ones at 64 x 64, so that rendered images have no "
    "ratio to it. For a β-VAE on MPI3D, its Tab. 1 has a smaller error for the linear map, against its own claim."
)


def comparisons(results: Results) -> list[Comparison]:
    tab1, tab2 = "errors, non-linear / linear", "distances to L^stoch, non-linear / Jacobian"
    return [
        Comparison("Tab. 1", tab1, _compared(results, error_pair, lambda p: p.nonlinear / p.linear), WHY),
        Comparison("Tab. 2", tab2, _compared(results, estimate_pair, lambda p: p.nonlinear_estimate / p.jacobian), WHY),
    ]


def _compared(results: Results, pair: PairOf, published: Callable[[PublishedErrors], float]) -> list[ComparisonRow]:
    """A row for every image set and objective that the paper has values for."""
    rows = []
    for (images, own), (objective, name) in product(by_images(results).items(), OBJECTIVES.items()):
        theirs = PUBLISHED.get((images.data, objective))
        ours, other = pair(of_objective(own, objective))
        ratios = (ours / np.maximum(other, np.finfo(float).tiny)).tolist()
        rows.append(
            compare(f"{images.title}, {name}", ratios, beside(images, None if theirs is None else published(theirs)))
        )
    return rows


def tables(results: Results) -> list[ReportTable]:
    groups = [
        (images, name, own)
        for (images, members), (objective, name) in product(by_images(results).items(), OBJECTIVES.items())
        if (own := of_objective(members, objective))
    ]
    return [
        ReportTable(
            "Table 1: median error on new draws, as a share of E‖Δ‖² (paired Wilcoxon test over images)",
            [_fits_row(*group, error_shares, error_pair) for group in groups],
        ),
        ReportTable(
            "Table 2: median distance of the estimate to L^stoch, as a share of it",
            [_fits_row(*group, estimate_errors, estimate_pair) for group in groups],
        ),
        ReportTable("Parts of the reconstruction loss, medians over members", [_loss_row(*group) for group in groups]),
    ]


def _fits_row(
    images: ImageSet, name: str, results: Results, values: Callable[[Results, PickFit], np.ndarray], pair: PairOf
) -> TableRow:
    p = wilcoxon_p(pair(results))
    medians = {label: median(values(results, fit).tolist()) for label, fit in FITS.items()}
    return {"data": images.title, "model": name, **medians, "p": p, "": stars(p)}


def _loss_row(images: ImageSet, name: str, results: Results) -> TableRow:
    losses = [r.measured.loss for r in results]
    return {
        "data": images.title,
        "model": name,
        "L": median([loss.total for loss in losses]),
        "L^μ": median([loss.mean for loss in losses]),
        "L^stoch": median([loss.stochastic for loss in losses]),
        "cross term": median([loss.cross for loss in losses]),
    }


def stars(p: float) -> str:
    """The paper's marks of significance.

    >>> stars(0.001), stars(0.03), stars(0.2)
    ('**', '*', '')
    """
    return "" if p >= 0.05 else "*" if p >= 0.01 else "**"


# figures --------------------------------------------------------------------------------------

ERRORS_CAPTION = (
    "Every dot is an image: the error of an approximation of Δ(ε) on new draws, as a share of E‖Δ‖². Predicting no "
    "change at all scores 1. Bars are medians."
)
PAIRS_CAPTION = "The same errors in pairs, one per image. Below the dotted line, the non-linear fit is better."


def figures_of(results: Results) -> list[ReportFigure]:
    return [
        ReportFigure("errors", _errors(results), ERRORS_CAPTION),
        ReportFigure("pairs", _pairs(results), PAIRS_CAPTION),
    ]


def _errors(results: Results) -> Figure:
    groups = by_images(results)
    figure, axes = figures.row_of_panels(max(1, len(groups)), width=5.2)
    for axis, (images, own) in zip(axes, groups.items(), strict=False):
        for index, (label, fit) in enumerate(FITS.items()):
            values = [error_shares(of_objective(own, objective), fit).tolist() for objective in OBJECTIVES]
            figures.plot_strips(
                axis, list(OBJECTIVES.values()), values, label=label, offset=0.26 * (index - 1), index=index
            )
        figures.format_axis(axis, title=images.title, x="", y="error on new draws / E‖Δ‖²", log="", legend=False)
        axis.set_yscale("log")
    figures.shared_legend(figure, axes[0])
    return figure


def _pairs(results: Results) -> Figure:
    groups = by_images(results)
    figure, axes = figures.row_of_panels(max(1, len(groups)), width=4.6, height=4.2)
    for axis, (images, own) in zip(axes, groups.items(), strict=False):
        for objective, label in OBJECTIVES.items():
            pair = error_pair(of_objective(own, objective))
            figures.plot_points(axis, pair.theirs.tolist(), pair.ours.tolist(), label=label)
        low, high = axis.get_xlim()
        axis.plot([max(low, 1e-6), high], [max(low, 1e-6), high], color="#6b7680", lw=1, ls=":", label="equal")
        figures.format_axis(axis, title=images.title, x="error of the linear fit", y="error of the non-linear fit")
    return figure


SPLIT_SAMPLES = 256  # test images at which the loss is split


class LocalNonlinearityExperiment(DisentanglingExperiment[LocalMeasurement]):
    info = LOCAL_NONLINEARITY
    about = (
        "How a decoder varies within the posterior of a test image, Δ(ε) = f(μ + ε) - f(μ), is approximated by a "
        "linear map and by one non-linearity after a linear map. The linear map is the exact least-squares solution, "
        "and the non-linear fit starts from it. The decoder's own Jacobian, which is not fitted, is compared with "
        "them. Errors are measured on draws of ε that were not used for fitting, as a share of E‖Δ‖². Tests are paired "
        f"by image. {SMALLER_CHANGES}"
    )
    measured_type = LocalMeasurement
    shares_members_with = ("orthogonality",)

    def measure(
        self, cell: DisentanglingCell, member: Member, data: FactorData, settings: DisentanglingSettings
    ) -> LocalMeasurement:
        x = data.observations.test
        mean, variance = (t.detach() for t in member.encode(x))
        points, part = slice(settings.points), slice(SPLIT_SAMPLES)
        found = local_fit(
            member.decode, mean[points].double(), variance[points].double(), draws=settings.draws, linearise=True
        )
        parts = loss_split(member.decode, x[part], mean[part], variance[part])
        return LocalMeasurement(
            energy=_floats(found.energy),
            fits=Fits(
                jacobian=Fit(_floats(found.jacobian_error), _floats(found.jacobian_energy)),
                linear=Fit(_floats(found.linear_error), _floats(found.linear_energy)),
                nonlinear=Fit(_floats(found.nonlinear_error), _floats(found.nonlinear_energy)),
            ),
            loss=LossParts(
                total=float(parts.total.mean()),
                mean=float(parts.mean.mean()),
                stochastic=float(parts.stochastic.mean()),
                cross=float(parts.cross.mean()),
            ),
            cross_share=parts.cross_share,
        )

    def claims(self, settings: DisentanglingSettings) -> Sequence[ClaimSpec[LocalResult, DisentanglingSettings, Any]]:
        return claims(self.image_sets(settings))

    def comparisons(self, results: Sequence[LocalResult], settings: DisentanglingSettings) -> list[Comparison]:
        return comparisons(results)

    def figures(self, results: Sequence[LocalResult], settings: DisentanglingSettings) -> list[ReportFigure]:
        return figures_of(results)

    def tables(self, results: Sequence[LocalResult], settings: DisentanglingSettings) -> list[ReportTable]:
        return tables(results)


def _floats(values: Tensor | None) -> tuple[float, ...]:
    assert values is not None  # local_fit was called with linearise=True
    return tuple(float(v) for v in values)


EXPERIMENT = LocalNonlinearityExperiment()
