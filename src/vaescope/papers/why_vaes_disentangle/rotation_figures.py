"""The figure and the animation of rotation."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vaescope.extras import require
from vaescope.papers.experiment import ReportAnimation, ReportFigure
from vaescope.papers.why_vaes_disentangle.rotation_results import (
    LABELS,
    LINES,
    POINTS,
    PickCurve,
    Results,
    RotationMeasurement,
    contrast,
    elbo,
    log_likelihood,
    mig,
    od,
)
from vaescope.report import figures

if TYPE_CHECKING:
    from PIL.Image import Image

TICKS = (-45, -30, -15, 0, 15, 30, 45)
ANGLE_LABEL = "rotation θ (degrees)"
RELATIVE_LABEL = "nats, relative to log p(x)"
GREY, LIGHT_GREY = "#6b7680", "#b8c0c7"
PANELS: Sequence[tuple[PickCurve, str, str]] = (
    (contrast, "Contrast", "c_IMA (nats)"),
    (mig, "Disentanglement", "MIG"),
    (od, "Orthogonality", "OD-Score"),
)
CAPTION = (
    "Trained models and their rotations: medians and ranges over members. The likelihood is constant. The ELBO of the "
    "best diagonal posterior peaks at the trained axes, and what it loses at other angles is the contrast. At the "
    "trained axes codes are also most disentangled, and the columns of the decoder's Jacobian are orthogonal."
)
ANIMATION_CAPTION = (
    "Left: samples, and the lines along which one latent varies while the other is fixed. At 0° one latent changes the "
    "distance from the axis and the other the height, at right angles on the surface. Right: likelihood and ELBO at "
    "the same rotation."
)


def figures_of(results: Results) -> list[ReportFigure]:
    return [ReportFigure("rotation", _figure(results), CAPTION)] if results else []


def animations_of(results: Results) -> list[ReportAnimation]:
    return [ReportAnimation("rotating", _animation(results[0].measured), ANIMATION_CAPTION)] if results else []


# figure ---------------------------------------------------------------------------------------


def _figure(results: Results) -> Figure:
    figure, axes = figures.row_of_panels(4, width=3.5, height=3.9)
    angles = results[0].measured.angles
    _likelihood_and_elbo(axes[0], results)
    for axis, (curve, title, label) in zip(axes[1:], PANELS, strict=True):
        figures.plot_median_and_range(
            axis, angles, _by_angle([curve(r.measured.curves) for r in results]), label=LABELS[curve]
        )
        figures.format_axis(axis, title=title, x=ANGLE_LABEL, y=label, log="", legend=False)
        axis.set_xticks(TICKS)
        axis.set_ylim(bottom=0)
    figures.shared_legend(figure, axes[0])
    return figure


def _by_angle(curves: Sequence[Sequence[float]]) -> list[list[float]]:
    """The values of all members, angle by angle."""
    return [list(values) for values in zip(*curves, strict=True)]


def _relative(measured: RotationMeasurement, curve: PickCurve) -> list[float]:
    """A curve relative to the likelihood at 0°, in which members differ."""
    base = measured.at(log_likelihood, 0.0)
    return [value - base for value in curve(measured.curves)]


def _likelihood_and_elbo(axis: Axes, results: Results) -> None:
    angles = results[0].measured.angles
    for curve in (log_likelihood, elbo):
        figures.plot_median_and_range(
            axis, angles, _by_angle([_relative(r.measured, curve) for r in results]), label=LABELS[curve]
        )
    minus_contrast = -np.median([r.measured.curves.contrast for r in results], axis=0)
    axis.plot(angles, minus_contrast, color=GREY, lw=1.4, ls=":", label="log p(x) - c_IMA")
    figures.format_axis(axis, title="Likelihood and ELBO", x=ANGLE_LABEL, y=RELATIVE_LABEL, log="", legend=False)
    axis.set_xticks(TICKS)


# animation ------------------------------------------------------------------------------------


def _animation(measured: RotationMeasurement) -> bytes:
    """A GIF that turns from one end to the other and back, with a pause at the trained axes."""
    count = len(measured.angles)
    grids = np.frombuffer(measured.grids, dtype=np.float32).reshape(count, 2, LINES, POINTS, 2)
    frames = [_frame(measured, grids[k], k) for k in range(count)]
    order = [*range(count), *reversed(range(1, count - 1))]
    durations = [900 if measured.angles[k] == 0 else 90 for k in order]
    images = [frames[k] for k in order]
    buffer = io.BytesIO()
    images[0].save(buffer, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=True)
    return buffer.getvalue()


def _frame(measured: RotationMeasurement, grid: np.ndarray, k: int) -> Image:
    figure, (left, right) = figures.row_of_panels(2, width=4.2, height=3.6)
    _draw_grid(left, measured, grid)
    left.set_title(f"latents rotated by {measured.angles[k]:+.0f}°")
    for curve, colour in zip((log_likelihood, elbo), figures.COLOURS, strict=False):
        values = _relative(measured, curve)
        right.plot(measured.angles, values, color=colour, label=LABELS[curve])
        right.plot([measured.angles[k]], [values[k]], "o", color=colour, markersize=7)
    right.set_title("likelihood and ELBO")
    right.set_xlabel(ANGLE_LABEL)
    right.set_ylabel(RELATIVE_LABEL)
    right.set_xticks(TICKS)
    right.legend(loc="lower center", bbox_to_anchor=(0.5, -0.42), ncols=2)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    pillow = require("PIL.Image", "drawing an animation")
    frame: Image = pillow.open(buffer).convert("P", palette=pillow.Palette.ADAPTIVE, colors=48)
    return frame


def _draw_grid(axis: Axes, measured: RotationMeasurement, grid: np.ndarray) -> None:
    axis.plot(*np.reshape(measured.shown, (-1, 2)).T, ".", color=LIGHT_GREY, markersize=2.5)
    for latent, colour in zip(grid, figures.COLOURS, strict=False):
        for line in latent:
            axis.plot(*line.T, color=colour, lw=1.1)
    axis.set_aspect("equal")
    axis.set_xlim(-4.0, 4.0)
    axis.set_ylim(-2.6, 3.6)
    axis.set_xticks([])
    axis.set_yticks([])
