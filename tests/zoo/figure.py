"""The figure of the docs: what is found in the zoo, on both halves: `python -m tests.zoo.figure`."""

from __future__ import annotations

import json

from tests.zoo.score import HALVES, RESULTS, ROOT
from vaescope.report import figures

FIGURE = ROOT / "docs" / "figures" / "zoo.svg"


def main() -> None:
    scores = json.loads(RESULTS.read_text())["scores"]
    codes = sorted({code for half in HALVES for code, s in scores[half]["by_finding"].items() if s["planted"]})
    figure, axes = figures.grid_of_panels(1, 2, width=4.6, height=0.3 * len(codes) + 1.2)
    for axis, half in zip(axes, HALVES, strict=True):
        found, s = scores[half]["by_finding"], scores[half]
        for y, code in enumerate(reversed(codes)):
            row = found.get(code, {"planted": 0, "recall": None})
            if row["planted"]:
                axis.barh(y, row["recall"], color=figures.COLOURS[0], height=0.6)
                label = f"{round(row['recall'] * row['planted'])} of {row['planted']}"
                colour = "white" if row["recall"] > 0.12 else "black"
                axis.text(0.02, y, label, va="center", fontsize=8, color=colour)
            else:
                axis.text(0.02, y, "none planted", va="center", fontsize=8)
        axis.set_yticks(range(len(codes)), list(reversed(codes)) if half == HALVES[0] else [""] * len(codes))
        axis.set_xlim(0, 1)
        axis.set_ylim(-0.8, len(codes) - 0.2)  # the same rows in both panels, also those without a case
        axis.set_xlabel("share found as the first cause")
        axis.set_title(
            f"{half}: {s['healthy_with_a_warning']} of {s['healthy']} healthy models have a warning", fontsize=9
        )
    FIGURE.write_text(figures.svg(figure))


if __name__ == "__main__":
    main()
