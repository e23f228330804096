"""Draw the planted codes and the scores of every metric: `PYTHONPATH=. python docs/figures/planted.py`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from tests.metrics.planted import CODES, continuous

from vaescope import metrics
from vaescope.report.figures import grid_of_panels, score_heatmap, svg

HERE = Path(__file__).parent
SHOWN = {  # the two latents to plot, and a description
    "identity": (0, 1, "each latent is a factor"),
    "permuted and rescaled": (1, 2, "other order, sign and scale"),
    "monotone": (0, 1, "monotone map of each factor"),
    "duplicated": (0, 3, "each factor twice"),
    "rotated": (0, 1, "two factors rotated by 45°"),
    "split": (0, 1, "sign and magnitude of factor 0"),
    "ten latents": (0, 5, "three factors and seven noise latents"),
    "null": (0, 1, "independent of the factors"),
}


def scores() -> dict[str, dict[str, float]]:
    """The score of every metric for every code (1,000 samples of three uniform factors)."""
    factors = continuous()
    tables = {name: metrics.evaluate(CODES[name](factors), factors, intervals=False) for name in SHOWN}
    return {name: {row["metric"]: round(row["score"], 2) for row in table.rows} for name, table in tables.items()}


def gallery() -> Figure:
    """Scatter plots of two latents of every code, coloured by the first two factors."""
    factors = continuous(700)
    shade = (factors - factors.min(0)) / np.ptp(factors, axis=0)
    colours = np.column_stack([0.15 + 0.8 * shade[:, 0], 0.35 * np.ones(len(factors)), 0.15 + 0.8 * shade[:, 1]])
    figure, axes = grid_of_panels(2, 4, width=3.0, height=2.9)
    for axis, (name, (a, b, description)) in zip(axes, SHOWN.items(), strict=True):
        codes = CODES[name](factors)
        axis.scatter(codes[:, a], codes[:, b], c=colours, s=7, linewidths=0)
        axis.set(title=f"{name}\n", xlabel=f"latent {a}", ylabel=f"latent {b}", xticks=[], yticks=[])
        axis.text(0.5, 1.02, description, transform=axis.transAxes, ha="center", fontsize=9, color="#5d6b78")
    return figure


def main() -> None:
    found = scores()
    names = list(next(iter(found.values())))
    values = [[found[case][name] for case in found] for name in names]
    (HERE / "planted_scores.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    (HERE / "planted_codes.svg").write_text(svg(gallery()))
    (HERE / "planted_scores.svg").write_text(
        svg(score_heatmap(names, list(found), values, lower_is_better=["Amari distance"]))
    )


if __name__ == "__main__":
    main()
