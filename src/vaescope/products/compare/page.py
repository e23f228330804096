"""Figures of a comparison, and the sections of its page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from vaescope.analysis.agreement import MatchedLatent
from vaescope.analysis.traversals import (
    can_be_drawn,
    draw_curves,
    draw_images,
    image_shape,
    most_changing,
    standardise_outputs,
    traverse,
)
from vaescope.products.compare.measure import MeasuredModel, Paired
from vaescope.report import figures
from vaescope.report.page import Drawing

if TYPE_CHECKING:
    from vaescope.products.compare.compare import Comparison

LEGEND = (
    "ELBO, log p(x), gaps and KL in nats per sample. Family gap: what the best posterior of its kind loses; "
    "amortization gap: what the encoder loses beyond it. c_IMA: how far the columns of the decoder's Jacobian are from "
    "orthogonal. Near-deterministic: whether posteriors are narrow and as Eq. 12 predicts. ±: two standard errors over "
    "samples."
)


def drawings(comparison: Comparison) -> Iterator[Drawing]:
    """Differences between models, and traversals of matched latents."""
    if comparison.paired is not None and len(comparison.names) <= 12:
        caption = (
            f"Difference in {comparison.quantity}, row minus column, in nats per sample, with its 95 % interval. Grey "
            "cells could be chance (5 % for all pairs together)."
        )
        yield figures.drawing("differences", difference_matrix(comparison.paired, comparison.names), caption)
    caption = (
        "One latent at a time, from -2 to 2 standard deviations of its prior, with the others fixed at a typical code. "
        "Each row is a matched pair; a minus sign marks a latent that is traversed backwards, because its correlation "
        "is negative."
    )
    for index, (first, second) in enumerate(comparison.shown_pairs()):
        models = [comparison.models[comparison.names.index(name)] for name in (first, second)]
        figure = matched_traversals(models, comparison.matched(first, second).latents)
        if figure is not None:
            yield figures.drawing(f"matched-{index}", figure, caption)


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


def matched_traversals(models: Sequence[MeasuredModel], matches: list[MatchedLatent]) -> Figure | None:
    """Traversals of at most six matched latents of two models side by side; None if they cannot be drawn.

    The second is traversed in the direction of the first.
    """
    pairs = [(m.first, m.second, m.correlation) for m in matches if m.second is not None][:6]
    if not pairs or not all(can_be_drawn(model.sample) for model in models):
        return None
    shape, other = (image_shape(model.sample) for model in models)
    if shape != other:
        return None
    steps = 25 if shape is None else 5
    if shape is None:
        figure, axes = figures.grid_of_panels(len(pairs), 2, width=3.6, height=2.2)
    else:
        figure, axes = figures.grid_of_panels(len(pairs), 2 * steps + 1, width=0.85, height=0.95)
    for row, (first, second, correlation) in enumerate(pairs):
        chosen: list[int] = []
        strength = f"|r| = {abs(correlation):.2f}"
        for side, (model, latent) in enumerate(zip(models, (first, second), strict=True)):
            reverse = side == 1 and correlation < 0
            outputs = traverse(model.sample, latent, steps)[1]
            outputs, label = (outputs.flip(0), f"-z{latent}") if reverse else (outputs, f"z{latent}")
            if shape is None:
                curves = standardise_outputs(models[0].sample, outputs)
                chosen = chosen or most_changing(curves, 5)
                axis = axes[2 * row + side]
                draw_curves(axis, np.linspace(-2, 2, steps).tolist(), curves, chosen)
                name = f"{_short(model.name)}\n" if row == 0 else ""
                axis.set_title(f"{name}{label}, {strength}", fontsize=9.5)
                continue
            start = row * (2 * steps + 1) + side * (steps + 1)
            draw_images(axes[start : start + steps], outputs, shape, label=label)
            if row == 0:
                axes[start + steps // 2].set_title(_short(model.name), fontsize=10)
        if shape is None:
            axes[2 * row].legend(fontsize=7, ncols=2)
        else:
            middle = axes[row * (2 * steps + 1) + steps]
            middle.set_axis_off()
            middle.text(0.5, 0.5, strength, ha="center", va="center", fontsize=8.5)
    return figure


def page_row(row: dict[str, object]) -> dict[str, object]:
    """A row of the table with two standard errors beside each value, and without the method."""
    found = {name: value for name, value in row.items() if not name.endswith(" stderr") and name != "method"}
    for name, value in found.items():
        error = row.get(f"{name} stderr")
        if isinstance(value, float) and isinstance(error, float):
            found[name] = f"{value:.2f} ± {2 * error:.2g}"
    return found


def match_sections(comparison: Comparison) -> list[tuple[str, str, list[dict[str, object]], str]]:
    """Title, canonical correlations, table and name of the figure of each pair of models that is shown."""
    sections = []
    for index, (first, second) in enumerate(comparison.shown_pairs()):
        found = comparison.matched(first, second)
        values = ", ".join(f"{v:.2f}" for v in found.canonical[:10]) + (", …" if len(found.canonical) > 10 else "")
        shared = f"{found.shared} direction{'s' * (found.shared != 1)}" if len(found.canonical) else "no direction"
        common = (
            f"Both models have {shared} in common, whatever their axes. Canonical correlations: {values or 'none'}."
        )
        sections.append((f"{first} and {second}", common, found.rows(), f"matched-{index}"))
    return sections


def failure_rows(comparison: Comparison) -> list[dict[str, object]]:
    """A row per pair with the best model."""
    if comparison.failures is None or comparison.best is None:
        return []
    best = comparison.names.index(comparison.best)
    return [
        {
            "models": f"{comparison.best} and {name}",
            "worst 5 % in common": float(comparison.failures.overlap[best, k]),
            "rank correlation of ELBOs": float(comparison.failures.rank_correlation[best, k]),
        }
        for k, name in enumerate(comparison.names)
        if k != best
    ]
