"""Figures of a comparison: differences, and matched traversals side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from vaescope.comparison.matching import MatchedLatent
from vaescope.comparison.measured import MeasuredModel
from vaescope.comparison.paired import Paired
from vaescope.diagnosis.drawings import can_be_drawn, image_shape, show_image, traversal_values, traverse
from vaescope.report import figures

if TYPE_CHECKING:
    from vaescope.comparison.compare import Comparison

LARGEST_MATRIX = 12  # models whose differences are drawn as a matrix
LATENTS = 6  # pairs of latents that are drawn, at most
STEPS = 5  # of a traversal of images
CURVE_STEPS = 25
OUTPUTS = 5  # outputs that are drawn of data other than images


def drawings(comparison: Comparison) -> Iterator[tuple[str, Figure, str]]:
    """Name, figure and caption of each figure."""
    if comparison.paired is not None and len(comparison.names) <= LARGEST_MATRIX:
        caption = (
            f"Difference in {comparison.quantity}, row minus column, in nats per sample, with its 95 % interval. Grey "
            "cells could be chance (5 % for all pairs together)."
        )
        yield "differences", difference_matrix(comparison.paired, comparison.names), caption


def difference_matrix(paired: Paired, names: list[str]) -> Figure:
    """Differences as coloured cells: blue where the row is better, grey where it could be chance."""
    count = len(names)
    labels = [_short(name) for name in names]
    figure, (axis,) = figures.grid_of_panels(1, 1, width=2.2 + 1.15 * count, height=1.3 + 0.62 * count)
    largest = max(float(np.abs(paired.difference).max()), 1e-12)
    shades = np.where(paired.indistinguishable, np.nan, paired.difference)
    axis.set_facecolor("#e9edf0")
    axis.imshow(shades, cmap="RdBu", vmin=-1.6 * largest, vmax=1.6 * largest, aspect="auto")
    for i in range(count):
        for j in range(count):
            if i != j:
                text = f"{paired.difference[i, j]:+.3g}\n± {paired.half_width[i, j]:.1g}"
                axis.text(j, i, text, ha="center", va="center", fontsize=9, color="#10151a")
    axis.set_xticks(range(count), labels, rotation=30, ha="left", fontsize=9.5)
    axis.set_yticks(range(count), labels, fontsize=9.5)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 24 else f"{name[:23]}…"


def matched_traversals(first: MeasuredModel, second: MeasuredModel, matches: list[MatchedLatent]) -> Figure | None:
    """Traversals of matched latents side by side, the second in the direction of the first; None if not drawable."""
    pairs = [m for m in matches if m.second is not None][:LATENTS]
    if not pairs or not (can_be_drawn(first.sample) and can_be_drawn(second.sample)):
        return None
    shapes = image_shape(first.sample), image_shape(second.sample)
    if shapes[0] is not None and shapes[0] == shapes[1]:
        return _images(first, second, pairs, shapes[0])
    return _curves(first, second, pairs) if shapes == (None, None) else None


def _sides(
    first: MeasuredModel, second: MeasuredModel, match: MatchedLatent, steps: int
) -> list[tuple[str, np.ndarray]]:
    """Label and outputs (S, n) of both models; the second reversed if the correlation is negative."""
    assert match.second is not None
    found = []
    for model, latent in ((first, match.first), (second, match.second)):
        values = traversal_values(model.sample, latent, steps)
        reverse = model is second and match.correlation < 0
        outputs = traverse(model.sample, latent, values[::-1] if reverse else values).double().cpu().numpy()
        found.append((f"{'-' if reverse else ''}z{latent}", outputs))
    return found


def _images(
    first: MeasuredModel, second: MeasuredModel, pairs: list[MatchedLatent], shape: tuple[int, int, int]
) -> Figure:
    import torch

    columns = 2 * STEPS + 1
    figure, axes = figures.grid_of_panels(len(pairs), columns, width=0.85, height=0.95)
    for row, match in enumerate(pairs):
        for side, (label, outputs) in enumerate(_sides(first, second, match, STEPS)):
            low, high = min(0.0, float(outputs.min())), max(1.0, float(outputs.max()))
            for step in range(STEPS):
                axis = axes[row * columns + side * (STEPS + 1) + step]
                frame = torch.from_numpy((outputs[step] - low) / (high - low)).reshape(shape)
                show_image(axis, frame, shape)
                if step == 0:
                    axis.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=9.5)
                if row == 0 and step == STEPS // 2:
                    axis.set_title(_short((first, second)[side].name), fontsize=10)
        axis = axes[row * columns + STEPS]
        axis.set_axis_off()
        axis.text(0.5, 0.5, f"|r| = {abs(match.correlation):.2f}", ha="center", va="center", fontsize=8.5)
    return figure


def _curves(first: MeasuredModel, second: MeasuredModel, pairs: list[MatchedLatent]) -> Figure:
    """The outputs that change most, as functions of matched latents, in standard deviations over the data."""
    x = first.sample.observations
    mean, deviation = x.mean(0).numpy(), x.std(0, correction=0).numpy()
    deviation[deviation == 0] = np.inf  # a column that is constant has no scale to be drawn in
    figure, axes = figures.grid_of_panels(len(pairs), 2, width=3.6, height=2.2)
    for row, match in enumerate(pairs):
        sides = _sides(first, second, match, CURVE_STEPS)
        curves = [(outputs - mean) / deviation for _, outputs in sides]
        largest = np.argsort(-curves[0].std(0))[:OUTPUTS]
        for side, (label, _) in enumerate(sides):
            axis = axes[2 * row + side]
            for output in largest.tolist():
                axis.plot(np.linspace(-2, 2, CURVE_STEPS), curves[side][:, output], lw=1.3, label=f"x{output}")
            name = f"{_short((first, second)[side].name)}\n" if row == 0 else ""
            axis.set_title(f"{name}{label}, |r| = {abs(match.correlation):.2f}", fontsize=9.5)
            axis.grid(visible=True, alpha=0.4)
        axes[2 * row].legend(fontsize=7, ncols=2)
    return figure
