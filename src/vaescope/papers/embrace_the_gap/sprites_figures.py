"""Figures of sprites."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from vaescope.papers.embrace_the_gap.sprites_results import (
    FACTORS,
    STEPS,
    Results,
    SpriteMeasurement,
    best_members,
    shown_member,
)
from vaescope.papers.experiment import ReportFigure
from vaescope.papers.statistics import median
from vaescope.report import figures

TRAINING_CAPTION = (
    "Left: recovery by posterior means during training, one colour per data set; thick: the member with the highest "
    "ELBO; dash-dotted: members that started at the true factors. Dashed: the MCC of linear ICA, and of codes without "
    "any information (floor). Right: median contrast of the decoder; dotted, that of the renderer."
)
SCATTER_CAPTION = (
    "True and estimated factors; sign, scale and offset are fitted. Shown is one member: of all members with the "
    "highest ELBO on their data set, the one with the highest MCC."
)
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
    shown = shown_member(results).measured
    return [
        ReportFigure("sprites_along_training", _training_curves(results), TRAINING_CAPTION),
        ReportFigure("sprites_factors", _scatter(shown), SCATTER_CAPTION),
        ReportFigure("sprites_interpolations", _interpolations(shown, size), INTERPOLATION_CAPTION),
    ]


def _training_curves(results: Results) -> Figure:
    figure, axes = figures.row_of_panels(2, width=5.6)
    results = [r for r in results if not r.cell.remedy]
    best = best_members(results)
    colours = {data_set: f"C{index}" for index, data_set in enumerate(dict.fromkeys(r.cell.data_set for r in results))}
    for result in results:
        curve, chosen, control = result.measured.curve, result in best, result.cell.start == "factors"
        for axis, values in zip(axes, (curve.mcc, curve.contrast), strict=True):
            axis.plot(
                curve.epoch,
                values,
                "-." if control else "-",
                label=f"data set {result.cell.data_set}" if chosen else None,
                color=colours[result.cell.data_set],
                linewidth=2.2 if chosen else 1,
            )
    for result in best:
        m, colour = result.measured, colours[result.cell.data_set]
        axes[0].axhline(m.mcc_ica, color=colour, linestyle="--", linewidth=1.0)
        axes[1].axhline(m.renderer_contrast, color=colour, linestyle=":", linewidth=1.2)
    floor = median([r.measured.mcc_floor for r in best])
    axes[0].axhline(floor, color="#aab3bb", linestyle="--", linewidth=1.2, label="floor")
    figures.format_axis(axes[0], title="Recovery of the factors", x="epoch", y="MCC", log="")
    axes[0].set_ylim(0, 1.02)
    figures.format_axis(axes[1], title="IMA contrast", x="epoch", y="c_IMA in nats", log="y", legend=False)
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
