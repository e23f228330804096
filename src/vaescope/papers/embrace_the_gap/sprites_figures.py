"""Figures of sprites."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from vaescope.papers.embrace_the_gap.sprites_results import (
    FACTORS,
    STEPS,
    Results,
    SpriteMeasurement,
    SpriteResult,
    best_first,
    member_label,
)
from vaescope.papers.experiment import ReportFigure
from vaescope.report import figures

TRAINING_CAPTION = (
    "Left: recovery by posterior means during training, for every member. Dashed: the MCC of principal components, and "
    "of codes without any information (floor). Right: median contrast of the decoder; dotted, that of the renderer."
)
SCATTER_CAPTION = "True and estimated factors of the member with the highest ELBO; sign, scale and offset are fitted."
INTERPOLATION_CAPTION = (
    "In each row the latent matched to one factor moves through its range, starting from the code of one image. The "
    "number is the MCC of that factor."
)


def all_figures(results: Results, size: int) -> list[ReportFigure]:
    """Everything about the best member, and training curves of all.

    Args:
        results: of all members that finished.
        size: height and width of the images.
    """
    best = best_first(results)[0]
    return [
        ReportFigure("sprites_along_training", _training_curves(results, best), TRAINING_CAPTION),
        ReportFigure("sprites_factors", _scatter(best.measured), SCATTER_CAPTION),
        ReportFigure("sprites_interpolations", _interpolations(best.measured, size), INTERPOLATION_CAPTION),
    ]


def _training_curves(results: Results, best: SpriteResult) -> Figure:
    figure, axes = figures.row_of_panels(2, width=5.6)
    for result in results:
        curve, width = result.measured.curve, 2.2 if result is best else 1.2
        for axis, values in zip(axes, (curve.mcc, curve.contrast), strict=True):
            axis.plot(curve.epoch, values, label=f"seed {member_label(result, best)}", linewidth=width)
    chosen = best.measured
    axes[0].axhline(chosen.mcc_pca, color="#6b7680", linestyle="--", linewidth=1.2, label="PCA")
    axes[0].axhline(chosen.mcc_floor, color="#aab3bb", linestyle="--", linewidth=1.2, label="floor")
    axes[1].axhline(chosen.renderer_contrast, color="#6b7680", linestyle=":", linewidth=1.4, label="renderer")
    figures.format_axis(axes[0], title="Recovery of the factors", x="epoch", y="MCC", log="")
    axes[0].set_ylim(0, 1.02)
    figures.format_axis(axes[1], title="IMA contrast", x="epoch", y="c_IMA in nats", log="y")
    return figure


def _scatter(measured: SpriteMeasurement) -> Figure:
    figure, axes = figures.row_of_panels(len(FACTORS), width=3.1, height=3.4)
    for axis, name in zip(axes, FACTORS, strict=True):
        factor = measured.factors[name]
        ends = [min(factor.true), max(factor.true)]
        figures.plot_points(axis, factor.true, factor.estimated, label=name)
        axis.plot(ends, ends, ":", color="#6b7680", linewidth=1.2)
        title = f"{name}: MCC {factor.mcc:.3f}"
        figures.format_axis(axis, title=title, x="true", y="estimated", log="", legend=False)
    return figure


def _interpolations(measured: SpriteMeasurement, size: int) -> Figure:
    pixels = np.frombuffer(measured.interpolations, np.uint8).reshape(len(FACTORS), STEPS, 3, size, size)
    figure, axes = figures.grid_of_panels(len(FACTORS), STEPS, width=1.1, height=1.1)
    for index, axis in enumerate(axes):
        row, step = divmod(index, STEPS)
        axis.imshow(pixels[row, step].transpose(1, 2, 0), interpolation="nearest")
        axis.set(xticks=[], yticks=[])
        if step == 0:
            label = f"{FACTORS[row]}\n{measured.factors[FACTORS[row]].mcc:.3f}"
            axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=10)
    return figure
