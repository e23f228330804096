"""Figures in one style; plots of several seeds always show their range."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from cycler import cycler
from jaxtyping import Float
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError, require
from vaescope.inference import linear
from vaescope.inference.derivatives import Decoder, decode_flat
from vaescope.report.page import COLOURS as COLOURS
from vaescope.report.page import Drawing

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
        line_style, marker = ("--", "s") if dashed else ("-", "o")
        (line,) = axis.plot(x, medians, markersize=5, label=label, linestyle=line_style, marker=marker, color=colour)
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


def phase_diagram(
    eigenvalues: Float[np.ndarray, " n"], variance: float, latents: int, *, label: str, depth: int | None = None
) -> list[Figure]:
    """What a linear VAE does over (β/γ², d): latents in use, KL and explained variance, with a star at one setting.

    Args:
        eigenvalues: of the covariance of the data, largest first.
        variance: β/γ² of the star.
        latents: d of the star.
        label: of the star.
        depth: largest d that is drawn.
    """
    depth = max(2, min(40, len(eigenvalues), 2 * latents)) if depth is None else depth
    positive = eigenvalues[eigenvalues > 1e-6 * eigenvalues[0]]
    lowest, largest = float(positive[min(len(positive), 40) - 1]), float(eigenvalues[0])
    variances = np.geomspace(min(variance, lowest) / 4, 4 * max(variance, largest), 120)
    counts = np.arange(1, depth + 1)
    panels: tuple[tuple[str, Callable[..., float], str], ...] = (
        ("latents in use", linear.used_count, "viridis"),
        ("KL, nats per sample", linear.total_kl, "magma"),
        ("variance explained", linear.explained_share, "cividis"),
    )
    drawn = []
    for title, quantity, colours in panels:
        figure, (axis,) = row_of_panels(1, width=3.6, height=3.2)
        values = np.array([[quantity(eigenvalues, float(v), int(d)) for v in variances] for d in counts], float)
        picture = axis.pcolormesh(variances, counts, values, cmap=colours, shading="nearest", rasterized=True)
        figure.colorbar(picture, ax=axis, pad=0.02)
        format_axis(axis, title=title, x="β/γ²", y="latents d", log="", legend=False)
        axis.set_xscale("log")
        axis.grid(visible=False)
        axis.axvline(largest, color="#b3382c", lw=2, label="collapse line λ₁")
        axis.plot([variance], [latents], "*", color="white", mec="#1c2630", ms=15, label=label)
        axis.set_ylim(0.5, max(axis.get_ylim()[1], latents + 0.5))
        axis.yaxis.set_major_locator(MaxNLocator(integer=True))
        drawn.append(figure)
    drawn[0].axes[0].legend(loc="upper left", fontsize=8.5, framealpha=0.85, frameon=True)
    return drawn


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


def drawing(name: str, figure: Figure | Sequence[Figure], caption: str) -> Drawing:
    """A figure for a page, as SVG with a caption, at most 96 pixels per inch wide.

    Several figures are panels, as many side by side as are legible at the width of the screen.
    """
    if isinstance(figure, Figure):
        width = round(96 * figure.get_figwidth())
        return Drawing(name, svg(figure), caption, width if width > 600 else round(1.4 * width), round(0.75 * width))
    width = round(96 * max(panel.get_figwidth() for panel in figure))
    least = min(width, 170 if width < 300 else 340)
    style = f"--least: {least}px; --most: {round(1.5 * width)}px"
    panels = Markup().join(Markup("<div>{}</div>").format(Markup(svg(panel))) for panel in figure)
    return Drawing(name, Markup('<div class="panels" style="{}">{}</div>').format(style, panels), caption)


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


def traverse(decoder: Decoder, code: Float[Tensor, " d"], latent: int, values: Sequence[float]) -> Float[Tensor, "S n"]:
    """Outputs while one latent takes the given values and the others stay.

    >>> traverse(lambda z: 10 * z, torch.tensor([1.0, 2.0]), 1, [0.0, 3.0]).tolist()
    [[10.0, 0.0], [10.0, 30.0]]
    """
    codes = code.repeat(len(values), 1)
    codes[:, latent] = torch.as_tensor(values, dtype=code.dtype)
    with torch.no_grad():
        return decode_flat(decoder, codes)


def traversal_figure(
    decoder: Decoder,
    code: Float[Tensor, " d"],
    *,
    image_shape: Sequence[int],
    latents: Sequence[int] | None = None,
    values: Sequence[float] = (-2.0, -1.0, 0.0, 1.0, 2.0),
) -> Figure:
    """A row of images per latent; the number beside it is the root mean square change of a pixel over the row.

    Args:
        decoder: maps latents (N, d) to images (N, ...) with values from 0 to 1.
        code: where the latents that do not move stay, such as the mean of an image.
        image_shape: (channels, height, width), with one or three channels.
        latents: which ones to move; all by default.
        values: of the moving latent.
    """
    shape = validation.image_shape(image_shape)
    chosen = list(range(len(code))) if latents is None else list(latents)
    if shape[0] not in (1, 3) or not chosen or not all(0 <= latent < len(code) for latent in chosen):
        raise InputError(
            f"expected 1 or 3 channels and latents from 0 to {len(code) - 1}, got {shape[0]} channels and {chosen}."
        )
    figure, axes = grid_of_panels(len(chosen), len(values), width=1.1, height=1.1)
    for row, latent in enumerate(chosen):
        outputs = traverse(decoder, code, latent, values)
        if outputs.shape[1] != shape[0] * shape[1] * shape[2]:
            raise InputError(
                f"image_shape {shape} needs {shape[0] * shape[1] * shape[2]} outputs, got {outputs.shape[1]}."
            )
        change = float((outputs - outputs.mean(0)).square().mean().sqrt())
        frames = outputs.reshape(-1, *shape).clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy()
        for step, frame in enumerate(frames):
            axis = axes[row * len(values) + step]
            axis.imshow(frame.squeeze(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            if row == 0:
                axis.set_title(f"{values[step]:g}", fontsize=10)
        axes[row * len(values)].set_ylabel(f"z{latent}\n{change:.2f}", rotation=0, ha="right", va="center", fontsize=10)
    return figure


def contact_sheet(images: Float[Tensor, "N c h w"], *, columns: int, gap: int = 2, zoom: int = 1) -> bytes:
    """A PNG of images in a grid on a grey background.

    Args:
        images: grey or RGB, values from 0 to 1.
        columns: images per row.
        gap: pixels between images.
        zoom: factor by which the sheet is enlarged.

    >>> import torch
    >>> contact_sheet(torch.rand(6, 1, 8, 8), columns=3)[:4]
    b'\\x89PNG'
    """
    count, channels, height, width = images.shape
    rows = -(-count // columns)
    sheet = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, 3), 118, np.uint8)
    pixels = (images.detach().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    pixels = np.repeat(pixels, 3, axis=3) if channels == 1 else pixels[..., :3]
    for index, image in enumerate(pixels):
        top = gap + (index // columns) * (height + gap)
        left = gap + (index % columns) * (width + gap)
        sheet[top : top + height, left : left + width] = image
    if zoom > 1:
        sheet = sheet.repeat(zoom, 0).repeat(zoom, 1)
    out = io.BytesIO()
    require("PIL.Image", "drawing images").fromarray(sheet).save(out, format="PNG", optimize=True)
    return out.getvalue()


def png_data_uri(png: bytes) -> str:
    """A PNG as a data URI, for an <img> in a self-contained page."""
    return "data:image/png;base64," + base64.b64encode(png).decode()
