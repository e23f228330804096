"""Figures of elbo-gap."""

from __future__ import annotations

from matplotlib.axes import Axes

from vaescope.papers.embrace_the_gap.elbo_gap_results import (
    DECADES,
    HALF_DECADES,
    ORTHOGONAL,
    PUBLISHED_ELBO,
    TRIANGULAR,
    WIDE,
    WIDE_NOISY,
    ElboGapMeasurement,
    Results,
    at_highest,
    ceiling,
    of_mixing,
    second_half_gains,
    trained_elbo,
)
from vaescope.papers.experiment import ReportFigure
from vaescope.papers.results import grouped
from vaescope.papers.statistics import median
from vaescope.report import figures

ABOVE_BOUND = sum(elbo > ceiling(p) for p, elbo in zip(HALF_DECADES, PUBLISHED_ELBO, strict=True))
TITLES = ("Outside the IMA class", "Inside the IMA class")
CAPTION = (
    "Left: the triangular mixing. The exact ELBO* exceeds L_IMA, then converges to it; it stays far from log p. Black "
    "crosses are the published values with their abscissa read as γ. Grey crosses show them read as γ²: "
    f"{ABOVE_BOUND} of {len(PUBLISHED_ELBO)} are above the dotted line, the upper bound of every ELBO. "
    "Right: the orthogonal mixing, where C_IMA = 0 and all curves "
    "meet. Lines are medians over seeds, bands the range over seeds."
)
RATES_CAPTION = (
    "Distance of ELBO* from its limit. The triangular mixing converges only once γ times the smallest singular value "
    "of its Jacobian is large; the box of the uniform prior slows the orthogonal one. Decoders with more outputs than "
    "latents, which the paper leaves open, converge at the same rate for observations without noise, and like 1/γ for "
    "noisy ones."
)


PARTS_CAPTION = (
    "What separates the trained encoders of the triangular mixing from ELBO*. Circles: the distance that remains after "
    "training. Squares: what the second half of training gained, from encoders trained for half as many epochs with "
    "the same schedule. Where the squares are far below the circles, what remains is amortisation: more training would "
    "not remove it. Lines are medians over seeds, bands the range over seeds; values below 1e-4 nats are drawn there."
)
SMALLEST = 1e-4  # nats


def curves(results: Results) -> ReportFigure:
    figure, axes = figures.row_of_panels(2, width=6.0, height=4.3)
    _draw_panel(axes[0], results, TRIANGULAR)
    _draw_published(axes[0])
    axes[0].set_ylim(-4, 16.5)
    _draw_panel(axes[1], results, ORTHOGONAL)
    axes[1].set_ylim(max(-6.0, axes[1].get_ylim()[0]), None)
    for axis, title in zip(axes, TITLES, strict=True):
        figures.format_axis(axis, title=title, x="decoder precision γ²", y="nats per observation", log="x")
    return ReportFigure("elbo_gap", figure, CAPTION)


def rates(results: Results) -> ReportFigure:
    figure, axes = figures.row_of_panels(1, width=7.5, height=4.3)
    labels = {
        TRIANGULAR: "triangular, |ELBO* − L_IMA|",
        ORTHOGONAL: "orthogonal, uniform prior",
        WIDE: "n > d, |gap − c_IMA|",
        WIDE_NOISY: "n > d, noisy observations",
    }
    for mixing, label in labels.items():
        groups = _by_precision(results, mixing)
        distances = [[m.distance for m in group] for group in groups.values()]
        figures.plot_median_and_range(axes[0], list(groups), distances, label=label)
    figures.format_axis(axes[0], title="Rates", x="decoder precision γ²", y="mean distance from the limit, nats")
    return ReportFigure("rates", figure, RATES_CAPTION)


def parts(results: Results) -> list[ReportFigure]:
    """Amortisation and unfinished training; nothing without encoders trained for half as long."""
    gains = second_half_gains(results)
    if not gains:
        return []
    figure, (axis,) = figures.row_of_panels(1, width=7.5)
    groups = grouped(sorted(gains, key=lambda cell: cell.precision), lambda cell: cell.precision)
    encoders = {r.cell: r.measured.encoder for r in results}
    left = [[encoder.amortisation_gap for c in cells if (encoder := encoders[c])] for cells in groups.values()]
    gained = [[gains[cell] for cell in cells] for cells in groups.values()]
    for label, values in (("ELBO* − trained ELBO", left), ("gained by the second half of training", gained)):
        shown = [[max(value, SMALLEST) for value in group] for group in values]
        figures.plot_median_and_range(axis, list(groups), shown, label=label, dashed=values is gained)
    title = "Amortisation and unfinished training, triangular mixing"
    figures.format_axis(axis, title=title, x="decoder precision γ²", y="nats per observation")
    return [ReportFigure("amortisation", figure, PARTS_CAPTION)]


def _by_precision(results: Results, mixing: str) -> dict[float, list[ElboGapMeasurement]]:
    """Measurements of a mixing by γ², in ascending order."""
    own = sorted(of_mixing(results, mixing), key=lambda r: r.cell.precision)
    return {p: [r.measured for r in group] for p, group in grouped(own, lambda r: r.cell.precision).items()}


def _draw_panel(axis: Axes, results: Results, mixing: str) -> None:
    """Exact and trained curves of one mixing, and its limits."""
    groups = _by_precision(results, mixing)
    exact = [[m.elbo_star for m in group] for group in groups.values()]
    figures.plot_median_and_range(axis, list(groups), exact, label="ELBO*, exact")
    trained = {p: [v for m in group if (v := trained_elbo(m)) is not None] for p, group in groups.items()}
    known = {p: values for p, values in trained.items() if values}
    figures.plot_median_and_range(axis, list(known), list(known.values()), label="ELBO, trained encoder", dashed=True)
    if highest := at_highest(results, mixing):
        axis.axhline(median([m.log_p for m in highest]), color="#2c8a5b", linewidth=1.4, label="log p")
        axis.axhline(median([m.l_ima for m in highest]), color="#8150a8", linewidth=1.4, label="L_IMA")


def _draw_published(axis: Axes) -> None:
    """The published values in both readings, and the upper bound of every ELBO."""
    figures.plot_published(axis, [p**2 for p in HALF_DECADES], PUBLISHED_ELBO, label="published, read as γ")
    axis.plot(HALF_DECADES, PUBLISHED_ELBO, "x", color="#aab3bb", markersize=6, label="published, read as γ²")
    bounded = [p for p in DECADES if ceiling(p) < 16]
    bounds = [ceiling(p) for p in bounded]
    axis.plot(bounded, bounds, ":", color="#6b7680", linewidth=1.3, label="bound n/2 log(γ²/2π)")
