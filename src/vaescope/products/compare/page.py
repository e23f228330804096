"""A comparison as one self-contained page: verdict, table, differences, matched latents, shared failures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from vaescope.analysis.agreement import MatchedLatent
from vaescope.products.compare.measure import MeasuredModel, Paired
from vaescope.products.diagnose.page import can_be_drawn, image_shape, show_image, traversal_values, traverse
from vaescope.report import figures
from vaescope.report.figures import svg
from vaescope.report.page import render, versions

if TYPE_CHECKING:
    from vaescope.products.compare.compare import Comparison


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


PIXELS = 96  # per inch of figure width, at most
MATCHED = 4  # models whose latents are matched with those of the best, at most
COMMON = 20  # row numbers of common failures that are listed
LEGEND = (
    "ELBO, log p(x), gaps and KL in nats per sample. Family gap: what the best posterior of its kind loses; "
    "amortisation gap: what the encoder loses beyond it. c_IMA: how far the columns of the decoder's Jacobian are from "
    "orthogonal. "
    "Near-deterministic: whether posteriors are narrow and as Eq. 12 predicts. ±: two standard errors over samples."
)
_TRAVERSALS = (
    "One latent at a time, from -2 to 2 standard deviations of its prior, with the others fixed at a typical code. "
    "Each row is a matched pair; a minus sign marks a latent that is traversed backwards, because its correlation is "
    "negative."
)


@dataclass(frozen=True)
class MatchSection:
    """Matched latents of the best model and one other."""

    title: str
    rows: list[dict[str, object]]
    canonical: str
    picture: Markup | None
    width: int


def html(comparison: Comparison) -> str:
    """The page; text from users is escaped."""
    rows = [_page_row(row) for row in comparison.table]
    return render(
        "models.html",
        names=comparison.names,
        verdict=comparison.summary(),
        samples=len(comparison.models[0].sample),
        columns=[name for name in rows[0] if any(row.get(name) is not None for row in rows)],
        rows=rows,
        candidates=comparison.candidates,
        methods={str(row["model"]): row["method"] for row in comparison.table if row["method"]},
        legend=LEGEND,
        drawings=[(n, Markup(svg(f)), caption, _width(f)) for n, f, caption in drawings(comparison)],
        matches=_matches(comparison),
        failures=_failures(comparison),
        common=[] if comparison.failures is None else comparison.failures.common[:COMMON].tolist(),
        common_count=0 if comparison.failures is None else len(comparison.failures.common),
        traversal_caption=_TRAVERSALS,
        skipped=comparison.skipped,
        versions=versions(),
    )


def _page_row(row: dict[str, object]) -> dict[str, object]:
    """A row of the table with two standard errors beside each value, and without the method."""
    found = {name: value for name, value in row.items() if not name.endswith(" stderr") and name != "method"}
    for name, value in found.items():
        error = row.get(f"{name} stderr")
        if isinstance(value, float) and isinstance(error, float):
            found[name] = f"{value:.2f} ± {2 * error:.2g}"
    return found


def _width(figure: Figure) -> int:
    return round(PIXELS * figure.get_figwidth())


def _matches(comparison: Comparison) -> list[MatchSection]:
    """The best model (the first if there is none) with each of the next."""
    reference = comparison.best or comparison.names[0]
    return [_match(comparison, reference, name) for name in _ranked(comparison) if name != reference][:MATCHED]


def _ranked(comparison: Comparison) -> list[str]:
    if comparison.paired is None:
        return comparison.names
    order = np.argsort(-comparison.paired.difference[:, 0], kind="stable")
    return [comparison.names[i] for i in order]


def _match(comparison: Comparison, first: str, second: str) -> MatchSection:
    found = comparison.matched(first, second)
    a, b = (comparison.models[comparison.names.index(name)] for name in (first, second))
    figure = matched_traversals(a, b, found.latents)
    values = ", ".join(f"{v:.2f}" for v in found.canonical[:10]) + (", …" if len(found.canonical) > 10 else "")
    shared = f"{found.shared} direction{'s' * (found.shared != 1)}" if len(found.canonical) else "no direction"
    return MatchSection(
        f"{first} and {second}",
        found.rows(),
        f"Both models have {shared} in common, whatever their axes. Canonical correlations: {values or 'none'}.",
        None if figure is None else Markup(svg(figure)),
        0 if figure is None else _width(figure),
    )


def _failures(comparison: Comparison) -> list[dict[str, object]]:
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
