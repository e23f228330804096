"""Results of linear-vae: typed rows, claims and the figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vaescope.papers.claims import ClaimSpec, members_converged
from vaescope.papers.criteria import Bound, at_least, at_most, within
from vaescope.papers.embrace_the_gap import PAPER
from vaescope.papers.embrace_the_gap.precision import PrecisionCell, by_precision, values_by_precision
from vaescope.papers.experiment import ReportFigure
from vaescope.papers.results import Result
from vaescope.papers.statistics import slope
from vaescope.report import figures

LIMIT_PRECISIONS = tuple(10.0**k for k in range(-2, 9))
SHOWN = 4  # random decoders in the left panel


@dataclass(frozen=True)
class RandomDecoder:
    """Exact quantities of a random linear decoder W."""

    gap: float
    closed_form_mismatch: float
    """Largest relative difference of projection and quadrature from the closed forms."""
    contrast: float
    """c_IMA of W."""
    gaps: tuple[float, ...]
    """The gap at every precision of `LIMIT_PRECISIONS`."""
    distances: tuple[float, ...]
    """c_IMA minus the gap, at the same precisions."""


@dataclass(frozen=True)
class LinearMeasurement:
    """What is measured of one member, and of two decoders that need no training."""

    trained_gap: float
    axes_cosine: float
    """The smallest |cos| between trained columns and principal axes, matched as well as possible."""
    likelihood_loss: float
    """Log-likelihood of the true decoder minus that of the trained one, in nats per observation."""
    orthogonal_gap: float
    """The gap of the true decoder, whose columns are orthogonal."""
    random_decoder: RandomDecoder


LinearResult = Result[PrecisionCell, LinearMeasurement]
Results = Sequence[LinearResult]


# claims ---------------------------------------------------------------------------------------


def closed_form_mismatches(results: Results, _: object) -> list[float]:
    return [r.measured.random_decoder.closed_form_mismatch for r in results]


def orthogonal_gaps(results: Results, _: object) -> list[float]:
    return [r.measured.orthogonal_gap for r in results]


def limit_slopes(results: Results, _: object) -> list[float]:
    """The slope in γ² of the distance between gap and c_IMA."""
    near = [i for i, p in enumerate(LIMIT_PRECISIONS) if p >= 1e3]
    return [
        slope([LIMIT_PRECISIONS[i] for i in near], [r.measured.random_decoder.distances[i] for i in near])
        for r in results
    ]


def trained_gaps(results: Results, _: object) -> list[float]:
    return [r.measured.trained_gap for r in results]


def axes_cosines(results: Results, _: object) -> list[float]:
    return [r.measured.axes_cosine for r in results]


CLAIMS = (
    ClaimSpec(
        sentence="Projection and quadrature agree with the closed forms of ELBO*, D* and log p.",
        source=f"{PAPER}, Prop. 8 with the missing ½ restored",
        measure=closed_form_mismatches,
        criterion=Bound("relative difference", at_most(1e-8), statistic="largest"),
    ),
    ClaimSpec(
        sentence="If the columns of W are orthogonal, the ELBO equals the log-likelihood at every γ².",
        source=f"{PAPER}, Corollary 1",
        measure=orthogonal_gaps,
        criterion=Bound("gap in nats", at_most(1e-12), statistic="largest"),
    ),
    ClaimSpec(
        sentence="The gap converges to the IMA contrast of W like 1/γ².",
        source=f"{PAPER}, appendix 10.1",
        measure=limit_slopes,
        criterion=Bound("slope, γ² from 1e3,", within(-1, 0.05)),
    ),
    ClaimSpec(
        sentence="Maximising the ELBO closes the gap: the trained decoder has orthogonal columns.",
        source=f"{PAPER}, appendix 10.1; Lucas et al. 2019",
        measure=trained_gaps,
        criterion=Bound("gap of the trained W in nats", at_most(0.01)),
        requires=(members_converged(),),
    ),
    ClaimSpec(
        sentence="The trained columns are the principal axes, up to sign and order.",
        source=f"Lucas et al. 2019; {PAPER}, appendix 10.1",
        measure=axes_cosines,
        criterion=Bound("|cos| of the worst column", at_least(0.99)),
        requires=(members_converged(),),
    ),
)


# figure ---------------------------------------------------------------------------------------

CAPTION = (
    "Left: exact gaps of four random decoders as the precision grows, with their limits. Middle: the closed-form gap "
    "of random and trained decoders. Right: the largest angle between trained columns and principal axes. Lines are "
    "medians over seeds, bands the range over seeds."
)


def figure(results: Results) -> ReportFigure:
    drawn, axes = figures.row_of_panels(3)
    first = next(iter(by_precision(results).values()), [])
    for colour, result in zip(figures.COLOURS[:SHOWN], first, strict=False):
        random = result.measured.random_decoder
        axes[0].plot(LIMIT_PRECISIONS, random.gaps, color=colour)
        axes[0].axhline(random.contrast, color=colour, linestyle=":", linewidth=1.2)
    title = "The gap converges to c_IMA (dotted)"
    figures.format_axis(axes[0], title=title, x="γ²", y="gap in nats", log="x", legend=False)
    initial = values_by_precision(results, lambda m: m.random_decoder.gap)
    trained = values_by_precision(results, lambda m: m.trained_gap)
    figures.plot_median_and_range(axes[1], list(initial), list(initial.values()), label="random W")
    figures.plot_median_and_range(axes[1], list(trained), list(trained.values()), label="trained W")
    figures.format_axis(axes[1], title="Training closes the gap", x="γ²", y="gap in nats")
    angles = values_by_precision(results, lambda m: 1 - m.axes_cosine)
    figures.plot_median_and_range(axes[2], list(angles), list(angles.values()), label="trained")
    figures.format_axis(axes[2], title="Training finds the principal axes", x="γ²", y="1 − |cos| (worst column)")
    return ReportFigure("linear_vae", drawn, CAPTION)
