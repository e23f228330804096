"""Results of rotation: settings, typed rows, claims and the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vaescope.errors import InputError
from vaescope.papers.claims import ClaimSpec, members_converged
from vaescope.papers.criteria import Bound, at_least, at_most
from vaescope.papers.experiment import ReportTable
from vaescope.papers.results import Result
from vaescope.papers.statistics import median
from vaescope.papers.trained import TrainedSettings

PRECISION = 100.0
MAX_ANGLE = 45.0  # degrees; after a quarter turn all curves repeat
NEAR = 10.0  # degrees within which a peak is at the trained axes
CONSTANT = 1e-6  # nats
LINES, POINTS = 7, 41  # of the grid that is drawn
TABLE_ANGLES = (0.0, 9.0, 18.0, 27.0, 36.0, 45.0)


@dataclass(frozen=True)
class RotationSettings(TrainedSettings):
    exact_points: int = 100
    """Test points at which likelihood and ELBO are computed exactly."""
    step: float = 9.0
    """Degrees between two rotations."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.step <= MAX_ANGLE or not np.isclose(MAX_ANGLE / self.step, round(MAX_ANGLE / self.step)):
            raise InputError(f"step must divide {MAX_ANGLE:g} degrees, got {self.step:g}; try 9.")

    @property
    def angles(self) -> tuple[float, ...]:
        """From -45° to 45°, with the trained axes in the middle."""
        count = round(MAX_ANGLE / self.step)
        return tuple(self.step * k for k in range(-count, count + 1))


@dataclass(frozen=True)
class RotationCell:
    seed: int


@dataclass(frozen=True)
class Curves:
    """Means over points of one member, with an entry per angle."""

    log_likelihood: tuple[float, ...]
    """log p(x), in nats."""
    elbo: tuple[float, ...]
    """ELBO of the best diagonal posteriors, in nats."""
    contrast: tuple[float, ...]
    """c_IMA, in nats."""
    mig: tuple[float, ...]
    od: tuple[float, ...]
    """OD-Score of the Jacobian, relative to the worst angle."""


@dataclass(frozen=True)
class RotationMeasurement:
    angles: tuple[float, ...]
    """In degrees."""
    curves: Curves
    shown: tuple[float, ...]
    """Projected samples: x and y of the first, of the second, …"""
    grids: bytes
    """Lines along which one latent varies: (angle, latent, line, point, 2) in float32."""

    def at(self, curve: PickCurve, angle: float) -> float:
        """The value of a curve at the measured angle that is nearest."""
        nearest = min(range(len(self.angles)), key=lambda k: abs(self.angles[k] - angle))
        return curve(self.curves)[nearest]


RotationResult = Result[RotationCell, RotationMeasurement]
Results = Sequence[RotationResult]
PickCurve = Callable[[Curves], Sequence[float]]


def log_likelihood(curves: Curves) -> Sequence[float]:
    return curves.log_likelihood


def elbo(curves: Curves) -> Sequence[float]:
    return curves.elbo


def contrast(curves: Curves) -> Sequence[float]:
    return curves.contrast


def mig(curves: Curves) -> Sequence[float]:
    return curves.mig


def od(curves: Curves) -> Sequence[float]:
    return curves.od


LABELS: Mapping[PickCurve, str] = {
    log_likelihood: "log p(x)",
    elbo: "ELBO*",
    contrast: "c_IMA",
    mig: "MIG",
    od: "OD-Score",
}


# claims ---------------------------------------------------------------------------------------


def likelihood_ranges(results: Results, _: object) -> list[float]:
    """How much log p(x) varies over angles, per member."""
    return [float(np.ptp(r.measured.curves.log_likelihood)) for r in results]


def elbo_lost(results: Results, _: object) -> list[float]:
    """The ELBO at 0° less that at 45°, per member."""
    return [r.measured.at(elbo, 0.0) - r.measured.at(elbo, MAX_ANGLE) for r in results]


def gap_errors(results: Results, _: object) -> list[float]:
    """The largest distance over angles between log p(x) - ELBO* and c_IMA, per member."""
    curves = [r.measured.curves for r in results]
    return [float(np.abs(np.subtract(c.log_likelihood, c.elbo) - c.contrast).max()) for c in curves]


def best_angle(measured: RotationMeasurement, curve: PickCurve, sign: int) -> float:
    """The angle of the largest (sign 1) or smallest (sign -1) value."""
    values = curve(measured.curves)
    return measured.angles[max(range(len(values)), key=lambda k: sign * values[k])]


def _peak_claim(sentence: str, curve: PickCurve, sign: int) -> ClaimSpec[RotationResult, object, Sequence[float]]:
    def angles(results: Results, _: object) -> list[float]:
        return [abs(best_angle(r.measured, curve, sign)) for r in results]

    def note(results: Results, _: object) -> str:
        return "Best angles: " + ", ".join(f"{best_angle(r.measured, curve, sign):+g}°" for r in results) + "."

    return ClaimSpec(
        sentence=sentence,
        source="Beyond the papers, which argue it in words",
        measure=angles,
        criterion=Bound("distance of the best angle from the trained axes, in degrees,", at_most(NEAR), "largest"),
        note=note,
        requires=(members_converged(),),
    )


CLAIMS: tuple[ClaimSpec[RotationResult, object, Sequence[float]], ...] = (
    ClaimSpec(
        sentence="Rotating the latents does not change the likelihood.",
        source="The rotational symmetry of N(0, I)",
        measure=likelihood_ranges,
        criterion=Bound("range of log p(x) over angles, in nats,", at_most(CONSTANT), "largest"),
        note="log p(x) is integrated again at every angle.",
    ),
    _peak_claim("The ELBO of the best diagonal posterior is highest at the trained axes.", elbo, 1),
    ClaimSpec(
        sentence="The ELBO is clearly lower at 45°.",
        source="Bhowal et al. 2024, §1",
        measure=elbo_lost,
        criterion=Bound("ELBO at 0° minus ELBO at 45°, in nats,", at_least(0.05), "smallest"),
        requires=(members_converged(),),
    ),
    ClaimSpec(
        sentence="The ELBO loses the contrast: log p(x) - ELBO* = c_IMA at every angle.",
        source="Reizinger et al. 2022, Theorem 1",
        measure=gap_errors,
        criterion=Bound("difference of mean gap and mean contrast at any angle, in nats,", at_most(0.1), "largest"),
        note=f"The precision here is γ² = {PRECISION:g}; the theorem is about the limit of large γ².",
    ),
    _peak_claim("The contrast is lowest at the trained axes.", contrast, -1),
    _peak_claim("The OD-Score is lowest at the trained axes.", od, -1),
    _peak_claim("Codes are most disentangled (highest MIG) at the trained axes.", mig, 1),
)


# table ----------------------------------------------------------------------------------------


def medians_table(results: Results) -> ReportTable:
    measured = [r.measured for r in results]
    rows = [
        {"θ": f"{angle:g}°"}
        | {label: median([m.at(curve, angle) for m in measured]) for curve, label in LABELS.items()}
        for angle in TABLE_ANGLES
        if any(np.isclose(m.angles, angle).any() for m in measured)
    ]
    return ReportTable("Medians over members", rows)
