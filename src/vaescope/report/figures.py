"""Figures in one style; plots of several seeds always show their range."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

COLOURS = ("#1f5fa8", "#d1592b", "#2c8a5b", "#8150a8", "#b08a1e", "#5d6b78")
_STYLE: Any = {
    "font.size": 11,
    "font.family": "DejaVu Sans",
    "axes.titlesize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.grid": True,
    "grid.color": "#e4e7ea",
    "grid.linewidth": 0.7,
    "axes.edgecolor": "#6b7680",
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
    "svg.hashsalt": "vaescope",
    "figure.facecolor": "white",
}


def row_of_panels(count: int, *, width: float = 4.1, height: float = 3.7) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, legible at page width."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width * count, height), layout="constrained")
        axes = figure.subplots(1, count, squeeze=False)[0]
    return figure, list(axes)


def grid_of_panels(rows: int, columns: int, *, width: float = 3.0, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    """A figure with panels in a grid, row by row."""
    with mpl.rc_context(_STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.ravel())


def score_heatmap(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    lower_is_better: Sequence[str] = (),
) -> Figure:
    """A table of scores on coloured cells; dark is good, which is low in the rows of `lower_is_better`."""
    with mpl.rc_context(_STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(1.15 * len(columns) + 2.4, 0.36 * len(rows) + 1.2), layout="constrained")
        axis = figure.subplots()
        shades = [
            [1 - v if name in lower_is_better else v for v in row] for name, row in zip(rows, values, strict=True)
        ]
        axis.imshow(np.clip(shades, 0, 1), cmap="Blues", vmin=-0.1, vmax=1.9, aspect="auto")
        for i, row in enumerate(values):
            for j, value in enumerate(row):
                axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=9.5, color="#10151a")
        axis.set_xticks(range(len(columns)), [name.replace(" and ", "\nand ") for name in columns], fontsize=9.5)
        axis.set_yticks(range(len(rows)), rows, fontsize=9.5)
        axis.xaxis.tick_top()
        axis.tick_params(length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
    return figure


def plot_median_and_range(
    axis: Axes,
    x: Sequence[float],
    values: Sequence[Sequence[float | int]],
    *,
    label: str,
    dashed: bool = False,
    colour: str | None = None,
) -> None:
    """Plot the median over seeds as a line and the range as a band."""
    with mpl.rc_context(_STYLE):
        medians = [float(np.median(v)) if len(v) else np.nan for v in values]
        style: Any = {"linestyle": "--", "marker": "s"} if dashed else {"linestyle": "-", "marker": "o"}
        extra: Any = {} if colour is None else {"color": colour}
        (line,) = axis.plot(x, medians, markersize=5, label=label, **style, **extra)
        low = [float(np.min(v)) if len(v) else np.nan for v in values]
        high = [float(np.max(v)) if len(v) else np.nan for v in values]
        axis.fill_between(x, low, high, color=line.get_color(), alpha=0.16, linewidth=0)


def plot_points(axis: Axes, x: Sequence[float], y: Sequence[float], *, label: str) -> None:
    """Plot a dot per member."""
    with mpl.rc_context(_STYLE):
        axis.plot(x, y, "o", markersize=4.5, alpha=0.65, label=label)


def plot_published(axis: Axes, x: Sequence[float], y: Sequence[float | None], *, label: str) -> None:
    """Plot published values as crosses; None is skipped."""
    known = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    if known:
        axis.plot(*zip(*known, strict=True), "x", color="#222", markersize=7, markeredgewidth=1.6, label=label)


def reference_slope(axis: Axes, x: Sequence[float], y: Sequence[float], *, power: float) -> None:
    """Plot a thin line with the theoretical slope through the last point."""
    reference = [y[-1] * (value / x[-1]) ** power for value in x]
    exponent = f"{power:g}".replace("-", "⁻").replace("1", "¹").replace("2", "²")
    label = "slope (γ²)" + exponent
    axis.plot(x, reference, color="#6b7680", linewidth=1.2, linestyle=":", label=label)


def format_axis(axis: Axes, *, title: str, x: str, y: str, log: str = "xy", legend: bool = True) -> None:
    """Set title, labels and scales, and add a legend.

    Args:
        axis: the axis.
        title: title of the panel.
        x: label of the x axis, with units.
        y: label of the y axis, with units.
        log: which axes are logarithmic, `x`, `y`, `xy` or empty.
        legend: whether to add a legend.
    """
    with mpl.rc_context(_STYLE):
        axis.set_title(title)
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        if "x" in log and _has_positive(axis):
            axis.set_xscale("log")
            low, high = axis.get_xlim()
            if low > 0 and high / low < 100:  # labels of all minor ticks would overlap
                axis.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
                axis.xaxis.set_major_formatter("{x:g}")
                axis.xaxis.set_minor_formatter("{x:g}")
        if "y" in log and _has_positive(axis):
            axis.set_yscale("log")
        if legend:
            axis.legend()


def _has_positive(axis: Axes) -> bool:
    """Whether a logarithmic axis would show anything."""
    return any(bool(np.any(np.asarray(line.get_ydata(), dtype=float) > 0)) for line in axis.get_lines())


def svg(figure: Figure) -> str:
    """The figure as reproducible SVG, without an XML header."""
    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def plot_strips(
    axis: Axes,
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    label: str,
    offset: float = 0.0,
    index: int = 0,
) -> None:
    """Plot a column of dots per name, one dot per seed, with a bar at the median."""
    colour = COLOURS[index]
    with mpl.rc_context(_STYLE):
        for position, column in enumerate(values):
            axis.plot([position + offset] * len(column), column, "o", color=colour, markersize=4.5, alpha=0.55)
            if len(column):
                left, right = position + offset - 0.12, position + offset + 0.12
                axis.hlines(float(np.median(column)), left, right, color=colour, lw=2.4)
        axis.plot([], [], "o", color=colour, markersize=5, label=label)
        axis.set_xticks(range(len(names)), names)
        axis.set_xlim(-0.5, len(names) - 0.5)


def shared_legend(figure: Figure, axis: Axes) -> None:
    """Add one legend for all panels, below them."""
    with mpl.rc_context(_STYLE):
        handles, labels = axis.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
