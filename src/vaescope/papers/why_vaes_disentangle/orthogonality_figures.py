"""Figures of orthogonality."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from vaescope.papers.experiment import ReportFigure
from vaescope.papers.why_vaes_disentangle.disentangling import OBJECTIVES, ImageSet, by_images, of_objective
from vaescope.papers.why_vaes_disentangle.orthogonality_results import (
    Disentanglement,
    NeighbourDistances,
    OrthogonalityMeasurement,
    Results,
    od_scores,
)
from vaescope.report import figures

GAPS: Mapping[str, Callable[[Disentanglement], float]] = {"MIG": lambda d: d.mig, "MIG-sup": lambda d: d.mig_sup}
FIGURE_4_CAPTION = (
    "Figure 4: every dot is a trained model. Left: disentanglement of the codes, by model. Right: the same against the "
    "OD-Score of the local decoder over latents in use. The paper expects dots to fall from left to right."
)
ANGLES_CAPTION = (
    "Angles between columns of the Jacobian, from 0° (parallel) to 90°, averaged over test images, for one member of "
    "each model and the latents it uses, by decreasing KL."
)
THEOREMS_CAPTION = (
    "Left: posterior variances against column norms, at 16 images of one member of each model and image set; the "
    "theorem predicts lines of slope -2. Middle and right: distance between the codes of nearest images. Samples of a "
    "model with a low KL are far apart because its posteriors are wide."
)


def figures_of(results: Results) -> list[ReportFigure]:
    return [
        ReportFigure("a_figure_4", _figure_4(results), FIGURE_4_CAPTION),
        ReportFigure("b_angles", _angles(results), ANGLES_CAPTION),
        ReportFigure("c_theorems", _theorems(results), THEOREMS_CAPTION),
    ]


# Figure 4 -------------------------------------------------------------------------------------


def _figure_4(results: Results) -> Figure:
    groups = by_images(results)
    figure, axes = figures.grid_of_panels(max(1, len(groups)), 4, width=3.3, height=3.1)
    for row, (images, own) in enumerate(groups.items()):
        for column, (label, gap) in enumerate(GAPS.items()):
            axis = axes[4 * row + column]
            _by_objective(axis, own, gap, label)
            figures.format_axis(axis, title=f"{_title(images)}: {label}", x="", y=label, log="", legend=False)
            _against_score(axes[4 * row + column + 2], own, gap, label)
    figures.shared_legend(figure, axes[2])
    return figure


def _by_objective(axis: Axes, results: Results, gap: Callable[[Disentanglement], float], label: str) -> None:
    values = [[gap(r.measured.disentanglement) for r in of_objective(results, o)] for o in OBJECTIVES]
    figures.plot_strips(axis, list(OBJECTIVES.values()), values, label=label)
    axis.set_ylim(bottom=0)


def _against_score(axis: Axes, results: Results, gap: Callable[[Disentanglement], float], label: str) -> None:
    scored = list(zip(results, od_scores(results), strict=True))
    for objective, model in OBJECTIVES.items():
        known = [(s.trained, gap(r.measured.disentanglement)) for r, s in scored if s and r.cell.objective == objective]
        figures.plot_points(axis, [x for x, _ in known], [y for _, y in known], label=model)
    x = "OD-Score (0: orthogonal)"
    figures.format_axis(axis, title=f"{label} and OD-Score", x=x, y=label, log="", legend=False)
    axis.grid(visible=True)


# angles ---------------------------------------------------------------------------------------


def _angles(results: Results) -> Figure:
    """Mean angles between columns of the Jacobian, for the first member of every model with two latents in use."""
    groups = by_images(results)
    figure, axes = figures.grid_of_panels(max(1, len(groups)), len(OBJECTIVES), width=2.9, height=2.9)
    shaded: AxesImage | None = None
    for axis, ((images, own), objective) in zip(axes, product(groups.items(), OBJECTIVES), strict=False):
        axis.set_title(f"{_title(images)}, {OBJECTIVES[objective]}", fontsize=10)
        shaded = _angle_map(axis, [r.measured for r in of_objective(own, objective)]) or shaded
    if shaded is not None:
        figure.colorbar(shaded, ax=list(axes), shrink=0.7, label="degrees (90: orthogonal)")
    return figure


def _angle_map(axis: Axes, members: Sequence[OrthogonalityMeasurement]) -> AxesImage | None:
    known = [(m.latents_in_use, m.columns.angles) for m in members if m.columns is not None]
    if not known:
        axis.text(0.5, 0.5, "fewer than two\nlatents in use", ha="center", va="center", transform=axis.transAxes)
        axis.set_axis_off()
        return None
    latents, flat = known[0]
    angles = np.reshape(flat, (len(latents), len(latents)))
    np.fill_diagonal(angles, np.nan)
    for i, j in product(range(len(latents)), repeat=2):
        if i != j:
            colour = "white" if angles[i, j] < 60 else "#10151a"
            axis.text(j, i, f"{angles[i, j]:.0f}", ha="center", va="center", fontsize=8, color=colour)
    names = [f"z{k}" for k in latents]
    axis.set_xticks(range(len(latents)), names)
    axis.set_yticks(range(len(latents)), names)
    axis.tick_params(length=0)
    return axis.imshow(angles, cmap="viridis", vmin=0, vmax=90)


# theorems -------------------------------------------------------------------------------------


def _theorems(results: Results) -> Figure:
    figure, axes = figures.row_of_panels(3, width=4.0)
    first = [min(own, key=lambda r: r.cell.seed) for own in _models(results)]
    for objective, label in OBJECTIVES.items():
        shown = [r.measured for r in of_objective(first, objective)]
        norms = [v for m in shown for v in m.norms]
        variances = [v for m in shown for v in m.variances]
        axes[0].plot(norms, variances, ".", markersize=3, alpha=0.5, label=label)
    figures.format_axis(axes[0], title="Theorem 1 (c)", x="‖c_j‖, column of the Jacobian", y="σ_j²")
    _neighbours(axes[1], results, lambda n: n.sampled, "sampled codes")
    _neighbours(axes[2], results, lambda n: n.mean, "mean codes")
    return figure


def _models(results: Results) -> list[Results]:
    """The members of every image set and objective."""
    groups = product(by_images(results).values(), OBJECTIVES)
    return [own for members, objective in groups if (own := of_objective(members, objective))]


def _neighbours(axis: Axes, results: Results, pick: Callable[[NeighbourDistances], float], words: str) -> None:
    for objective, label in OBJECTIVES.items():
        own = [r.measured for r in of_objective(results, objective)]
        figures.plot_points(axis, [m.kl for m in own], [pick(m.neighbours) for m in own], label=label)
    y = "mean squared distance of neighbours"
    figures.format_axis(axis, title=f"Theorem 2 (b): {words}", x="KL (nats)", y=y, log="")


def _title(images: ImageSet) -> str:
    """In two lines where it names the loss."""
    return images.title.replace(" with ", "\nwith ")
