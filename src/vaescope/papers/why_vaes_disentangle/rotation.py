"""Why the ELBO disentangles, in one picture: rotate the latents of a trained model.

Under a prior N(0, I), a model with rotated latents has the same likelihood but another ELBO, because its posteriors
have to remain diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import metrics, randomness, theory
from vaescope.data.arrays import split
from vaescope.models import VAE, Member
from vaescope.orthogonality import od_distances
from vaescope.orthogonality.od_score import relative
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.experiment import ReportAnimation, ReportFigure, ReportTable
from vaescope.papers.trained import FactorData, TrainedExperiment
from vaescope.papers.why_vaes_disentangle import ROTATION
from vaescope.papers.why_vaes_disentangle import rotation_figures as drawings
from vaescope.papers.why_vaes_disentangle import rotation_results as report
from vaescope.papers.why_vaes_disentangle.rotation_results import (
    LINES,
    POINTS,
    PRECISION,
    Curves,
    RotationCell,
    RotationMeasurement,
    RotationResult,
    RotationSettings,
)
from vaescope.training import MemberSpec

RADIUS_DEVIATION = 0.4  # of the logarithm of the radius
ANGLE_DEVIATION = 0.8  # of the angle, in radians
RISE = 1.5  # per radian
VIEW = ((0.0, 1.0), (0.0, 0.3), (1.0, 0.0))  # from the three coordinates to the two of a figure
SHOWN_SAMPLES = 400


class RotationExperiment(TrainedExperiment[RotationSettings, RotationCell, RotationMeasurement]):
    info = ROTATION
    about = (
        "Samples are points on a helicoid, a surface like a spiral staircase, with two independent factors: distance "
        "from the axis, and height. A VAE with two latents is trained, and then its latent space is rotated by θ: "
        "codes by R(θ), the decoder's input by the inverse. At every θ, log p(x) is integrated again and the best "
        "diagonal Gaussian posterior of every point is computed, which gives the ELBO of a perfect encoder. The prior "
        "N(0, I) is invariant under rotation, so the likelihood does not depend on the axes. The ELBO does, because "
        "posteriors are diagonal. A rotation by 90° exchanges the latents, and all curves repeat."
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
        seeds=6,
        samples=30_000,
        epochs=60,
        patience=60,
        learning_rate=4e-3,
        decay="cosine",
        batch_size=128,
        exact_points=200,
        step=4.5,
    )
    paper = RotationSettings(
        seeds=10, samples=60_000, epochs=200, patience=30, learning_rate=1e-3, exact_points=1000, step=3.0
    )
    cell_type = RotationCell
    measured_type = RotationMeasurement

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
        x = data.observations.test.double()
        return RotationMeasurement(
            angles=settings.angles,
            curves=_curves(member, x, data.test_factors, settings),
            shown=tuple(float(v) for v in _projected(x[:SHOWN_SAMPLES]).float().flatten()),
            grids=_grids(member, settings.angles),
        )

    def claims(self, settings: RotationSettings) -> Sequence[ClaimSpec[RotationResult, object, Sequence[float]]]:
        return report.CLAIMS

    def figures(self, results: Sequence[RotationResult], settings: RotationSettings) -> list[ReportFigure]:
        return drawings.figures_of(results)

    def animations(self, results: Sequence[RotationResult], settings: RotationSettings) -> list[ReportAnimation]:
        return drawings.animations_of(results)

    def tables(self, results: Sequence[RotationResult], settings: RotationSettings) -> list[ReportTable]:
        return [report.medians_table(results)]


# data -----------------------------------------------------------------------------------------


def helicoid(sources: Float[Tensor, "N 2"]) -> Float[Tensor, "N 3"]:
    """Points on a helicoid from independent normal sources; the coordinate lines cross at right angles.

    >>> theory.ima_contrast(helicoid, torch.randn(3, 2).double()).round(decimals=9)
    tensor([0., 0., 0.], dtype=torch.float64)
    """
    radius, angle = (RADIUS_DEVIATION * sources[:, 0]).exp(), ANGLE_DEVIATION * sources[:, 1]
    return torch.stack([radius * angle.cos(), radius * angle.sin(), RISE * angle], dim=1)


def _projected(x: Float[Tensor, "*N 3"]) -> Float[Tensor, "*N 2"]:
    return x @ torch.tensor(VIEW, dtype=x.dtype)


# rotated models -------------------------------------------------------------------------------


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
    return Curves(tuple(likelihood), tuple(elbo), tuple(contrast), tuple(mig), _od_scores(jacobians))


def _od_scores(jacobians: Sequence[Float[Tensor, "P n d"]]) -> tuple[float, ...]:
    """The OD-Score at every angle, relative to the worst angle at the same point, averaged over points."""
    by_point = torch.stack(list(jacobians), dim=1)
    scores = [relative(torch.from_numpy(od_distances(list(matrices)))) for matrices in by_point]
    return tuple(float(v) for v in torch.stack(scores).mean(0))


def _grids(member: Member, angles: Sequence[float]) -> bytes:
    """Lines along which one rotated latent varies, projected: (angle, latent, line, point, 2) in float32."""
    along, across = torch.linspace(-2.2, 2.2, POINTS), torch.linspace(-2.0, 2.0, LINES)
    first = torch.stack(torch.meshgrid(across, along, indexing="ij"), dim=-1)
    grid = torch.stack([first.flip(-1), first]).double()
    drawn = [_projected(rotated(member.decode, rotation(a))(grid.flatten(0, -2)).detach()) for a in angles]
    return torch.stack(drawn).float().numpy().tobytes()


EXPERIMENT = RotationExperiment()
