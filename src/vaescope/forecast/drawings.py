"""Figures of a preflight: the phase diagram, the spectrum, and trained models beside their predictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from vaescope.forecast import phase
from vaescope.report import figures

if TYPE_CHECKING:
    from vaescope.forecast.result import Preflight

LATENTS = 40  # that are drawn, at most
STEPS = 120  # of β/γ² in the diagram
LINE, MARK = "#b3382c", "#1c2630"


def drawings(found: Preflight) -> Iterator[tuple[str, Figure, str]]:
    """Name, figure and caption of each figure."""
    if found.scaled_spectrum.total <= 0:
        return
    yield "phase", _phase(found), _phase_caption(found)
    if found.confirmation is not None:
        yield "confirmed", _confirmed(found), _CONFIRMED
    yield "spectrum", _spectrum(found), _spectrum_caption(found)


def _phase(found: Preflight) -> Figure:
    """Used latents, KL and explained variance over (β/γ², d)."""
    eigenvalues = found.scaled_spectrum.eigenvalues
    depth = max(2, min(LATENTS, len(eigenvalues), 2 * found.recommended.latent_dim))
    variances = np.geomspace(_lowest(found) / 4, 4 * float(eigenvalues[0]), STEPS)
    latents = np.arange(1, depth + 1)
    panels = (
        ("latents in use", phase.used_count, "viridis"),
        ("KL, nats per sample", phase.total_kl, "magma"),
        ("variance explained", phase.explained_share, "cividis"),
    )
    figure, axes = figures.row_of_panels(len(panels), width=4.2, height=3.6)
    for axis, (title, quantity, colours) in zip(axes, panels, strict=True):
        values = np.array([[quantity(eigenvalues, float(v), int(d)) for v in variances] for d in latents], float)
        picture = axis.pcolormesh(variances, latents, values, cmap=colours, shading="nearest", rasterized=True)
        figure.colorbar(picture, ax=axis, pad=0.02)
        figures.format_axis(axis, title=title, x="β/γ²", y="latents d", log="", legend=False)
        axis.set_xscale("log")
        axis.grid(visible=False)
        _lines(axis, found)
    axes[0].legend(loc="upper left", fontsize=8.5, framealpha=0.85, frameon=True)
    return figure


def _lines(axis: Axes, found: Preflight) -> None:
    """The collapse line and the recommended start."""
    recommended = found.recommended
    start = 1 / (recommended.precision or 1.0)
    axis.axvline(float(found.scaled_spectrum.eigenvalues[0]), color=LINE, lw=2, label="collapse line λ₁")
    label = "β = 1" if recommended.precision is None else "recommended start"
    axis.plot([start], [recommended.latent_dim], "*", color="white", mec=MARK, ms=15, label=label)
    top = axis.get_ylim()[1]
    axis.set_ylim(0.5, max(top, recommended.latent_dim + 0.5))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))


def _lowest(found: Preflight) -> float:
    """Smallest β/γ² that is worth drawing."""
    eigenvalues = found.scaled_spectrum.eigenvalues
    start = 1 / (found.recommended.precision or 1.0)
    positive = eigenvalues[eigenvalues > 1e-6 * eigenvalues[0]]
    return min(start, float(positive[min(len(positive), LATENTS) - 1]))


def _confirmed(found: Preflight) -> Figure:
    """Latents in use over β/γ²: a line per d predicted, dots trained."""
    assert found.confirmation is not None
    cells = found.confirmation.cells
    eigenvalues = found.scaled_spectrum.eigenvalues
    limit = None if found.dimension is None else found.dimension.limit
    span = [c.variance for c in cells]
    variances = np.geomspace(min(span) / 1.5, max(span) * 1.5, 400)
    figure, (axis,) = figures.row_of_panels(1, width=8.2, height=3.8)
    for index, d in enumerate(sorted({c.latents for c in cells})):
        colour = figures.COLOURS[index]
        counts = [phase.expected_count(eigenvalues, float(v), d, limit=limit) for v in variances]
        axis.step(variances, counts, color=colour, label=f"predicted, d = {d}")
        for done, fill in ((True, colour), (False, "white")):
            own = [c for c in cells if c.latents == d and c.converged == done]
            if own:
                label = f"trained, d = {d}" + ("" if done else " (still improving)")
                axis.plot([c.variance for c in own], [c.used for c in own], "o", mfc=fill, mec=colour, label=label)
    axis.axvline(float(eigenvalues[0]), color=LINE, lw=1.5, ls="--", label="collapse line λ₁")
    figures.format_axis(axis, title="latents in use", x="β/γ²", y="latents", log="")
    axis.set_xscale("log")
    return figure


def _spectrum(found: Preflight) -> Figure:
    """Eigenvalues with the noise floor, beside the variance that leading axes hold."""
    spectrum = found.scaled_spectrum
    shown = spectrum.eigenvalues[: max(2, min(len(spectrum.eigenvalues), 100))]
    positive = shown[shown > 1e-9 * shown[0]]
    index = np.arange(1, len(positive) + 1)
    figure, (left, right) = figures.row_of_panels(2, width=5.6, height=3.4)
    left.plot(index, positive, "o-", ms=3.5, label="eigenvalues of the covariance")
    if spectrum.noise > 1e-9 * shown[0]:
        left.axhline(spectrum.noise, color=figures.COLOURS[2], ls="--", label="noise floor")
    if found.recommended.precision is not None:
        left.axhline(1 / found.recommended.precision, color=figures.COLOURS[1], label="recommended decoder variance")
    else:
        left.axhline(1.0, color=figures.COLOURS[1], label="β = 1")
    figures.format_axis(left, title="spectrum", x="latent", y="λ", log="y")
    held = np.cumsum(spectrum.eigenvalues)[: len(positive)] / spectrum.total
    right.plot(index, held, "o-", ms=3.5, color=figures.COLOURS[0], label="principal axes")
    _mark_dimension(right, found)
    right.set_ylim(0, 1.03)
    figures.format_axis(right, title="variance held", x="latents", y="share", log="")
    return figure


def _mark_dimension(axis: Axes, found: Preflight) -> None:
    if found.dimension is not None:
        label = f"intrinsic dimension {found.dimension.value:.1f}"
        axis.axvspan(found.dimension.low, found.dimension.high, color=figures.COLOURS[3], alpha=0.18, lw=0)
        axis.axvline(found.dimension.value, color=figures.COLOURS[3], ls=":", label=label)
    axis.axvline(found.recommended.latent_dim, color=figures.COLOURS[1], label="latents recommended")


def _phase_caption(found: Preflight) -> str:
    approximate = (
        " The Bernoulli likelihood is approximated to second order in the logits: only the collapse line is exact."
        if found.kind.likelihood == "bernoulli"
        else " Exact for linear decoders; the collapse line holds for all."
    )
    return f"What a VAE with d latents does at decoder variance 1/γ² and KL weight β.{approximate}"


def _spectrum_caption(found: Preflight) -> str:
    spectrum = found.scaled_spectrum
    leading = "" if spectrum.exact else " Leading eigenvalues by a randomised method."
    return f"{spectrum.signal} eigenvalues stand out of the noise (Tracy-Widom, 99.5 %).{leading}"


_CONFIRMED = "Latents that small trained models use, and what the linear theory predicts for them."
