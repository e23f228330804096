"""Near-deterministic VAEs recover the sources of conformal mixings (Reizinger et al. 2022, Fig. 3 left)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vaescope.data.mixings import Mixing, Moebius
from vaescope.models import Member
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.embrace_the_gap import MOEBIUS_PRECISION
from vaescope.papers.embrace_the_gap import moebius_precision_results as report
from vaescope.papers.embrace_the_gap.moebius import BOX, DIM, MoebiusExperiment, Recovery, measure_recovery
from vaescope.papers.embrace_the_gap.moebius_precision_results import MoebiusResult
from vaescope.papers.embrace_the_gap.precision import PrecisionCell, precision_cells
from vaescope.papers.experiment import ReportFigure, ReportTable
from vaescope.papers.published import Comparison
from vaescope.papers.trained import FactorData, TrainedSettings
from vaescope.training import MemberSpec


@dataclass(frozen=True)
class MoebiusPrecisionSettings(TrainedSettings):
    """The paper profile has the published settings."""

    precisions: tuple[float, ...] = (1e1, 1e2, 1e3, 1e4, 1e5)


class MoebiusPrecision(MoebiusExperiment[MoebiusPrecisionSettings, PrecisionCell, Recovery]):
    info = MOEBIUS_PRECISION
    about = (
        "Möbius transforms are conformal, so they belong to the IMA class, whose decoders a near-deterministic VAE "
        "favours according to theory. VAEs are trained on Möbius mixings of three uniform sources at five decoder "
        "precisions γ². Recovery of the sources is measured from posterior means and from posterior samples. The two "
        "differ for passive latents: their means still change a little with the observation and correlate with a "
        "source, although their noise hides nearly all of it."
    )
    quick = MoebiusPrecisionSettings(
        seeds=4,
        samples=12_000,
        epochs=200,
        patience=200,
        learning_rate=3e-3,
        decay="cosine",
        precision_start=1e2,
        precision_hold=2_500,
        precision_warmup=10_000,
    )
    laptop = MoebiusPrecisionSettings(
        seeds=5,
        samples=30_000,
        epochs=110,
        patience=110,
        learning_rate=2e-3,
        decay="cosine",
        precision_start=1e2,
        precision_hold=4_000,
        precision_warmup=14_000,
    )
    paper = MoebiusPrecisionSettings(seeds=20, samples=60_000, epochs=100, patience=30)
    cell_type = PrecisionCell
    measured_type = Recovery

    def cells(self, settings: MoebiusPrecisionSettings) -> list[PrecisionCell]:
        return precision_cells(settings.precisions, settings.seeds)

    def member(self, cell: PrecisionCell, data_index: int, settings: MoebiusPrecisionSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=cell.precision, data=data_index)

    def mixing(self, cell: PrecisionCell) -> Mixing:
        return Moebius(DIM, seed=cell.seed, low=BOX.low, high=BOX.high)

    def measure(
        self, cell: PrecisionCell, member: Member, data: FactorData, settings: MoebiusPrecisionSettings
    ) -> Recovery:
        return measure_recovery(member, data, self.mixing(cell))

    def claims(
        self, settings: MoebiusPrecisionSettings
    ) -> Sequence[ClaimSpec[MoebiusResult, MoebiusPrecisionSettings, Any]]:
        return report.CLAIMS

    def comparisons(self, results: Sequence[MoebiusResult], settings: MoebiusPrecisionSettings) -> list[Comparison]:
        return report.comparisons(results)

    def figures(self, results: Sequence[MoebiusResult], settings: MoebiusPrecisionSettings) -> list[ReportFigure]:
        return [report.figure(results)]

    def tables(self, results: Sequence[MoebiusResult], settings: MoebiusPrecisionSettings) -> list[ReportTable]:
        return [report.medians_table(results)]


EXPERIMENT = MoebiusPrecision()
