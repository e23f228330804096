"""Why the ELBO disentangles, in one picture: rotate the latents of a trained model.

Under a prior N(0, I), a model with rotated latents has the same likelihood but another ELBO, because its posteriors
have to remain diagonal.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from vaescope import metrics, theory
from vaescope.core import randomness
from vaescope.core.errors import InputError, require
from vaescope.data.dataset import split
from vaescope.models import VAE, Member
from vaescope.orthogonality import od_distances
from vaescope.orthogonality.matrices import relative
from vaescope.report import figures
from vaescope.training import MemberSpec
from vaescope_papers.claims import ClaimSpec, Statement, members_converged, show
from vaescope_papers.criteria import Bound, at_least, at_most
from vaescope_papers.experiment import ReportAnimation, ReportFigure, ReportTable
from vaescope_papers.results import Result
from vaescope_papers.statistics import median
from vaescope_papers.trained import FactorData, TrainedExperiment, TrainedSettings
from vaescope_papers.why_vaes_disentangle import EXPERIMENTS

if TYPE_CHECKING:
    from PIL.Image import Image

PRECISION = 100.0
MAX_ANGLE = 45.0  # degrees; after a quarter turn all curves repeat
LINES, POINTS = 7, 41  # of the grid that is drawn
LABELS = {"log_likelihood": "log p(x)", "elbo": "ELBO*", "contrast": "c_IMA", "mig": "MIG", "od": "OD-Score"}
ANGLE_LABEL = "rotation θ (degrees)"


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
    """Lines along which one latent varies: (angle, latent, line, point, 2) in float32; empty where none are drawn."""
    shortfall: float = math.nan
    """Mean log p(x) of the distribution that the samples are from, minus ELBO*, in nats: no model can gain more."""

    def at(self, curve: str, angle: float) -> float:
        """The value of a curve at the measured angle that is nearest."""
        nearest = min(range(len(self.angles)), key=lambda k: abs(self.angles[k] - angle))
        value: float = getattr(self.curves, curve)[nearest]
        return value

    def best_angle(self, curve: str, sign: int) -> float:
        """The angle of the largest (sign 1) or smallest (sign -1) value."""
        values = getattr(self.curves, curve)
        return self.angles[max(range(len(values)), key=lambda k: sign * values[k])]

    def relative(self, curve: str) -> list[float]:
        """A curve relative to the likelihood at 0°, in which members differ."""
        base = self.at("log_likelihood", 0.0)
        return [value - base for value in getattr(self.curves, curve)]


RotationResult = Result[RotationCell, RotationMeasurement]
Results = Sequence[RotationResult]
Claim = ClaimSpec[RotationResult, object, Sequence[float]]


# claims ---------------------------------------------------------------------------------------


def shortfall(result: RotationResult) -> float:
    return result.measured.shortfall


near_optimum = members_converged(shortfall=shortfall)


def shortfalls(results: Results) -> str:
    values = [value for r in results if not math.isnan(value := shortfall(r))]
    if not values:
        return "How far ELBO* is from the largest there could be was not measured in this run."
    return f"ELBO* is {show(min(values))} to {show(max(values))} nats below log p(x) of the true distribution."


def looked_at() -> tuple[int, ...]:
    """Members: six at first, trained for 60 epochs and 0.06 to 0.12 nats short; then these."""
    return (6, 20)


def peak_claim(sentence: str, curve: str, sign: int) -> Claim:
    def angles(results: Results, _: object) -> list[float]:
        return [abs(r.measured.best_angle(curve, sign)) for r in results]

    def note(results: Results, _: object) -> str:
        found = Counter(r.measured.best_angle(curve, sign) for r in results)
        listed = ", ".join(f"{angle:+g}° ({found[angle]} members)" for angle in sorted(found))
        return f"Best angles: {listed}. {shortfalls(results)}"

    return ClaimSpec(
        sentence=sentence,
        source="Beyond the papers, which argue it in words",
        measure=angles,
        criterion=Bound("distance of the best angle from the trained axes, in degrees,", at_most(10.0), "largest"),
        note=note,
        requires=(near_optimum,),
        looks=looked_at(),
        robust_over=(5.0, 10.0),  # angles are measured in steps of 4.5°
    )


def gap_errors(results: Results, _: object) -> list[float]:
    """The largest distance over angles between log p(x) - ELBO* and c_IMA, per member."""
    curves = [r.measured.curves for r in results]
    return [float(np.abs(np.subtract(c.log_likelihood, c.elbo) - c.contrast).max()) for c in curves]


# experiment -----------------------------------------------------------------------------------


class RotationExperiment(TrainedExperiment[RotationSettings, RotationCell, RotationMeasurement]):
    info = EXPERIMENTS["rotation"]
    about = (
        "Samples are points on a helicoid, a surface like a spiral staircase, with two independent factors: distance "
        "from the axis, and height. A VAE with two latents is trained, and then its latent space is rotated by θ: "
        "codes by R(θ), the decoder's input by the inverse. At every θ, log p(x) is integrated again and the best "
        "diagonal Gaussian posterior of every point is computed, which gives the ELBO of a perfect encoder. The prior "
        "N(0, I) is invariant under rotation, so the likelihood does not depend on the axes. The ELBO does, because "
        "posteriors are diagonal. A rotation by 90° exchanges the latents, and all curves repeat. The samples are "
        "from a known distribution: the expected ELBO of no model is above its expected log p(x), so that the distance "
        "of ELBO* from it bounds what training could still gain."
    )
    quick = RotationSettings(
        seeds=3,
        samples=6_000,
        epochs=100,
        patience=100,
        learning_rate=5e-3,
        decay="cosine",
        batch_size=128,
        exact_points=60,
    )
    laptop = RotationSettings(
        seeds=20,
        samples=30_000,
        epochs=150,
        patience=150,
        learning_rate=4e-3,
        decay="cosine",
        batch_size=128,
        exact_points=200,
        step=4.5,
    )
    paper = RotationSettings(
        seeds=20, samples=60_000, epochs=200, patience=30, learning_rate=1e-3, exact_points=1000, step=3.0
    )
    cell_type = RotationCell
    measured_type = RotationMeasurement
    claim_specs = (
        ClaimSpec(
            sentence="Rotating the latents does not change the likelihood.",
            source="The rotational symmetry of N(0, I)",
            measure=lambda results, _: [float(np.ptp(r.measured.curves.log_likelihood)) for r in results],
            criterion=Bound("range of log p(x) over angles, in nats,", at_most(1e-6), "largest", exact=True),
            note="log p(x) is integrated again at every angle: what is measured is the error of the integration.",
            kind=Statement.MATHEMATICAL,
        ),
        peak_claim("The ELBO of the best diagonal posterior is highest at the trained axes.", "elbo", 1),
        ClaimSpec(
            sentence="The ELBO is clearly lower at 45°.",
            source="Bhowal et al. 2024, §1",
            measure=lambda results, _: [r.measured.at("elbo", 0.0) - r.measured.at("elbo", MAX_ANGLE) for r in results],
            criterion=Bound("ELBO at 0° minus ELBO at 45°, in nats,", at_least(0.05), "smallest"),
            note=lambda results, _: shortfalls(results),
            requires=(near_optimum,),
            looks=looked_at(),
            robust_over=(0.05, 0.1, 0.2),  # 0.05 nats is the largest shortfall that counts as converged
        ),
        ClaimSpec(
            sentence="The ELBO loses the contrast: log p(x) - ELBO* = c_IMA at every angle.",
            source="Reizinger et al. 2022, Theorem 1",
            measure=gap_errors,
            criterion=Bound("difference of mean gap and mean contrast at any angle, in nats,", at_most(0.1), "largest"),
            note=f"The precision here is γ² = {PRECISION:g}; the theorem is about the limit of large γ².",
            looks=looked_at(),
            robust_over=(0.05, 0.1),
        ),
        peak_claim("The contrast is lowest at the trained axes.", "contrast", -1),
        peak_claim("The OD-Score is lowest at the trained axes.", "od", -1),
        peak_claim("Codes are most disentangled (highest MIG) at the trained axes.", "mig", 1),
    )

    def cells(self, settings: RotationSettings) -> list[RotationCell]:
        return [RotationCell(seed) for seed in range(settings.seeds)]

    def member(self, cell: RotationCell, data_index: int, settings: RotationSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=PRECISION, data=data_index)

    def model(self, cell: RotationCell, settings: RotationSettings) -> VAE:
        return VAE.mlp(3, 2, hidden=(50, 50))

    def data(self, cell: RotationCell, settings: RotationSettings) -> FactorData:
        generator = randomness.generator(cell.seed, "sources")
        sources = torch.randn(settings.samples, 2, generator=generator, dtype=torch.float64)
        noise = torch.randn(settings.samples, 3, generator=generator, dtype=torch.float64)
        parts = split(helicoid(sources) + noise / PRECISION**0.5)
        return FactorData(parts, sources[-len(parts.test) :])

    def measure(
        self, cell: RotationCell, member: Member, data: FactorData, settings: RotationSettings
    ) -> RotationMeasurement:
        x, points = data.observations.test.double(), settings.exact_points
        curves = _curves(member, x, data.test_factors, settings)
        truth = theory.log_marginal(helicoid, x[:points], precision=PRECISION, start=data.test_factors[:points])
        return RotationMeasurement(
            angles=settings.angles,
            curves=curves,
            shown=tuple(float(v) for v in _projected(x[:400]).float().flatten()),
            grids=_grids(member, settings.angles) if cell.seed == 0 else b"",
            shortfall=float(truth.value.mean()) - curves.elbo[settings.angles.index(0.0)],
        )

    def figures(self, results: Results, settings: RotationSettings) -> list[ReportFigure]:
        caption = (
            "Trained models and their rotations: medians and ranges over members. The likelihood is constant. The ELBO "
            "of the best diagonal posterior peaks at the trained axes, and what it loses at other angles is the "
            "contrast. At the trained axes codes are also most disentangled, and the columns of the decoder's Jacobian "
            "are orthogonal."
        )
        return [ReportFigure("rotation", draw_curves(results), caption)] if results else []

    def animations(self, results: Results, settings: RotationSettings) -> list[ReportAnimation]:
        caption = (
            "Left: samples, and the lines along which one latent varies while the other is fixed. At 0° one latent "
            "changes the distance from the axis and the other the height, at right angles on the surface. Right: "
            "likelihood and ELBO at the same rotation."
        )
        drawn = [r.measured for r in results if r.measured.grids][:1]
        return [ReportAnimation("rotating", animate(measured), caption) for measured in drawn]

    def tables(self, results: Results, settings: RotationSettings) -> list[ReportTable]:
        measured = [r.measured for r in results]
        rows = [
            {"θ": f"{angle:g}°"}
            | {label: median([m.at(curve, angle) for m in measured]) for curve, label in LABELS.items()}
            for angle in (0.0, 9.0, 18.0, 27.0, 36.0, 45.0)
            if any(np.isclose(m.angles, angle).any() for m in measured)
        ]
        return [ReportTable("Medians over members", rows)]


# rotated models -------------------------------------------------------------------------------


def helicoid(sources: Float[Tensor, "N 2"]) -> Float[Tensor, "N 3"]:
    """Points on a helicoid from independent normal sources; the coordinate lines cross at right angles.

    >>> theory.ima_contrast(helicoid, torch.randn(3, 2).double()).round(decimals=9)
    tensor([0., 0., 0.], dtype=torch.float64)
    """
    radius, angle = (0.4 * sources[:, 0]).exp(), 0.8 * sources[:, 1]  # standard deviations of log radius and angle
    return torch.stack([radius * angle.cos(), radius * angle.sin(), 1.5 * angle], dim=1)


def _projected(x: Float[Tensor, "*N 3"]) -> Float[Tensor, "*N 2"]:
    """From the three coordinates to the two of a figure."""
    return x @ torch.tensor(((0.0, 1.0), (0.0, 0.3), (1.0, 0.0)), dtype=x.dtype)


def rotation(degrees: float) -> Float[Tensor, "2 2"]:
    """The rotation by this angle.

    >>> rotation(90.0).round().tolist()
    [[0.0, -1.0], [1.0, 0.0]]
    """
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return torch.tensor([[c, -s], [s, c]], dtype=torch.float64)


def rotated(decoder: Callable[[Tensor], Tensor], R: Float[Tensor, "2 2"]) -> Callable[[Tensor], Tensor]:
    """The decoder of rotated latents R z."""
    return lambda z: decoder(z @ R.to(z))


def _curves(member: Member, x: Tensor, factors: Tensor, settings: RotationSettings) -> Curves:
    mean = member.encode(x)[0].detach()
    points, codes = x[: settings.exact_points], mean[: settings.exact_points]
    J = theory.jacobian(member.decode, codes)
    likelihood, elbo, contrast, mig, jacobians = [], [], [], [], []
    for angle in settings.angles:
        R = rotation(angle)
        decoder, start = rotated(member.decode, R), codes @ R.mT
        exact = theory.log_marginal(decoder, points, precision=PRECISION, start=start)
        best = theory.project(decoder, points, precision=PRECISION, start=start)
        jacobians.append(J @ R.mT)
        likelihood.append(float(exact.value.mean()))
        elbo.append(float(best.elbo.mean()))
        contrast.append(float(theory.contrast_of_matrix(jacobians[-1]).mean()))
        mig.append(metrics.mig(mean @ R.mT, factors).score)
    # OD-Scores at every angle are relative to the worst angle at the same point, then averaged over points
    by_point = [relative(torch.from_numpy(od_distances(list(own)))) for own in torch.stack(jacobians, dim=1)]
    scores = tuple(float(v) for v in torch.stack(by_point).mean(0))
    return Curves(tuple(likelihood), tuple(elbo), tuple(contrast), tuple(mig), scores)


def _grids(member: Member, angles: Sequence[float]) -> bytes:
    """Lines along which one rotated latent varies, projected: (angle, latent, line, point, 2) in float32."""
    along, across = torch.linspace(-2.2, 2.2, POINTS), torch.linspace(-2.0, 2.0, LINES)
    first = torch.stack(torch.meshgrid(across, along, indexing="ij"), dim=-1)
    grid = torch.stack([first.flip(-1), first]).double()
    drawn = [_projected(rotated(member.decode, rotation(a))(grid.flatten(0, -2)).detach()) for a in angles]
    return torch.stack(drawn).float().numpy().tobytes()


# figures --------------------------------------------------------------------------------------


def draw_curves(results: Results) -> Figure:
    figure, axes = figures.row_of_panels(4, width=3.5, height=3.9)
    measured = [r.measured for r in results]
    angles = measured[0].angles

    def draw(index: int, curve: str, values: list[list[float]]) -> None:
        """The values of all members, angle by angle."""
        by_angle = [list(own) for own in zip(*values, strict=True)]
        figures.plot_median_and_range(axes[index], angles, by_angle, label=LABELS[curve])

    for curve in ("log_likelihood", "elbo"):
        draw(0, curve, [m.relative(curve) for m in measured])
    minus_contrast = -np.median([m.curves.contrast for m in measured], axis=0)
    axes[0].plot(angles, minus_contrast, color="#6b7680", lw=1.4, ls=":", label="log p(x) - c_IMA")
    titles = (
        ("", "Likelihood and ELBO", "nats, relative to log p(x)"),
        ("contrast", "Contrast", "c_IMA (nats)"),
        ("mig", "Disentanglement", "MIG"),
        ("od", "Orthogonality", "OD-Score"),
    )
    for index, (curve, title, label) in enumerate(titles):
        if curve:
            draw(index, curve, [list(getattr(m.curves, curve)) for m in measured])
        figures.format_axis(axes[index], title=title, x=ANGLE_LABEL, y=label, log="", legend=False)
        axes[index].set_xticks(range(-45, 46, 15))
        if curve:
            axes[index].set_ylim(bottom=0)
    figures.shared_legend(figure, axes[0])
    return figure


def animate(measured: RotationMeasurement) -> bytes:
    """A GIF that turns from one end to the other and back, with a pause at the trained axes."""
    count = len(measured.angles)
    grids = np.frombuffer(measured.grids, dtype=np.float32).reshape(count, 2, LINES, POINTS, 2)
    frames = [_frame(measured, grids[k], k) for k in range(count)]
    order = [*range(count), *reversed(range(1, count - 1))]
    durations = [900 if measured.angles[k] == 0 else 90 for k in order]
    images = [frames[k] for k in order]
    buffer = io.BytesIO()
    images[0].save(buffer, "GIF", save_all=True, append_images=images[1:], duration=durations, loop=0, optimize=True)
    return buffer.getvalue()


def _frame(measured: RotationMeasurement, grid: np.ndarray, k: int) -> Image:
    figure, (left, right) = figures.row_of_panels(2, width=4.2, height=3.6)
    left.plot(*np.reshape(measured.shown, (-1, 2)).T, ".", color="#b8c0c7", markersize=2.5)
    for latent, colour in zip(grid, figures.COLOURS, strict=False):
        for line in latent:
            left.plot(*line.T, color=colour, lw=1.1)
    left.set(aspect="equal", xlim=(-4.0, 4.0), ylim=(-2.6, 3.6), xticks=[], yticks=[])
    left.set_title(f"latents rotated by {measured.angles[k]:+.0f}°")
    for curve, colour in zip(("log_likelihood", "elbo"), figures.COLOURS, strict=False):
        values = measured.relative(curve)
        right.plot(measured.angles, values, color=colour, label=LABELS[curve])
        right.plot([measured.angles[k]], [values[k]], "o", color=colour, markersize=7)
    right.set_title("likelihood and ELBO")
    right.set(xlabel=ANGLE_LABEL, ylabel="nats, relative to log p(x)", xticks=range(-45, 46, 15))
    right.legend(loc="lower center", bbox_to_anchor=(0.5, -0.42), ncols=2)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80)
    pillow = require("PIL.Image", "drawing an animation")
    frame: Image = pillow.open(buffer).convert("P", palette=pillow.Palette.ADAPTIVE, colors=48)
    return frame


EXPERIMENT = RotationExperiment()
