"""Figures of self-consistency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vaescope.papers.embrace_the_gap.precision import values_by_precision
from vaescope.papers.embrace_the_gap.self_consistency_results import (
    AUTHORS,
    EXACT_PRECISIONS,
    Results,
    geometric_mean,
)
from vaescope.papers.experiment import ReportFigure
from vaescope.papers.statistics import median
from vaescope.report import figures

PRECISION_LABEL = "decoder precision γ²"
CAPTION = (
    "Left: posterior variances fall like 1/γ². Middle: they agree with Eq. 12, computed from the decoder alone. Right: "
    "decoding the mean encoding returns the observation; the exact projection shows what a perfect encoder of the same "
    "decoder would reach. Lines are medians over seeds, bands the range over seeds, crosses the authors' medians. "
    "Their variances are lower: σ²γ² is 1 / squared column norm of the decoder, so levels depend on the scale of the "
    "observations, which is not published; slopes are comparable, levels are not."
)
GAP_CAPTION = (
    "Left: the gap between the ELBO and log p(x), split into what no diagonal Gaussian can avoid (family) and what "
    "this encoder loses on top (amortisation), both exact for the trained decoder. Right: the decoder trained at the "
    "highest γ², with γ² varied afterwards and everything solved exactly: the family gap converges to c_IMA and the "
    "variances to Eq. 12, at rate 1/γ²."
)


def all_figures(results: Results) -> list[ReportFigure]:
    return [
        ReportFigure("self_consistency", _self_consistency(results), CAPTION),
        ReportFigure("the_gap", _gap(results), GAP_CAPTION),
    ]


def _self_consistency(results: Results) -> Figure:
    figure, axes = figures.row_of_panels(3)
    trained = values_by_precision(results, lambda m: geometric_mean(m.posterior_variance))
    exact = values_by_precision(results, lambda m: geometric_mean(m.exact_variance))
    predicted = values_by_precision(results, lambda m: geometric_mean(m.predicted_variance))
    _curve(axes[0], trained, "trained encoder")
    _curve(axes[0], exact, "exact projection", dashed=True)
    figures.reference_slope(axes[0], list(trained), [median(v) for v in trained.values()], power=-1.0)
    _curve(axes[1], trained, "trained encoder σ²")
    _curve(axes[1], predicted, "Eq. 12, from the decoder", dashed=True)
    _curve(axes[2], values_by_precision(results, lambda m: m.reconstruction_mse), "trained encoder")
    exact_errors = values_by_precision(results, lambda m: m.exact_reconstruction_mse)
    _curve(axes[2], exact_errors, "exact projection", dashed=True)
    authors = {precision: AUTHORS[precision] for precision in trained if precision in AUTHORS}
    columns = zip(*((a.variance, a.predicted, a.mse) for a in authors.values()), strict=True)
    for axis, published in zip(axes, columns, strict=False):
        figures.plot_published(axis, list(authors), published, label="authors' median")
    figures.format_axis(axes[0], title="Posterior variance", x=PRECISION_LABEL, y="σ² (geometric mean over latents)")
    figures.format_axis(axes[1], title="Both sides of Eq. 12", x=PRECISION_LABEL, y="σ² (geometric mean over latents)")
    figures.format_axis(axes[2], title="Self-consistency", x=PRECISION_LABEL, y="mean squared x − f(μ(x))")
    return figure


def _gap(results: Results) -> Figure:
    figure, axes = figures.row_of_panels(2, width=5.6)
    _curve(axes[0], values_by_precision(results, lambda m: m.family_gap), "family: log p − ELBO*")
    _curve(axes[0], values_by_precision(results, lambda m: m.amortisation_gap), "amortisation: ELBO* − ELBO")
    limits = [r.measured.limits for r in results if r.measured.limits is not None]
    indices = range(len(EXACT_PRECISIONS))
    gap_errors = {EXACT_PRECISIONS[i]: [limit.gap_error[i] for limit in limits] for i in indices}
    variance_errors = {EXACT_PRECISIONS[i]: [limit.variance_error[i] for limit in limits] for i in indices}
    _curve(axes[1], gap_errors, "|gap − c_IMA|")
    _curve(axes[1], variance_errors, "|σ² / Eq. 12 − 1|")
    if limits:
        figures.reference_slope(axes[1], EXACT_PRECISIONS, [median(v) for v in gap_errors.values()], power=-1.0)
    figures.format_axis(axes[0], title="Parts of the gap", x=PRECISION_LABEL, y="nats per observation")
    figures.format_axis(axes[1], title="Rates, solved exactly", x=PRECISION_LABEL, y="distance from the limit")
    return figure


def _curve(axis: Axes, values: Mapping[float, Sequence[float]], label: str, *, dashed: bool = False) -> None:
    """Median and range over members at every γ²."""
    figures.plot_median_and_range(axis, list(values), list(values.values()), label=label, dashed=dashed)
