"""Mixings outside the IMA class are recovered less well (Reizinger et al. 2022, Fig. 3 right)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from vaescope.data.mixings import Compose, LinearMap, Mixing, Moebius
from vaescope.models import Member
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.criteria import Pairs
from vaescope.papers.embrace_the_gap import MOEBIUS_LINEAR_MAP
from vaescope.papers.embrace_the_gap import moebius_linear_map_results as report
from vaescope.papers.embrace_the_gap.moebius import BOX, DIM, MoebiusExperiment, measure_recovery
from vaescope.papers.embrace_the_gap.moebius_linear_map_results import (
    HIGHEST,
    LOWEST,
    LinearMapMeasurement,
    LinearMapResult,
    SeedOnlyCell,
)
from vaescope.papers.experiment import ReportFigure, ReportTable
from vaescope.papers.published import Comparison
from vaescope.papers.trained import FactorData, TrainedSettings
from vaescope.training import MemberSpec

PRECISION = 1e5


@dataclass(frozen=True)
class MoebiusLinearMapSettings(TrainedSettings):
    """The paper profile has the published settings; every seed has its own mixing."""


def contrast_of_map(seed: int) -> float:
    """c_IMA of the linear map of a seed: van der Corput's sequence fills the published range evenly for any number."""
    fraction, step = 0.0, 0.5
    while seed:
        fraction += step * (seed % 2)
        seed, step = seed // 2, step / 2
    return LOWEST + (HIGHEST - LOWEST) * fraction


class MoebiusLinearMap(MoebiusExperiment[MoebiusLinearMapSettings, SeedOnlyCell, LinearMapMeasurement]):
    info = MOEBIUS_LINEAR_MAP
    about = (
        "A linear map of determinant one after a Möbius transform moves the mixing out of the IMA class by a chosen "
        "amount: the c_IMA of the map, spread evenly over the published range from 0.398 to 6.761. A "
        "near-deterministic VAE (γ² = 1e5) prefers decoders with orthogonal Jacobian columns, which these mixings do "
        "not have. The larger the contrast, the less well it should recover the sources."
    )
    quick = MoebiusLinearMapSettings(seeds=20, samples=12_000, epochs=120, patience=40, learning_rate=2e-3)
    laptop = MoebiusLinearMapSettings(seeds=100, samples=60_000, epochs=100, patience=30)
    paper = MoebiusLinearMapSettings(seeds=100, samples=60_000, epochs=100, patience=30)
    cell_type = SeedOnlyCell
    measured_type = LinearMapMeasurement

    def cells(self, settings: MoebiusLinearMapSettings) -> list[SeedOnlyCell]:
        return [SeedOnlyCell(seed) for seed in range(settings.seeds)]

    def member(self, cell: SeedOnlyCell, data_index: int, settings: MoebiusLinearMapSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=PRECISION, data=data_index)

    def mixing(self, cell: SeedOnlyCell) -> Mixing:
        return Compose(
            Moebius(DIM, seed=cell.seed, low=BOX.low, high=BOX.high),
            LinearMap(DIM, contrast=contrast_of_map(cell.seed), seed=cell.seed),
        )

    def measure(
        self, cell: SeedOnlyCell, member: Member, data: FactorData, settings: MoebiusLinearMapSettings
    ) -> LinearMapMeasurement:
        recovery = measure_recovery(member, data, self.mixing(cell))
        return LinearMapMeasurement(**asdict(recovery), map_contrast=contrast_of_map(cell.seed))

    def claims(
        self, settings: MoebiusLinearMapSettings
    ) -> Sequence[ClaimSpec[LinearMapResult, MoebiusLinearMapSettings, Pairs]]:
        return report.CLAIMS

    def comparisons(self, results: Sequence[LinearMapResult], settings: MoebiusLinearMapSettings) -> list[Comparison]:
        return [report.comparison(results)]

    def figures(self, results: Sequence[LinearMapResult], settings: MoebiusLinearMapSettings) -> list[ReportFigure]:
        return [report.figure(results)]

    def tables(self, results: Sequence[LinearMapResult], settings: MoebiusLinearMapSettings) -> list[ReportTable]:
        return [report.fifths_table(results)]


EXPERIMENT = MoebiusLinearMap()
