"""The figures of a preflight, and the words of its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vaescope.products.preflight.recommend import expected_count
from vaescope.report import figures
from vaescope.report.page import Drawing, number

if TYPE_CHECKING:
    from vaescope.products.preflight.preflight import Preflight


def drawings(found: Preflight) -> list[Drawing]:
    """The figures; none for data that do not vary."""
    if found.scaled_spectrum.total <= 0:
        return []
    approximate = (
        "The Bernoulli likelihood is approximated to second order in the logits: only the collapse line is exact."
        if found.kind.likelihood == "bernoulli"
        else "Exact for linear decoders; the collapse line holds for all."
    )
    does = f"What a VAE with d latents does at decoder variance 1/γ² and KL weight β. {approximate}"
    leading = "" if found.scaled_spectrum.exact else " Leading eigenvalues by a randomised method."
    signal = f"{found.scaled_spectrum.signal} eigenvalues stand out of the noise (Tracy-Widom, 99.5 %).{leading}"
    trained = "Latents that small trained models use, and what the linear theory predicts for them."
    drawn = [("phase", _phase(found), does)]
    drawn += [] if found.confirmation is None else [("confirmed", _confirmed(found), trained)]
    drawn += [("spectrum", _spectrum(found), signal)]
    return [figures.drawing(name, figure, caption) for name, figure, caption in drawn]


def _phase(found: Preflight) -> Figure:
    """Used latents, KL and explained variance over (β/γ², d)."""
    recommended = found.recommended
    label = "β = 1" if recommended.precision is None else "recommended start"
    start = 1 / (recommended.precision or 1.0)
    return figures.phase_diagram(found.scaled_spectrum.eigenvalues, start, recommended.latent_dim, label=label)


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
        counts = [expected_count(eigenvalues, float(v), d, limit=limit) for v in variances]
        axis.step(variances, counts, color=colour, label=f"predicted, d = {d}")
        for done, fill in ((True, colour), (False, "white")):
            own = [c for c in cells if c.latents == d and c.converged == done]
            if own:
                label = f"trained, d = {d}" + ("" if done else " (still improving)")
                axis.plot([c.variance for c in own], [c.used for c in own], "o", mfc=fill, mec=colour, label=label)
    axis.axvline(float(eigenvalues[0]), color="#b3382c", lw=1.5, ls="--", label="collapse line λ₁")
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
    precision = found.recommended.precision
    label = "β = 1" if precision is None else "recommended decoder variance"
    left.axhline(1 / (precision or 1.0), color=figures.COLOURS[1], label=label)
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


def facts(found: Preflight) -> list[tuple[str, str]]:
    """Single numbers with their labels; what to set first."""
    recommended, dimension = found.recommended, found.dimension
    low, high = recommended.beta
    precision = "" if recommended.precision is None else number(recommended.precision)
    interval = "" if dimension is None else f"{dimension.value:.1f} ({dimension.low:.1f}–{dimension.high:.1f})"
    chosen = [
        ("latents", str(recommended.latent_dim)),
        ("likelihood", recommended.likelihood),
        ("scaling", recommended.scaling),
        ("precision γ², at the start", precision),
        ("β that keeps the latents needed", f"{low:.3g} to {high:.3g}"),
        ("β that collapses everything", f"from {recommended.collapse_beta:.3g}"),
        ("batch size, epochs", f"{recommended.batch_size}, {recommended.epochs}"),
        ("intrinsic dimension", interval),
    ]
    return [(label, value) for label, value in chosen if value]
