"""The figures of a certificate: rank histograms, widths, and bounds on log p(x)."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from vaescope.products.certify.findings import Evidence
from vaescope.products.certify.simulate import BINS, Calibration, GapBounds
from vaescope.report import figures
from vaescope.report.page import Drawing

MAX_HISTOGRAMS = 16  # latents whose histograms are drawn, the worst first


def drawings(evidence: Evidence) -> list[Drawing]:
    """All figures with captions."""
    widths = (
        "Standard deviations of q per latent, with two standard errors. Below 1, q is too narrow. Where both are off, "
        "the encoder's widths are wrong; where only the first is, its means scatter, or no diagonal Gaussian does "
        "better."
    )
    shown: list[tuple[str, Figure | list[Figure], str]] = [
        ("ranks", _histograms(evidence.calibration), _rank_caption(evidence.calibration)),
        ("widths", _widths(evidence), widths),
    ]
    if evidence.bounds is not None:
        sandwich = evidence.bounds.sandwich
        bounds = (
            f"Bounds on log p(x) of {len(sandwich.lower)} simulated x, {sandwich.width:.2g} nats apart on average "
            f"({sandwich.temperatures} temperatures). The zero line is the ELBO of the encoder: above it is its gap."
        )
        shown.append(("bounds", _bounds(evidence.bounds), bounds))
    return [figures.drawing(name, figure, caption) for name, figure, caption in shown]


def _histograms(calibration: Calibration) -> list[Figure]:
    (low, high), counts = calibration.band, calibration.counts
    # those whose widths are furthest from 1, in order
    latents = np.sort(np.argsort(-np.abs(np.log(calibration.width_ratio)))[:MAX_HISTOGRAMS])
    centres, drawn = (np.arange(BINS) + 0.5) / BINS, []
    for k in latents:
        figure, (axis,) = figures.grid_of_panels(1, 1, width=2.3, height=1.6)
        outside = (counts[k] < low) | (counts[k] > high)
        colours = np.where(outside, figures.COLOURS[1], figures.COLOURS[0])
        axis.axhspan(low, high, color="#dfe4e8", zorder=0)
        axis.bar(centres, counts[k], width=0.92 / BINS, color=list(colours), zorder=2)
        axis.axhline(len(calibration.ranks) / BINS, color="#222", lw=0.9, zorder=3)
        axis.set_title(f"z{k}", fontsize=10)
        axis.set_xticks([0, 0.5, 1], ["0", "½", "1"])
        axis.set_yticks([])
        drawn.append(figure)
    return drawn


def _rank_caption(calibration: Calibration) -> str:
    rest = calibration.ranks.shape[1] - MAX_HISTOGRAMS
    more = (
        f" The {MAX_HISTOGRAMS} latents whose widths are furthest from calibrated; {rest} more are not drawn."
        if rest > 0
        else ""
    )
    return (
        "Ranks of the true latent in q(z|x). Flat: q is right; U-shaped: too narrow; dome: too wide; slope: biased. "
        f"Grey: where all bins of all latents of exact posteriors are, with probability 99 %.{more}"
    )


def _widths(evidence: Evidence) -> Figure:
    """Standard deviations of q over calibrated ones and over the best of the family."""
    latents = evidence.calibration.ranks.shape[1]
    figure, (axis,) = figures.row_of_panels(1, width=min(9.6, 4.0 + 0.35 * latents), height=2.9)
    series = {"over calibrated": evidence.calibration, "over the best of the family": evidence.optimality}
    for index, (label, measured) in enumerate(series.items()):
        if measured is not None:
            ratio = np.clip(measured.width_ratio, 1 / 8, 8)
            error = ratio * (np.exp(2 * np.clip(measured.width_error, 0, 1)) - 1)
            place = np.arange(latents) + 0.16 * (2 * index - 1)
            colour = figures.COLOURS[index]
            axis.errorbar(place, ratio, yerr=error, fmt="os"[index], color=colour, ms=4.5, lw=1.2, label=label)
    axis.axhline(1.0, color="#222", lw=0.9)
    axis.set_yscale("log")
    _label_ratios(axis.get_ylim(), figure)
    axis.set_xlabel("latent")
    axis.set_ylabel("width of q")
    if latents <= 40:
        axis.set_xticks(range(latents))
    axis.set_xlim(-0.6, latents - 0.4)
    figures.shared_legend(figure, axis)
    return figure


def _label_ratios(limits: tuple[float, float], figure: Figure) -> None:
    """Plain numbers on the logarithmic axis of ratios."""
    low, high = min(limits[0], 0.77), max(limits[1], 1.3)
    many = (0.25, 0.33, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
    ticks = [v for v in (many if high / low < 4 else (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)) if low <= v <= high]
    axis = figure.axes[0]
    axis.set_ylim(low, high)
    axis.set_yticks(ticks, [f"{v:g}" for v in ticks])
    axis.minorticks_off()


def _bounds(bounds: GapBounds) -> Figure:
    """Both bounds minus the ELBO (or minus their mean) of each simulated x, in order."""
    low, high = bounds.sandwich.lower.numpy(), bounds.sandwich.upper.numpy()
    base = bounds.elbo.numpy() if bounds.elbo is not None else (low + high) / 2
    order = np.argsort((low + high) / 2 - base)
    place = np.arange(len(order))
    figure, (axis,) = figures.row_of_panels(1, width=8.4, height=2.9)
    axis.vlines(place, (low - base)[order], (high - base)[order], color=figures.COLOURS[0], lw=4, label="log p(x)")
    if bounds.best_elbo is not None:
        best = bounds.best_elbo.numpy() - base
        axis.plot(place, best[order], "s", ms=4, color=figures.COLOURS[2], label="best ELBO of the family")
    axis.plot(place, (low - base)[order], ".", ms=3, color=figures.COLOURS[0])
    axis.axhline(0, color="#222", lw=0.9)
    axis.set_xlabel("simulated x")
    axis.set_ylabel("nats above the ELBO" if bounds.elbo is not None else "nats from the middle")
    figures.shared_legend(figure, axis)
    return figure
