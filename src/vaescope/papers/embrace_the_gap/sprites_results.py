"""Results of sprites: typed rows, claims, published values and the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vaescope.papers.claims import ClaimSpec, members_converged, show
from vaescope.papers.criteria import Bound, Pairs, RankCorrelation, above, at_least, at_most
from vaescope.papers.embrace_the_gap import PAPER
from vaescope.papers.experiment import ReportTable
from vaescope.papers.published import Comparison, compare
from vaescope.papers.results import Result
from vaescope.papers.statistics import median

FACTORS = ("x", "y", "scale", "hue")
STEPS = 9  # images per latent interpolation
PUBLISHED_MCC = {"x": 0.996, "y": 0.989, "scale": 0.933, "hue": 0.989}
SOURCE = f"{PAPER}, §4.3 and Fig. 5"


@dataclass(frozen=True)
class SpriteCell:
    seed: int


@dataclass(frozen=True)
class FactorRecovery:
    """One factor and the latent that is matched to it."""

    mcc: float
    mcc_pca: float
    true: tuple[float, ...]
    """Values of the first test images."""
    estimated: tuple[float, ...]
    """The matched latent of the same images, with scale and offset fitted to the factor."""


@dataclass(frozen=True)
class TrainingCurve:
    """Recovery and median contrast after every epoch."""

    epoch: tuple[int, ...]
    mcc: tuple[float, ...]
    contrast: tuple[float, ...]


@dataclass(frozen=True)
class SpriteMeasurement:
    """What is measured of one member."""

    mcc: float
    mcc_sampled: float
    mcc_floor: float
    """Of codes without any information."""
    mcc_pca: float
    r2: float
    r2_pca: float
    ima_contrast: float
    renderer_contrast: float
    """c_IMA of the renderer."""
    fine_renderer_contrast: float
    """c_IMA of the renderer at 64 x 64 pixels: coarser pixels mix factors."""
    reconstruction_mse: float
    factors: dict[str, FactorRecovery]
    curve: TrainingCurve
    interpolations: bytes
    """Pixels (factor, step, channel, row, column) of latent interpolations."""


SpriteResult = Result[SpriteCell, SpriteMeasurement]
Results = Sequence[SpriteResult]


def best_first(results: Results) -> list[SpriteResult]:
    """Members by ELBO, the highest first: a choice that does not use the factors."""
    return sorted(results, key=lambda r: r.elbo, reverse=True)


# claims ---------------------------------------------------------------------------------------


def mcc_over_pca(results: Results, _: object) -> list[float]:
    """MCC minus that of PCA, the best member first."""
    return [r.measured.mcc - r.measured.mcc_pca for r in best_first(results)]


def mccs(results: Results, _: object) -> list[float]:
    """MCC, the best member first."""
    return [r.measured.mcc for r in best_first(results)]


def mcc_over_epochs(results: Results, _: object) -> Pairs:
    curve = best_first(results)[0].measured.curve
    return Pairs([float(epoch) for epoch in curve.epoch], curve.mcc)


def mcc_over_contrast(results: Results, _: object) -> Pairs:
    """Contrast and MCC of the best member, from the epoch with the highest contrast."""
    curve = best_first(results)[0].measured.curve
    peak = int(np.argmax(curve.contrast)) if curve.contrast else 0
    return Pairs(curve.contrast[peak:], curve.mcc[peak:])


def renderer_contrasts(results: Results, _: object) -> list[float]:
    return [r.measured.renderer_contrast for r in results]


def fine_renderer_note(results: Results, _: object) -> str:
    fine = median([r.measured.fine_renderer_contrast for r in results])
    return f"Coarse pixels mix factors: rendered at 64 x 64, the same ranges have {show(fine)} in the median."


CLAIMS = (
    ClaimSpec(
        sentence="The best VAE recovers the factors better than principal components.",
        source=SOURCE,
        measure=mcc_over_pca,
        criterion=Bound("MCC minus MCC of PCA, of the member with the highest ELBO,", above(0), statistic="first"),
        note="The range is over members.",
        requires=(members_converged(),),
    ),
    ClaimSpec(
        sentence="The best VAE recovers the factors.",
        source=SOURCE,
        measure=mccs,
        criterion=Bound("MCC of the member with the highest ELBO", at_least(0.9), statistic="first"),
        published="0.977 (mean of 0.996, 0.989, 0.933, 0.989)",
        note="The range is over members. The claim is about the published settings, which the quick profile reduces.",
        requires=(members_converged(),),
    ),
    ClaimSpec(
        sentence="Recovery improves during training.",
        source=f"{SOURCE} left",
        measure=mcc_over_epochs,
        criterion=RankCorrelation(sign=1, over="epochs of the best member"),
    ),
    ClaimSpec(
        sentence="After its peak the contrast of the decoder falls while recovery improves.",
        source=f"{SOURCE} left",
        measure=mcc_over_contrast,
        criterion=RankCorrelation(sign=-1, over="epochs of the best member"),
    ),
    ClaimSpec(
        sentence="The renderer is close to the IMA class.",
        source=f"{PAPER}, §4.3 assumes it; computed here by differentiating the renderer",
        measure=renderer_contrasts,
        criterion=Bound("c_IMA of the renderer in nats", at_most(0.05)),
        note=fine_renderer_note,
    ),
)


# comparisons and table ------------------------------------------------------------------------

WHY = (
    "The published values are those of the member that the authors selected by inspection; ours are those of the "
    "member with the highest ELBO. Their data set is one draw of Beta distributions that are not published; other "
    "draws are far from the IMA class."
)


def comparisons(results: Results) -> list[Comparison]:
    best = best_first(results)[0].measured.factors
    rows = [compare(name, [best[name].mcc], PUBLISHED_MCC[name]) for name in FACTORS]
    return [Comparison("Fig. 5 centre and right", "MCC per factor of the best member", rows, WHY)]


def member_label(result: SpriteResult, best: SpriteResult) -> str:
    return f"{result.cell.seed} (highest ELBO)" if result is best else f"{result.cell.seed}"


def members_table(results: Results) -> ReportTable:
    best = best_first(results)[0]
    return ReportTable("Every member, with its baselines", [_member_row(r, best) for r in results])


def _member_row(result: SpriteResult, best: SpriteResult) -> dict[str, object]:
    m = result.measured
    return {
        "seed": member_label(result, best),
        "ELBO": result.elbo,
        "MCC": m.mcc,
        "PCA": m.mcc_pca,
        "floor": m.mcc_floor,
        "MCC sampled": m.mcc_sampled,
        **{name: m.factors[name].mcc for name in FACTORS},
        "R²": m.r2,
        "R² PCA": m.r2_pca,
        "c_IMA": m.ima_contrast,
        "c_IMA of the renderer": m.renderer_contrast,
        "at 64 x 64": m.fine_renderer_contrast,
        "MSE": m.reconstruction_mse,
    }
