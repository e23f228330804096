"""Self-consistency of trained VAEs (Reizinger et al. 2022, §4.1, Fig. 2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vaescope import metrics, randomness, theory
from vaescope.data.arrays import split
from vaescope.data.mixings import OrthogonalMLP
from vaescope.distributions import Normal
from vaescope.models import VAE, Member
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.embrace_the_gap import SELF_CONSISTENCY
from vaescope.papers.embrace_the_gap import self_consistency_figures as drawings
from vaescope.papers.embrace_the_gap import self_consistency_results as report
from vaescope.papers.embrace_the_gap.precision import PrecisionCell, precision_cells
from vaescope.papers.embrace_the_gap.self_consistency_results import (
    DIM,
    EXACT_PRECISIONS,
    Limits,
    SelfConsistencyMeasurement,
    SelfConsistencyResult,
)
from vaescope.papers.experiment import ReportFigure, ReportTable
from vaescope.papers.published import Comparison
from vaescope.papers.trained import FactorData, TrainedExperiment, TrainedSettings
from vaescope.training import MemberSpec


@dataclass(frozen=True)
class SelfConsistencySettings(TrainedSettings):
    """The paper profile has the published settings."""

    precisions: tuple[float, ...] = (1e1, 1e2, 1e3, 1e4, 1e5)
    exact_points: int = 50
    """Test points at which everything is also solved exactly."""


class SelfConsistency(TrainedExperiment[SelfConsistencySettings, PrecisionCell, SelfConsistencyMeasurement]):
    info = SELF_CONSISTENCY
    about = (
        "VAEs are trained on data from a three-layer orthogonal mixing outside the IMA class, at five decoder "
        "precisions γ². As γ² grows the decoder becomes deterministic. Prop. 1 says that the encoder then inverts it: "
        "posterior variances vanish like 1/γ², they take the values that Eq. 12 predicts from the decoder's Jacobian "
        "alone, and decoding the mean encoding returns the observation."
    )
    quick = SelfConsistencySettings(
        seeds=4,
        samples=20_000,
        epochs=100,
        patience=100,
        learning_rate=2e-3,
        decay="cosine",
        precision_start=1e2,
        precision_hold=2_000,
        precision_warmup=8_000,
    )
    laptop = SelfConsistencySettings(
        seeds=5,
        samples=30_000,
        epochs=80,
        patience=80,
        learning_rate=2e-3,
        decay="cosine",
        precision_start=1e2,
        precision_hold=3_000,
        precision_warmup=10_000,
        exact_points=30,
    )
    paper = SelfConsistencySettings(seeds=20, samples=60_000, epochs=250, patience=30)
    cell_type = PrecisionCell
    measured_type = SelfConsistencyMeasurement

    def cells(self, settings: SelfConsistencySettings) -> list[PrecisionCell]:
        return precision_cells(settings.precisions, settings.seeds)

    def model(self, cell: PrecisionCell, settings: SelfConsistencySettings) -> VAE:
        return VAE.mlp(DIM, DIM, hidden=(10 * DIM, 10 * DIM))

    def member(self, cell: PrecisionCell, data_index: int, settings: SelfConsistencySettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=cell.precision, data=data_index)

    def data(self, cell: PrecisionCell, settings: SelfConsistencySettings) -> FactorData:
        mixing = OrthogonalMLP(DIM, layers=3, seed=cell.seed)
        generator = randomness.generator(cell.seed, "sources")
        sources = Normal().sample(settings.samples, DIM, generator=generator)
        parts = split(mixing(sources))
        return FactorData(parts, sources[-len(parts.test) :])

    def measure(
        self, cell: PrecisionCell, member: Member, data: FactorData, settings: SelfConsistencySettings
    ) -> SelfConsistencyMeasurement:
        x = data.observations.test
        mean, variance = member.encode(x)
        predicted = theory.optimal_variance(member.decode, mean, precision=cell.precision)
        sampled = member.sample(x, randomness.generator(member.seed, "measure"))
        exact = theory.gap(
            member.decode,
            x[: settings.exact_points],
            member.posterior(x[: settings.exact_points]),
            precision=cell.precision,
        )
        best, kept = exact.projection, exact.converged
        error = (x[: settings.exact_points] - member.decode(best.mean)).square()
        highest = cell.precision == max(settings.precisions)
        return SelfConsistencyMeasurement(
            posterior_variance=_per_latent(variance),
            predicted_variance=_per_latent(predicted),
            reconstruction_mse=float((x - member.decode(mean)).square().mean()),
            ima_contrast=float(theory.ima_contrast(member.decode, mean).mean()),
            mcc_mean=metrics.mcc(mean, data.test_factors).score,
            mcc_sampled=metrics.mcc(sampled, data.test_factors).score,
            exact_variance=_per_latent(best.variance[kept]),
            exact_converged=float(kept.double().mean()),
            exact_reconstruction_mse=float(error[kept].mean()),
            elbo_star=float(exact.elbo_star[kept].mean()),
            log_marginal=float(exact.log_marginal[kept].mean()),
            family_gap=float(exact.family[kept].mean()),
            amortisation_gap=float(exact.amortisation[kept].mean()),
            local_contrast=float(exact.contrast[kept].mean()),
            limits=_limits(member, mean[: settings.exact_points]) if highest else None,
        )

    def claims(
        self, settings: SelfConsistencySettings
    ) -> Sequence[ClaimSpec[SelfConsistencyResult, SelfConsistencySettings, Sequence[float]]]:
        return report.CLAIMS

    def figures(
        self, results: Sequence[SelfConsistencyResult], settings: SelfConsistencySettings
    ) -> list[ReportFigure]:
        return drawings.all_figures(results)

    def comparisons(
        self, results: Sequence[SelfConsistencyResult], settings: SelfConsistencySettings
    ) -> list[Comparison]:
        return report.comparisons(results)

    def tables(self, results: Sequence[SelfConsistencyResult], settings: SelfConsistencySettings) -> list[ReportTable]:
        return [report.medians_table(results)]


def _per_latent(values: Tensor) -> tuple[float, ...]:
    """The mean over samples of every latent."""
    return tuple(float(values[:, k].mean()) for k in range(DIM))


def _limits(member: Member, z: Tensor) -> Limits:
    """Fix the decoder and vary γ²: the distance of gap and variance from their limits, on the decoder's image."""
    x, contrast = member.decode(z), theory.ima_contrast(member.decode, z)
    count = len(EXACT_PRECISIONS)
    every_x, start = (values.repeat(count, 1) for values in (x, z))  # all γ² in one call
    precision = torch.tensor(EXACT_PRECISIONS, dtype=x.dtype).repeat_interleave(len(x))
    best = theory.project(member.decode, every_x, precision=precision, start=start)
    likelihood = theory.log_marginal(member.decode, every_x, precision=precision, start=best.mean).value
    predicted = torch.cat([theory.optimal_variance(member.decode, z, precision=p) for p in EXACT_PRECISIONS])
    gap_error = (likelihood - best.elbo - contrast.repeat(count)).abs()
    variance_error = (best.variance / predicted - 1).abs()

    def means(values: Tensor) -> tuple[float, ...]:
        """Means over the converged points of each γ²."""
        groups = zip(values.chunk(count), best.converged.chunk(count), strict=True)
        return tuple(float(own[kept].mean()) for own, kept in groups)

    return Limits(
        gap_error=means(gap_error),
        variance_error=means(variance_error),
        variance=tuple(math.exp(value) for value in means(best.variance.log())),
    )


EXPERIMENT = SelfConsistency()
