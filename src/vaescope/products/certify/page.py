"""A certificate as one self-contained page: findings, rank histograms, widths, bounds, skipped analyses."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from vaescope.products.certify.bounds import GapBounds
from vaescope.products.certify.findings import Evidence
from vaescope.products.certify.simulate import BINS, COVERAGE, Calibration
from vaescope.report import figures
from vaescope.report.figures import svg
from vaescope.report.page import render, versions

if TYPE_CHECKING:
    from vaescope.products.certify.certify import Certificate


LATENTS = 16  # whose histograms are drawn, the worst first
NAMED = 40  # latents with a number of their own on an axis
TICKS = (0.25, 0.33, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0)
FEW_TICKS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CLIPPED = 8.0  # width ratios are drawn up to this factor


def drawings(evidence: Evidence) -> Iterator[tuple[str, Figure, str]]:
    """Name, figure and caption of each figure."""
    yield "ranks", _histograms(evidence.calibration), _rank_caption(evidence.calibration)
    yield "widths", _widths(evidence), _WIDTHS
    if evidence.bounds is not None:
        yield "bounds", _bounds(evidence.bounds), _bounds_caption(evidence.bounds)


def _chosen(calibration: Calibration) -> np.ndarray:
    """The latents that are drawn, in order: those whose widths are furthest from 1."""
    distance = np.abs(np.log(calibration.width_ratio))
    return np.sort(np.argsort(-distance)[:LATENTS])


def _histograms(calibration: Calibration) -> Figure:
    latents, (low, high), counts = _chosen(calibration), calibration.band, calibration.counts
    columns = min(4, len(latents))
    rows = math.ceil(len(latents) / columns)
    figure, axes = figures.grid_of_panels(rows, columns, width=2.9, height=1.9)
    centres = (np.arange(BINS) + 0.5) / BINS
    for axis, k in zip(axes, latents, strict=False):
        outside = (counts[k] < low) | (counts[k] > high)
        colours = np.where(outside, figures.COLOURS[1], figures.COLOURS[0])
        axis.axhspan(low, high, color="#dfe4e8", zorder=0)
        axis.bar(centres, counts[k], width=0.92 / BINS, color=list(colours), zorder=2)
        axis.axhline(len(calibration.residual) / BINS, color="#222", lw=0.9, zorder=3)
        axis.set_title(f"z{k}", fontsize=10)
        axis.set_xticks([0, 0.5, 1], ["0", "½", "1"])
        axis.set_yticks([])
    for axis in axes[len(latents) :]:
        axis.set_axis_off()
    return figure


def _rank_caption(calibration: Calibration) -> str:
    rest = calibration.residual.shape[1] - LATENTS
    more = (
        f" The {LATENTS} latents whose widths are furthest from calibrated; {rest} more are not drawn."
        if rest > 0
        else ""
    )
    return (
        "Ranks of the true latent in q(z|x). Flat: q is right; U-shaped: too narrow; dome: too wide; slope: biased. "
        f"Grey: where all bins of all latents of exact posteriors are, with probability 99 %.{more}"
    )


def _widths(evidence: Evidence) -> Figure:
    """Standard deviations of q over calibrated ones and over the best of the family."""
    latents = evidence.calibration.residual.shape[1]
    figure, (axis,) = figures.row_of_panels(1, width=min(9.6, 4.0 + 0.35 * latents), height=2.9)
    series = {"over calibrated": evidence.calibration, "over the best of the family": evidence.optimality}
    for index, (label, measured) in enumerate(series.items()):
        if measured is not None:
            ratio = np.clip(measured.width_ratio, 1 / CLIPPED, CLIPPED)
            error = ratio * (np.exp(2 * np.clip(measured.width_error, 0, 1)) - 1)
            place = np.arange(latents) + 0.16 * (2 * index - 1)
            colour = figures.COLOURS[index]
            axis.errorbar(place, ratio, yerr=error, fmt="os"[index], color=colour, ms=4.5, lw=1.2, label=label)
    axis.axhline(1.0, color="#222", lw=0.9)
    axis.set_yscale("log")
    _label_ratios(axis.get_ylim(), figure)
    axis.set_xlabel("latent")
    axis.set_ylabel("width of q")
    if latents <= NAMED:
        axis.set_xticks(range(latents))
    axis.set_xlim(-0.6, latents - 0.4)
    figures.shared_legend(figure, axis)
    return figure


def _label_ratios(limits: tuple[float, float], figure: Figure) -> None:
    """Plain numbers on the logarithmic axis of ratios."""
    low, high = min(limits[0], 0.77), max(limits[1], 1.3)
    ticks = [v for v in (TICKS if high / low < 4 else FEW_TICKS) if low <= v <= high]
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


def _bounds_caption(bounds: GapBounds) -> str:
    sandwich = bounds.sandwich
    return (
        f"Bounds on log p(x) of {len(sandwich.lower)} simulated x, {sandwich.width:.2g} nats apart on average "
        f"({sandwich.temperatures} temperatures). The zero line is the ELBO of the encoder: what is above is its gap."
    )


_WIDTHS = (
    "Standard deviations of q per latent, with two standard errors. Below 1, q is too narrow. Where both are off, "
    "the encoder's widths are wrong; where only the first is, its means scatter, or no diagonal Gaussian does better."
)


VERDICTS = {
    None: "Posteriors are right on simulated x.",
    "note": "Posteriors are as good as their family allows on simulated x; see the notes.",
    "warning": "Read the warnings before you rely on these posteriors.",
    "error": "These posteriors are wrong.",
}
PIXELS = 96  # per inch of figure width, at most
LEGEND = (
    "Width ratio: standard deviation of q over a calibrated one; below 1, too narrow. Width / best of family: over "
    "that of the best diagonal Gaussian, so an error of the encoder. Scatter of means: distance of the encoder's means "
    "from the best ones. Bias: mean of (true z - mean) over the standard deviation. Coverage: share of true values in "
    "central intervals of that probability."
)
GLOSSARY = {
    "simulated x": "z drawn from the prior, x drawn from the decoder at z: z is then an exact sample of p(z|x).",
    "rank": "The share of q(z|x) below the true z. Uniform if q is exact; U-shaped if q is too narrow.",
    "family": "What q can be: diagonal Gaussians. The best one is narrower than the marginals of correlated latents.",
    "bounds on log p(x)": "Annealed importance sampling from below and, from the exact z, from above.",
    "AUC": "How well a classifier tells real from simulated samples: 0.5 if they are alike, 1 if always.",
}


def html(certificate: Certificate) -> str:
    """The page; text from users is escaped."""
    return render("certificate.html", versions=versions(), glossary=GLOSSARY, **_values(certificate))


def fragment(certificate: Certificate) -> str:
    """Findings and the table, for a notebook."""
    return render("certificate_fragment.html", **_values(certificate, figures=False))


def _values(certificate: Certificate, *, figures: bool = True) -> dict[str, object]:
    rows = certificate.summary()
    shown = drawings(certificate.evidence) if figures else []
    return {
        "name": certificate.name,
        "simulations": len(certificate.ranks),
        "verdict": VERDICTS[certificate.worst],
        "findings": certificate.findings,
        "facts": facts(certificate),
        "columns": list(rows[0]) if rows else [],
        "rows": rows,
        "legend": LEGEND,
        "drawings": [(n, Markup(svg(f)), text, round(PIXELS * f.get_figwidth())) for n, f, text in shown],
        "skipped": certificate.skipped,
    }


def facts(certificate: Certificate) -> list[tuple[str, str]]:
    """Single numbers with their labels."""
    evidence = certificate.evidence
    ratio = evidence.calibration.width_ratio
    found = [
        ("latents", str(len(ratio))),
        ("width ratio", f"{ratio.min():.2f} to {ratio.max():.2f}" if len(ratio) > 1 else f"{ratio[0]:.2f}"),
    ]
    found += [(f"{p:.0%} coverage, mean", f"{evidence.calibration.coverage(p).mean():.1%}") for p in COVERAGE]
    if (bounds := evidence.bounds) is not None:
        found.append(("log p(x) known to", f"{_rounded(bounds.sandwich.width)} nats"))
        if bounds.gap is not None:
            found.append(("log p(x) - ELBO", f"{_interval(*bounds.gap)} nats"))
        if bounds.amortisation is not None:
            found.append(("lost by the encoder", f"≥ {_rounded(bounds.amortisation)} nats"))
    if evidence.transfer is not None:
        worst = max(evidence.transfer.tests, key=lambda test: test.auc)
        found.append(("real against simulated, AUC", f"{worst.auc:.2f} ({worst.features})"))
    return found


def _rounded(value: float) -> str:
    return "0" if abs(value) < 5e-4 else f"{value:.2g}"


def _interval(low: float, high: float) -> str:
    return _rounded(low) if abs(high - low) < 5e-4 else f"{_rounded(low)} to {_rounded(high)}"
