"""Figures of principal-axes."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vaescope.papers.experiment import ReportFigure
from vaescope.papers.why_vaes_disentangle.principal_axes_results import (
    AXIS_SETS,
    FIRST_AXES,
    ORDERS,
    PUBLISHED,
    PUBLISHED_AXES,
    AxesMeasurement,
    AxesSettings,
    Results,
    cumulative_step,
    explained,
    published_steps,
    published_total,
)
from vaescope.report import figures

NAMES = {"descending": "largest first", "ascending": "smallest first"}
IMAGES_CAPTION = (
    "Figure 5 in both orders: one image from sets of principal axes, counted out of 4096. The published image from the "
    "first 1500 axes is blank, like that of the lower row."
)
ERRORS_CAPTION = (
    "Table 7 in both orders; crosses are the published values, as shares of the variance that they imply. Right: "
    "sorted axes give curves that only fall or only rise; the published values do both."
)


def figures_of(results: Results, settings: AxesSettings) -> list[ReportFigure]:
    return [
        ReportFigure("a_figure_5", _images(results[0].measured, settings.size), IMAGES_CAPTION),
        ReportFigure("b_errors", _errors(results, settings), ERRORS_CAPTION),
    ]


def _images(measured: AxesMeasurement, size: int) -> Figure:
    columns = ["original", *(f"{a} to {b}" for a, b in AXIS_SETS)]
    figure, axes = figures.grid_of_panels(len(ORDERS), len(columns), width=1.55, height=1.85)
    for row, (order, pick) in enumerate(ORDERS.items()):
        images = (measured.original, *pick(measured).images)
        own = axes[row * len(columns) : (row + 1) * len(columns)]
        for axis, name, image in zip(own, columns, images, strict=True):
            pixels = np.frombuffer(image, dtype=np.uint8).reshape(size, size)
            axis.imshow(pixels, cmap="gray", vmin=0, vmax=255)
            axis.set_xticks([])
            axis.set_yticks([])
            axis.set_title(name if row == 0 else "", fontsize=10)
        own[0].set_ylabel(NAMES[order], fontsize=10)
    return figure


def _errors(results: Results, settings: AxesSettings) -> Figure:
    figure, axes = figures.row_of_panels(2, width=4.8)
    _unexplained(axes[0], results, settings)
    steps, total = published_steps(), published_total()
    middles = [(a + b) / 2 for a, b, _ in steps]
    for order, pick in ORDERS.items():
        axes[1].plot(middles, explained(results, pick), "o-", markersize=5, label=NAMES[order])
    figures.plot_published(axes[1], middles, [value / total for _, _, value in steps], label="published")
    figures.format_axis(
        axes[1], title="What one axis explains", x="axis, of 4096", y="share of the variance", log="y", legend=False
    )
    figures.shared_legend(figure, axes[0])
    return figure


def _unexplained(axis: Axes, results: Results, settings: AxesSettings) -> None:
    """The n - m smallest variances are what the m largest leave, so one curve gives both orders."""
    count = settings.size**2
    largest = 1 + cumulative_step(count) * np.arange(len(results[0].measured.cumulative))
    share = np.concatenate([[0.0], largest / count, [1.0]])
    held = np.concatenate([[0.0], np.median([r.measured.cumulative for r in results], axis=0), [1.0]])
    axis.plot(PUBLISHED_AXES * share, 1 - held, label=NAMES["descending"])
    axis.plot(PUBLISHED_AXES * (1 - share), held, label=NAMES["ascending"])
    published = [PUBLISHED[0, last] / published_total() for last in FIRST_AXES]
    figures.plot_published(axis, [float(last) for last in FIRST_AXES], published, label="published")
    title = "Variance left by the first axes"
    figures.format_axis(axis, title=title, x="axes used, of 4096", y="share left", log="", legend=False)
