"""Drawing: one look for every figure, spreads over seeds always shown."""

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
    """A figure with panels side by side, wide enough to be read at page width."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width * count, height), layout="constrained")
        axes = figure.subplots(1, count, squeeze=False)[0]
    return figure, list(axes)


def grid_of_panels(rows: int, columns: int, *, width: float = 3.0, height: float = 3.0) -> tuple[Figure, list[Axes]]:
    """A figure with panels in rows."""
    with mpl.rc_context(_STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.ravel())


def score_map(
    rows: Sequence[str],
    columns: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    worse_is_high: Sequence[str] = (),
) -> Figure:
    """Scores as numbers on shades, dark where good; rows named in `worse_is_high` are shaded the other way."""
    with mpl.rc_context(_STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(1.15 * len(columns) + 2.4, 0.36 * len(rows) + 1.2), layout="constrained")
        axis = figure.subplots()
        shades = [
            [1 - v if name in worse_is_high else v for v in line] for name, line in zip(rows, values, strict=True)
        ]
        axis.imshow(np.clip(shades, 0, 1), cmap="Blues", vmin=-0.1, vmax=1.9, aspect="auto")
        for i, line in enumerate(values):
            for j, value in enumerate(line):
                axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=9.5, color="#10151a")
        axis.set_xticks(range(len(columns)), [name.replace(" and ", "\nand ") for name in columns], fontsize=9.5)
        axis.set_yticks(range(len(rows)), rows, fontsize=9.5)
        axis.xaxis.tick_top()
        axis.tick_params(length=0)
        for spine in axis.spines.values():
            spine.set_visible(False)
    return figure


def spread(
    axis: Axes,
    x: Sequence[float],
    values: Sequence[Sequence[float | int]],
    *,
    label: str,
    dashed: bool = False,
    colour: str | None = None,
) -> None:
    """The median over seeds as a line and the whole range as a band."""
    with mpl.rc_context(_STYLE):
        medians = [float(np.median(v)) if len(v) else np.nan for v in values]
        style: Any = {"linestyle": "--", "marker": "s"} if dashed else {"linestyle": "-", "marker": "o"}
        extra: Any = {} if colour is None else {"color": colour}
        (line,) = axis.plot(x, medians, markersize=5, label=label, **style, **extra)
        low = [float(np.min(v)) if len(v) else np.nan for v in values]
        high = [float(np.max(v)) if len(v) else np.nan for v in values]
        axis.fill_between(x, low, high, color=line.get_color(), alpha=0.16, linewidth=0)


def dots(axis: Axes, x: Sequence[float], y: Sequence[float], *, label: str) -> None:
    """A dot per member."""
    with mpl.rc_context(_STYLE):
        axis.plot(x, y, "o", markersize=4.5, alpha=0.65, label=label)


def crosses(axis: Axes, x: Sequence[float], y: Sequence[float | None], *, label: str) -> None:
    """Published values, where there are any."""
    known = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
    if known:
        axis.plot(*zip(*known, strict=True), "x", color="#222", markersize=7, markeredgewidth=1.6, label=label)


def reference_slope(axis: Axes, x: Sequence[float], y: Sequence[float], *, power: float) -> None:
    """A thin line of the theoretical slope through the last point."""
    reference = [y[-1] * (value / x[-1]) ** power for value in x]
    exponent = f"{power:g}".replace("-", "⁻").replace("1", "¹").replace("2", "²")
    label = "slope of (γ²)" + exponent
    axis.plot(x, reference, color="#6b7680", linewidth=1.2, linestyle=":", label=label)


def finish(axis: Axes, *, title: str, x: str, y: str, log: str = "xy", legend: bool = True) -> None:
    """Titles, units, scales and a legend."""
    with mpl.rc_context(_STYLE):
        axis.set_title(title)
        axis.set_xlabel(x)
        axis.set_ylabel(y)
        if "x" in log and _has_positive(axis):
            axis.set_xscale("log")
        if "y" in log and _has_positive(axis):
            axis.set_yscale("log")
        if legend:
            axis.legend()


def _has_positive(axis: Axes) -> bool:
    """A logarithmic axis needs something to show."""
    return any(bool(np.any(np.asarray(line.get_ydata(), dtype=float) > 0)) for line in axis.get_lines())


def svg(figure: Figure) -> str:
    """The figure as SVG text, the same every time, with nothing before the <svg> tag."""
    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return re.sub(r"\s*<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def strips(
    axis: Axes,
    names: Sequence[str],
    values: Sequence[Sequence[float]],
    *,
    label: str,
    offset: float = 0.0,
    index: int = 0,
) -> None:
    """A column of dots per name, every dot a seed, with a bar at the median."""
    colour = COLOURS[index]
    with mpl.rc_context(_STYLE):
        for place, column in enumerate(values):
            axis.plot([place + offset] * len(column), column, "o", color=colour, markersize=4.5, alpha=0.55)
            if len(column):
                axis.hlines(
                    float(np.median(column)), place + offset - 0.12, place + offset + 0.12, color=colour, lw=2.4
                )
        axis.plot([], [], "o", color=colour, markersize=5, label=label)
        axis.set_xticks(range(len(names)), names)
        axis.set_xlim(-0.5, len(names) - 0.5)


def shared_legend(figure: Figure, axis: Axes) -> None:
    """One legend for all panels, below them, where it hides nothing."""
    with mpl.rc_context(_STYLE):
        handles, labels = axis.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
