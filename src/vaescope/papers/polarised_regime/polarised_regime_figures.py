"""Figures of polarised-regime."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vaescope.papers.experiment import ReportFigure
from vaescope.papers.polarised_regime.polarised_regime_results import (
    COMPARED,
    MODELS,
    PANELS,
    Histogram,
    LatentHistograms,
    PerLatent,
    RegimeMeasurement,
    RegimeResult,
    RegimeSettings,
    Results,
    figure_members,
    select,
)
from vaescope.report import figures

MIN_KL = 1e-4  # nats; smaller values are drawn here
COLOURS = {"active": "#d1592b", "passive": "#1f5fa8", "mixed": "#2c8a5b"}
LABELS = {
    "mean": "μ",
    "variance": "posterior variance σ²",
    "prior_variance": "prior variance σ†²",
    "sample": "z from the posterior",
    "prior_sample": "z† from the prior",
}
LATENTS_CAPTION = (
    "Every latent of every member: its KL against the ratio of posterior and prior variance. A polarised model has two "
    "groups with little between them. Right: the posterior variance by itself, where the passive latents of an iVAE "
    "have the small values that active latents of a VAE have."
)
PASSIVE_CAPTION = (
    "One passive latent of each model (Figs. 1 and 4 of the paper): its means, its posterior and prior variances, and "
    "samples from its posterior and prior."
)
ACTIVE_CAPTION = (
    "One active latent of each model (Figs. 2 and 3 of the paper): its posterior variance is far below that of the "
    "prior, and its samples are distributed like its means."
)
COUNTS_CAPTION = (
    "Number of active latents over the number of latents and over β: medians over seeds, with a band where seeds "
    "differ."
)
TRUNCATION_CAPTION = (
    "What every latent adds, most used ones first, without retraining: squared error at the mean code, and ELBO of the "
    "truncated code. Dotted: the number of latents in use. If the prior mean is learned from the factors, even a code "
    "without latents reconstructs, because the prior already knows the image."
)


def figures_of(results: Results, settings: RegimeSettings) -> list[ReportFigure]:
    drawn = [ReportFigure("regime_latents", _latent_map(results), LATENTS_CAPTION)]
    members = figure_members(results, settings)
    if members:
        passive = _histograms(members, "passive", lambda m: m.passive_histograms)
        active = _histograms(members, "active", lambda m: m.active_histograms)
        drawn += [
            ReportFigure("regime_passive", passive, PASSIVE_CAPTION),
            ReportFigure("regime_active", active, ACTIVE_CAPTION),
        ]
    drawn.append(ReportFigure("regime_counts", _counts(results, settings), COUNTS_CAPTION))
    if members:
        drawn.append(ReportFigure("regime_truncation", _truncation(members), TRUNCATION_CAPTION))
    return drawn


# all latents ----------------------------------------------------------------------------------


def _latent_map(results: Results) -> Figure:
    figure, axes = figures.row_of_panels(len(MODELS) + 1, width=3.9, height=3.8)
    for axis, (model, name) in zip(axes, MODELS.items(), strict=False):
        own = [r.measured.per_latent for r in results if r.cell.model == model]
        _points(axis, own, lambda latents: latents.variance_ratio)
        figures.format_axis(axis, title=name, x="σ²/σ†²", y="KL in nats", log="xy", legend=False)
        axis.set_xlim(1e-3, 3)
    _points(axes[-1], [r.measured.per_latent for r in results if r.cell.model == "ivae"], _posterior_variance)
    figures.format_axis(
        axes[-1], title="iVAE, not relative to its prior", x="σ²", y="KL in nats", log="xy", legend=False
    )
    for axis in axes:
        axis.set_ylim(MIN_KL / 2, 10)
    figures.shared_legend(figure, axes[0])
    return figure


def _posterior_variance(latents: PerLatent) -> list[float]:
    return [ratio * prior for ratio, prior in zip(latents.variance_ratio, latents.prior_variance, strict=True)]


def _points(axis: Axes, members: Sequence[PerLatent], x: Callable[[PerLatent], Sequence[float]]) -> None:
    for kind, colour in COLOURS.items():
        across = [value for latents in members for value in latents.of_kind(kind, x(latents))]
        up = [max(value, MIN_KL) for latents in members for value in latents.of_kind(kind, latents.kl)]
        axis.plot(across, up, "o", color=colour, markersize=5, alpha=0.6, label=kind)


# histograms -----------------------------------------------------------------------------------


def _histograms(members: Results, kind: str, pick: Callable[[RegimeMeasurement], LatentHistograms | None]) -> Figure:
    """A row per model, a column per panel."""
    figure, axes = figures.grid_of_panels(len(members), len(PANELS), width=4.0, height=2.5)
    for row, result in enumerate(members):
        found = pick(result.measured)
        own = axes[row * len(PANELS) : (row + 1) * len(PANELS)]
        panels = (None,) * len(PANELS) if found is None else (found.means, found.variances, found.samples)
        for axis, panel, histogram in zip(own, PANELS, panels, strict=True):
            hidden = {"mean"} if (kind, panel) == ("passive", "samples") else set()
            _histogram(axis, histogram, hidden, empty=f"no {kind} latent")
            title = MODELS[result.cell.model] if panel == "means" else ""
            figures.format_axis(axis, title=title, x="", y="", log="", legend=histogram is not None)
    return figure


def _histogram(axis: Axes, histogram: Histogram | None, hidden: set[str], *, empty: str) -> None:
    axis.set_yticks([])
    axis.xaxis.set_major_locator(MaxNLocator(5))
    if histogram is None:
        axis.text(0.5, 0.5, empty, ha="center", transform=axis.transAxes)
        return
    shown = [name for name in histogram.counts if name not in hidden]
    for name, colour in zip(shown, figures.COLOURS, strict=False):
        _steps(axis, histogram.counts[name], histogram.edges, LABELS[name], colour)


def _steps(axis: Axes, counts: Sequence[float], edges: Sequence[float], label: str, colour: str) -> None:
    with mpl.rc_context({"lines.linewidth": 1.4}):
        axis.stairs(counts, edges, label=label, color=colour, fill=True, alpha=0.35)
        axis.stairs(counts, edges, color=colour, linewidth=1.2)


# counts and truncation ------------------------------------------------------------------------


def _counts(results: Results, settings: RegimeSettings) -> Figure:
    figure, axes = figures.row_of_panels(2, width=4.6)
    latents, beta = settings.latents[0], settings.betas[0]
    widths = {float(n): (n, beta) for n in sorted(settings.latents)}
    betas = {b: (latents, b) for b in sorted(settings.betas)}
    highest = max([5, *(r.measured.count("active") for r in results if r.cell.model in COMPARED)])
    for axis, settings_at, label in ((axes[0], widths, "number of latents"), (axes[1], betas, "β")):
        for index, model in enumerate(COMPARED):
            groups = [select(results, model, *at) for at in settings_at.values()]
            values = [[r.measured.count("active") for r in group] for group in groups]
            shifted = [x * (1 + 0.01 * (2 * index - 1)) for x in settings_at]
            figures.plot_median_and_range(axis, shifted, values, label=MODELS[model], dashed=bool(index))
        figures.format_axis(axis, title="Active latents", x=label, y="active", log="")
        axis.set_ylim(0, highest + 1)
        axis.set_xticks(list(settings_at))
        axis.legend(loc="lower right")
    return figure


def _truncation(members: Sequence[RegimeResult]) -> Figure:
    figure, axes = figures.row_of_panels(2, width=4.6)
    for index, (result, colour) in enumerate(zip(members, figures.COLOURS, strict=False)):
        found, label = result.measured.truncation, MODELS[result.cell.model]
        for axis, values in zip(axes, (found.error, found.elbo), strict=True):
            axis.plot(np.arange(len(values)), values, "-o", markersize=4, color=colour, label=label)
            axis.axvline(found.used + 0.06 * (index - 1), color=colour, linestyle=":", linewidth=1.2)
    figures.format_axis(axes[0], title="Reconstruction", x="latents kept", y="squared error per image", log="")
    figures.format_axis(axes[1], title="ELBO", x="latents kept", y="nats", log="")
    return figure
