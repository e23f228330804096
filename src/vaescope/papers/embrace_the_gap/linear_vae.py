"""The linear VAE, where everything has a closed form (Reizinger et al. 2022, appendix 10.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vaescope import randomness, theory
from vaescope.data.arrays import split
from vaescope.data.invertible import random_orthogonal
from vaescope.models import VAE, Member
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.embrace_the_gap import LINEAR_VAE
from vaescope.papers.embrace_the_gap import linear_vae_results as report
from vaescope.papers.embrace_the_gap.linear_vae_results import (
    LIMIT_PRECISIONS,
    LinearMeasurement,
    LinearResult,
    RandomDecoder,
)
from vaescope.papers.embrace_the_gap.precision import PrecisionCell, precision_cells
from vaescope.papers.experiment import ReportFigure
from vaescope.papers.trained import FactorData, TrainedExperiment, TrainedSettings
from vaescope.training import MemberSpec

OBSERVED, LATENT = 6, 3
AXES = (3.0, 1.5, 0.7)  # standard deviations along the principal axes, all different


@dataclass(frozen=True)
class LinearSettings(TrainedSettings):
    precisions: tuple[float, ...] = (1.0, 1e1, 1e2)


class LinearVAE(TrainedExperiment[LinearSettings, PrecisionCell, LinearMeasurement]):
    info = LINEAR_VAE
    about = (
        "For a linear decoder W the optimal posterior, the ELBO, the likelihood and the gap have closed forms. "
        "Rotating the latents does not change the likelihood, but it changes the gap, which vanishes only for "
        "orthogonal columns. Maximising the ELBO therefore finds the principal axes themselves, not just the subspace "
        "they span. Eq. 55 of the paper lacks a factor ½, which is restored here."
    )
    quick = LinearSettings(seeds=5, samples=6_000, epochs=200, patience=200, learning_rate=2e-2, decay="cosine")
    laptop = LinearSettings(seeds=10, samples=20_000, epochs=100, patience=100, learning_rate=1e-2, decay="cosine")
    paper = LinearSettings(seeds=20, samples=60_000, epochs=100, patience=30, learning_rate=1e-2)
    cell_type = PrecisionCell
    measured_type = LinearMeasurement

    def cells(self, settings: LinearSettings) -> list[PrecisionCell]:
        return precision_cells(settings.precisions, settings.seeds)

    def model(self, cell: PrecisionCell, settings: LinearSettings) -> VAE:
        return VAE.mlp(OBSERVED, LATENT, hidden=())

    def member(self, cell: PrecisionCell, data_index: int, settings: LinearSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=cell.precision, data=data_index)

    def data_key(self, cell: PrecisionCell) -> tuple[int, float]:
        return cell.seed, cell.precision

    def data(self, cell: PrecisionCell, settings: LinearSettings) -> FactorData:
        generator = randomness.generator(cell.seed, "sources")
        z = torch.randn(settings.samples, LATENT, dtype=torch.float64, generator=generator)
        noise = torch.randn(settings.samples, OBSERVED, dtype=torch.float64, generator=generator)
        rotated = z @ random_orthogonal(LATENT, generator).T  # so that the sources are not the principal axes
        x = rotated @ _principal_axes(cell.seed).T + noise / math.sqrt(cell.precision)
        parts = split(x)
        return FactorData(parts, z[-len(parts.test) :])

    def measure(
        self, cell: PrecisionCell, member: Member, data: FactorData, settings: LinearSettings
    ) -> LinearMeasurement:
        x, precision = data.observations.test, cell.precision
        origin = torch.zeros(1, LATENT, dtype=torch.float64)
        trained = theory.jacobian(member.decode, origin)[0]
        axes = _principal_axes(cell.seed)
        random = torch.randn(OBSERVED, LATENT, dtype=torch.float64, generator=randomness.generator(cell.seed, "W"))
        best = theory.linear.log_likelihood(x, axes, precision)
        reached = theory.linear.log_likelihood(x - member.decode(origin), trained, precision)
        return LinearMeasurement(
            trained_gap=float(theory.linear.gap(trained, precision)),
            axes_cosine=_axes_cosine(trained, axes),
            likelihood_loss=float((best - reached).mean()),
            orthogonal_gap=float(theory.linear.gap(axes, precision)),
            random_decoder=_measure_random(random, x[:20], precision),
        )

    def claims(self, settings: LinearSettings) -> Sequence[ClaimSpec[LinearResult, LinearSettings, Sequence[float]]]:
        return report.CLAIMS

    def figures(self, results: Sequence[LinearResult], settings: LinearSettings) -> list[ReportFigure]:
        return [report.figure(results)]


def _principal_axes(seed: int) -> Tensor:
    """The true principal axes: orthogonal columns of different lengths."""
    frame = random_orthogonal(OBSERVED, randomness.generator(seed, "axes"))
    return frame[:, :LATENT] * torch.tensor(AXES, dtype=torch.float64)


def _axes_cosine(W: Tensor, axes: Tensor) -> float:
    """The smallest |cos| between trained columns and principal axes, matched as well as possible."""
    cosines = torch.nn.functional.normalize(W, dim=0).T @ torch.nn.functional.normalize(axes, dim=0)
    rows, columns = linear_sum_assignment(-cosines.abs().numpy())
    return float(cosines.abs()[rows, columns].min())


def _measure_random(W: Tensor, x: Tensor, precision: float) -> RandomDecoder:
    gaps = [theory.linear.gap(W, p) for p in LIMIT_PRECISIONS]
    contrast = theory.linear.limit(W)
    return RandomDecoder(
        gap=float(theory.linear.gap(W, precision)),
        closed_form_mismatch=_closed_form_mismatch(W, x, precision),
        contrast=float(contrast),
        gaps=tuple(float(gap) for gap in gaps),
        distances=tuple(float(contrast - gap) for gap in gaps),
    )


def _closed_form_mismatch(W: Tensor, x: Tensor, precision: float) -> float:
    """Largest relative difference of projection and quadrature from the closed forms."""

    def decoder(z: Tensor) -> Tensor:
        return z @ W.T

    found = theory.project(decoder, x, precision=precision, latent_dim=LATENT)
    likelihood = theory.log_marginal(decoder, x, precision=precision, latent_dim=LATENT).value
    pairs = (
        (found.elbo, theory.linear.elbo(x, W, precision)),
        (found.variance, theory.linear.optimal_variance(W, precision)),
        (likelihood, theory.linear.log_likelihood(x, W, precision)),
    )
    return max(float((a / b - 1).abs().max()) for a, b in pairs)


EXPERIMENT = LinearVAE()
