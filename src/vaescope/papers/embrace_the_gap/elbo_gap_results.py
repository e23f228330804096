"""Results of elbo-gap: typed rows, published values and the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vaescope.papers.experiment import ReportTable
from vaescope.papers.published import Comparison, ComparisonRow, compare
from vaescope.papers.results import Result, grouped
from vaescope.papers.statistics import median

DIM = 2
TRIANGULAR, ORTHOGONAL, WIDE, WIDE_NOISY = "triangular", "orthogonal", "wide", "wide, noisy"
HALF_DECADES = tuple(10 ** (k / 2) for k in range(2, 11))  # 1e1 to 1e5, the nine published abscissae
DECADES = tuple(10.0**k for k in range(1, 17))
PUBLISHED_ELBO = (2.57, 4.76, 6.40, 7.45, 7.95, 7.94, 7.82, 7.70, 7.69)  # at the nine abscissae
PUBLISHED_CONTRAST, PUBLISHED_LOG_P, PUBLISHED_L_IMA = 7.072, 14.857, 7.785


@dataclass(frozen=True)
class MixingCell:
    mixing: str
    """triangular, orthogonal, wide, or "wide, noisy"."""
    precision: float
    seed: int
    half: bool = False
    """Whether its encoder is trained for half as many epochs, to see what the other half gains."""


@dataclass(frozen=True)
class TrainedEncoder:
    """The encoder trained on the fixed decoder, evaluated at the same points."""

    elbo: float
    amortisation_gap: float
    """ELBO* minus the ELBO of this encoder."""


@dataclass(frozen=True)
class ElboGapMeasurement:
    """Exact quantities of one decoder at one precision: means over test points, in nats per observation."""

    exact_converged: float
    """Share of the points at which the projection converged; all means are over these."""
    elbo_star: float
    log_p: float
    contrast: float
    """c_IMA."""
    l_ima: float
    """log p − c_IMA."""
    distance: float
    """The mean of |ELBO* − L_IMA|."""
    encoder: TrainedEncoder | None = None
    """None at precisions at which no encoder is trained."""


ElboGapResult = Result[MixingCell, ElboGapMeasurement]
Results = Sequence[ElboGapResult]


def of_mixing(results: Results, mixing: str) -> list[ElboGapResult]:
    """Results of a mixing, without encoders that were trained for half as long."""
    return [r for r in results if r.cell.mixing == mixing and not r.cell.half]


def second_half_gains(results: Results) -> dict[MixingCell, float]:
    """What the second half of training gained, in nats, for every encoder that was also trained for half as long.

    Both encoders have the same seed and a complete schedule of the learning rate, so that the difference is due to
    the length of training.
    """
    elbos = {r.cell: r.measured.encoder.elbo for r in results if r.measured.encoder is not None}
    halves = {cell: replace(cell, half=True) for cell in elbos if not cell.half}
    return {cell: elbos[cell] - elbos[half] for cell, half in halves.items() if half in elbos}


def at_highest(results: Results, mixing: str) -> list[ElboGapMeasurement]:
    """Measurements of a mixing at its highest γ²."""
    own = of_mixing(results, mixing)
    highest = max((r.cell.precision for r in own), default=0.0)
    return [r.measured for r in own if r.cell.precision == highest]


def by_half_decade(results: Results) -> dict[int, list[ElboGapMeasurement]]:
    """Measurements by half decades of γ², in ascending order."""
    groups = grouped(sorted(results, key=lambda r: r.cell.precision), lambda r: half_decades(r.cell.precision))
    return {place: [r.measured for r in group] for place, group in groups.items()}


def half_decades(precision: float) -> int:
    """2 log₁₀ γ², rounded: an exact key for powers of √10.

    >>> half_decades(10**2.5)
    5
    """
    return round(2 * math.log10(precision))


def ceiling(precision: float) -> float:
    """An upper bound of every ELBO: E log p(x|z) ≤ n/2 log(γ²/2π)."""
    return 0.5 * DIM * math.log(precision / (2 * math.pi))


# comparisons and table ------------------------------------------------------------------------

WHY_PRINTED = (
    "Read as γ², the published values are impossible: an ELBO is at most n/2 log(γ²/2π), which is 0.46 at γ² = 10."
)
WHY_GAMMA = (
    "Read as γ, the published curve has the shape of the exact one: it rises above L_IMA = 7.785 and returns to it. "
    "The remaining difference is due to the mixing (only its C_IMA and log p are published) and the authors' encoder."
)
WHY_TRAINED = (
    "At the largest γ² trained encoders are below the exact curve. The table of the experiment says how much of that "
    "half as much training would have left (unfinished training) and how much remains (amortisation). The published "
    "values, also from trained encoders, contain both. ELBO*, L_IMA and log p do not depend on either."
)
WHY_LEVELS = "Our mixing is another one of the same kind, scaled to the published C_IMA and log p; the sample differs."


def comparisons(results: Results) -> list[Comparison]:
    """The published curve with its abscissa read as γ² and as γ, next to ELBO* and the trained encoders."""
    own = of_mixing(results, TRIANGULAR)
    highest = at_highest(results, TRIANGULAR)
    levels = [
        compare("log p", [m.log_p for m in highest], PUBLISHED_LOG_P),
        compare("L_IMA", [m.l_ima for m in highest], PUBLISHED_L_IMA),
    ]
    return [
        Comparison("Fig. 4", "exact ELBO*, abscissa read as γ²", _curve(own, _elbo_star, power=1), WHY_PRINTED),
        Comparison("Fig. 4", "exact ELBO*, abscissa read as γ", _curve(own, _elbo_star, power=2), WHY_GAMMA),
        Comparison("Fig. 4", "trained ELBO, abscissa read as γ", _curve(own, trained_elbo, power=2), WHY_TRAINED),
        Comparison("Fig. 4", "limits", levels, WHY_LEVELS),
    ]


def _elbo_star(measured: ElboGapMeasurement) -> float:
    return measured.elbo_star


def trained_elbo(measured: ElboGapMeasurement) -> float | None:
    return None if measured.encoder is None else measured.encoder.elbo


def _curve(results: Results, value: Callable[[ElboGapMeasurement], float | None], power: int) -> list[ComparisonRow]:
    groups = by_half_decade(results)

    def ours(precision: float) -> list[float]:
        found = [value(m) for m in groups.get(half_decades(precision), [])]
        return [v for v in found if v is not None]

    pairs = zip(HALF_DECADES, PUBLISHED_ELBO, strict=True)
    return [compare(f"printed {p:.3g}: γ² = {p**power:.3g}", ours(p**power), published) for p, published in pairs]


def triangular_table(results: Results) -> ReportTable:
    gains = grouped(second_half_gains(results).items(), lambda item: (item[0].mixing, half_decades(item[0].precision)))
    as_printed = {half_decades(p): v for p, v in zip(HALF_DECADES, PUBLISHED_ELBO, strict=True)}
    as_gamma = {2 * place: value for place, value in as_printed.items()}

    def row(place: int, group: Sequence[ElboGapMeasurement]) -> dict[str, object]:
        precision = 10 ** (place / 2)
        encoders = [m.encoder for m in group if m.encoder is not None]
        return {
            "γ²": f"{precision:.3g}",
            "ELBO*": median([m.elbo_star for m in group]),
            "trained": median([e.elbo for e in encoders]) if encoders else None,
            "ELBO* − trained": median([e.amortisation_gap for e in encoders]) if encoders else None,
            "gained by the second half of training": (
                median([gain for _, gain in gains[TRIANGULAR, place]]) if (TRIANGULAR, place) in gains else None
            ),
            "published, read as γ": as_gamma.get(place),
            "published, read as γ²": as_printed.get(place),
            "bound": ceiling(precision),
            "projection converged": median([m.exact_converged for m in group]),
        }

    rows = [row(place, group) for place, group in by_half_decade(of_mixing(results, TRIANGULAR)).items()]
    return ReportTable("The triangular mixing: medians over seeds, next to the published ELBO", rows)
