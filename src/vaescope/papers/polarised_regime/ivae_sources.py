"""Recovery of sources by VAEs and iVAEs (Khemakhem et al. 2020, §5; the models of Bonheme & Grzes 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from vaescope import metrics, randomness, regime
from vaescope.data import nonstationary
from vaescope.data.arrays import split
from vaescope.data.mixings import OrthogonalMLP
from vaescope.models import VAE, AuxiliarySettings, Member
from vaescope.models.auxiliary import encode_auxiliary
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.experiment import ReportFigure, ReportTable
from vaescope.papers.polarised_regime import IVAE_SOURCES
from vaescope.papers.polarised_regime import ivae_sources_results as report
from vaescope.papers.polarised_regime.ivae_sources_results import (
    AUXILIARIES,
    MODELS,
    SEGMENTS,
    SourcesCell,
    SourcesMeasurement,
    SourcesResult,
)
from vaescope.papers.trained import FactorData, TrainedExperiment, TrainedSettings
from vaescope.training import MemberSpec

DIM = 4
PRECISION = 100.0
DRIFT_STRENGTH = 1.5


class IVAESourcesExperiment(TrainedExperiment[TrainedSettings, SourcesCell, SourcesMeasurement]):
    info = IVAE_SOURCES
    about = (
        "Four independent normal sources whose variances depend on an auxiliary variable are mixed by two orthogonal "
        "layers with an activation between them, and observed with noise. The auxiliary variable is the label of one "
        "of forty segments, or a number along which the variances drift. A VAE cannot distinguish the sources from a "
        "rotation of them. An iVAE, whose prior learns how the variances depend on the auxiliary variable, can. "
        "Recovery is measured by the mean correlation coefficient (MCC) between mean codes and sources."
    )
    quick = TrainedSettings(
        seeds=4, samples=10_000, epochs=120, patience=120, learning_rate=5e-3, batch_size=256, decay="cosine"
    )
    laptop = TrainedSettings(
        seeds=6, samples=20_000, epochs=100, patience=100, learning_rate=4e-3, batch_size=128, decay="cosine"
    )
    paper = TrainedSettings(seeds=20, samples=40_000, epochs=100, patience=30, learning_rate=1e-3)
    cell_type = SourcesCell
    measured_type = SourcesMeasurement

    def cells(self, settings: TrainedSettings) -> list[SourcesCell]:
        return [SourcesCell(*values) for values in product(AUXILIARIES, MODELS, range(settings.seeds))]

    def stack_key(self, cell: SourcesCell) -> tuple[str, str]:
        return cell.data, cell.model

    def model(self, cell: SourcesCell, settings: TrainedSettings) -> VAE:
        columns = AUXILIARIES[cell.data].columns if cell.model == "ivae" else 0
        return VAE.mlp(DIM, DIM, hidden=(50, 50), auxiliary=AuxiliarySettings(columns))

    def member(self, cell: SourcesCell, data_index: int, settings: TrainedSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=PRECISION, data=data_index)

    def data(self, cell: SourcesCell, settings: TrainedSettings) -> FactorData:
        drawn = _sources(cell, settings.samples)
        generator = randomness.generator(cell.seed, "noise")
        noise = torch.randn(drawn.sources.shape, generator=generator, dtype=torch.float64)
        x = OrthogonalMLP(DIM, layers=2, seed=cell.seed)(drawn.sources) + noise / PRECISION**0.5
        parts = split(_with_auxiliary(x, drawn.auxiliary, cell.data) if cell.model == "ivae" else x)
        return FactorData(parts, drawn.sources[-len(parts.test) :])

    def measure(
        self, cell: SourcesCell, member: Member, data: FactorData, settings: TrainedSettings
    ) -> SourcesMeasurement:
        x, auxiliary = member.split_auxiliary(data.observations.test.float())
        mean, _ = member.encode(x, auxiliary)
        found = metrics.mcc(mean, data.test_factors)
        judged = regime.of_model(member, x, auxiliary=auxiliary, decoder=False)
        return SourcesMeasurement(
            mcc=found.score,
            mcc_floor=found.floor,
            r2=metrics.linear_r2(mean, data.test_factors).score,
            active=len(judged.active),
        )

    def claims(self, settings: TrainedSettings) -> Sequence[ClaimSpec[SourcesResult, TrainedSettings, Sequence[float]]]:
        return report.CLAIMS

    def figures(self, results: Sequence[SourcesResult], settings: TrainedSettings) -> list[ReportFigure]:
        return report.figures_of(results)

    def tables(self, results: Sequence[SourcesResult], settings: TrainedSettings) -> list[ReportTable]:
        return [report.medians_table(results)]


def _sources(cell: SourcesCell, samples: int) -> nonstationary.NonstationarySources:
    """Sources with the auxiliary variable that their variances depend on."""
    if cell.data == "segments":
        return nonstationary.segments(DIM, samples=samples, segments=SEGMENTS, seed=cell.seed)
    return nonstationary.drift(DIM, samples=samples, strength=DRIFT_STRENGTH, seed=cell.seed)


def _with_auxiliary(x: Tensor, auxiliary: Tensor, data: str) -> Tensor:
    return torch.cat([x, encode_auxiliary(auxiliary, AUXILIARIES[data].columns, like=x)], dim=1)


EXPERIMENT = IVAESourcesExperiment()
