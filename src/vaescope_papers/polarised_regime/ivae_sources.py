"""Recovery of sources by VAEs and iVAEs (Khemakhem et al. 2020, §5; the models of Bonheme & Grzes 2023)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from matplotlib.axes import Axes

from vaescope import metrics, regime
from vaescope.core import randomness
from vaescope.data import mixings
from vaescope.data.dataset import split
from vaescope.models import VAE, AuxiliarySettings, Member
from vaescope.models.auxiliary import encode_auxiliary
from vaescope.report import figures
from vaescope.training import MemberSpec
from vaescope_papers.claims import ClaimSpec, members_converged
from vaescope_papers.criteria import Bound, at_least
from vaescope_papers.experiment import ReportFigure, ReportTable
from vaescope_papers.polarised_regime import EXPERIMENTS
from vaescope_papers.results import Result
from vaescope_papers.statistics import median
from vaescope_papers.trained import FactorData, TrainedExperiment, TrainedSettings

MODELS = {"vae": "VAE", "ivae": "iVAE"}
AUXILIARIES = {"segments": (40, "a segment label"), "drift": (1, "a number in [-1, 1]")}
"""What the variances of the sources depend on: columns of the auxiliary input, and words."""


@dataclass(frozen=True)
class SourcesCell:
    data: str
    """A key of `AUXILIARIES`."""
    model: str
    """A key of `MODELS`."""
    seed: int


@dataclass(frozen=True)
class SourcesMeasurement:
    """Recovery of the sources from mean codes."""

    mcc: float
    mcc_floor: float
    """The MCC that codes without information would have."""
    r2: float
    """Share of the sources' variance that a linear map of the codes explains."""
    active: int
    """Number of active latents."""


SourcesResult = Result[SourcesCell, SourcesMeasurement]
Results = Sequence[SourcesResult]
Spec = ClaimSpec[SourcesResult, TrainedSettings, Sequence[float]]


def select(results: Results, data: str, model: str) -> list[SourcesResult]:
    return [r for r in results if (r.cell.data, r.cell.model) == (data, model)]


class IVAESourcesExperiment(TrainedExperiment[TrainedSettings, SourcesCell, SourcesMeasurement]):
    info = EXPERIMENTS["ivae-sources"]
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
    dim = 4
    precision = 100.0
    cell_type = SourcesCell
    measured_type = SourcesMeasurement

    def cells(self, settings: TrainedSettings) -> list[SourcesCell]:
        return [SourcesCell(*values) for values in product(AUXILIARIES, MODELS, range(settings.seeds))]

    def stack_key(self, cell: SourcesCell) -> tuple[str, str]:
        return cell.data, cell.model

    def model(self, cell: SourcesCell, settings: TrainedSettings) -> VAE:
        columns = AUXILIARIES[cell.data][0] if cell.model == "ivae" else 0
        return VAE.mlp(self.dim, self.dim, hidden=(50, 50), auxiliary=AuxiliarySettings(columns))

    def member(self, cell: SourcesCell, data_index: int, settings: TrainedSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=self.precision, data=data_index)

    def data(self, cell: SourcesCell, settings: TrainedSettings) -> FactorData:
        columns = AUXILIARIES[cell.data][0]
        drawn = (
            mixings.segments(self.dim, samples=settings.samples, segments=columns, seed=cell.seed)
            if cell.data == "segments"
            else mixings.drift(self.dim, samples=settings.samples, strength=1.5, seed=cell.seed)
        )
        generator = randomness.generator(cell.seed, "noise")
        noise = torch.randn(drawn.sources.shape, generator=generator, dtype=torch.float64)
        x = mixings.OrthogonalMLP(self.dim, layers=2, seed=cell.seed)(drawn.sources) + noise / self.precision**0.5
        if cell.model == "ivae":
            x = torch.cat([x, encode_auxiliary(drawn.auxiliary, columns, like=x)], dim=1)
        parts = split(x)
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

    def claims(self, settings: TrainedSettings) -> Sequence[Spec]:
        return (
            *(claim for data, (_, words) in AUXILIARIES.items() for claim in _recovery_claims(data, words)),
            _claim(
                "The VAE's codes contain the sources up to a linear map: they are rotated, not lost.",
                "Beyond the paper",
                lambda results, _: [r.measured.r2 for r in results if r.cell.model == "vae"],
                "linear R² of the VAE's codes",
                0.9,
                "members",
            ),
        )

    def figures(self, results: Results, settings: TrainedSettings) -> list[ReportFigure]:
        figure, axes = figures.row_of_panels(2, width=4.6)
        _panel(axes[0], results, lambda m: m.mcc, title="Recovery of each source", y="MCC")
        _panel(axes[1], results, lambda m: m.r2, title="Up to a linear map", y="linear R²")
        caption = (
            "Left: mean correlation coefficient of the best one-to-one matching of codes and sources; every dot is a "
            "seed, and bars are medians. Right: how much of the sources a linear map of the codes explains. The codes "
            "of both models contain the sources; only the iVAE represents each by one latent."
        )
        return [ReportFigure("ivae_sources", figure, caption)]

    def tables(self, results: Results, settings: TrainedSettings) -> list[ReportTable]:
        rows = [
            {
                "auxiliary variable": words,
                "model": label,
                "MCC": median([r.measured.mcc for r in own]),
                "MCC without information": median([r.measured.mcc_floor for r in own]),
                "linear R²": median([r.measured.r2 for r in own]),
                "ELBO": median([r.elbo for r in own]),
            }
            for (data, (_, words)), (model, label) in product(AUXILIARIES.items(), MODELS.items())
            if (own := select(results, data, model))
        ]
        return [ReportTable("Medians over seeds", rows)]


# claims ---------------------------------------------------------------------------------------


def _claim(
    sentence: str,
    source: str,
    measure: Callable[[Results, object], list[float]],
    quantity: str,
    least: float,
    over: str,
) -> Spec:
    criterion = Bound(quantity, at_least(least), over=over)
    return ClaimSpec(sentence, source, measure, criterion, requires=(members_converged(),))


def _recovery_claims(data: str, words: str) -> tuple[Spec, Spec]:
    """That the iVAE recovers the sources with this auxiliary variable, and that the VAE recovers less."""

    def gains(results: Results, _: object) -> list[float]:
        """MCC of the iVAE less that of the VAE of the same seed."""
        vae = {r.cell.seed: r.measured.mcc for r in select(results, data, "vae")}
        return [r.measured.mcc - vae[r.cell.seed] for r in select(results, data, "ivae") if r.cell.seed in vae]

    source = "Khemakhem et al. 2020, §5; the models of Bonheme & Grzes 2023"
    return (
        _claim(
            f"An iVAE recovers the sources if the auxiliary variable is {words}.",
            source,
            lambda results, _: [r.measured.mcc for r in select(results, data, "ivae")],
            "MCC",
            0.9,
            "seeds",
        ),
        _claim(
            f"A VAE, which has no access to the auxiliary variable ({words}), recovers them less well.",
            source,
            gains,
            "gain in MCC from VAE to iVAE",
            0.1,
            "seeds",
        ),
    )


# figure ---------------------------------------------------------------------------------------


def _panel(axis: Axes, results: Results, value: Callable[[SourcesMeasurement], float], *, title: str, y: str) -> None:
    names = [words for _, words in AUXILIARIES.values()]
    for index, (model, label) in enumerate(MODELS.items()):
        values = [[value(r.measured) for r in select(results, data, model)] for data in AUXILIARIES]
        figures.plot_strips(axis, names, values, label=label, offset=0.2 * index - 0.1, index=index)
    figures.format_axis(axis, title=title, x="auxiliary variable", y=y, log="")
    axis.set_ylim(0, 1.02)
    axis.legend(loc="lower right")


EXPERIMENT = IVAESourcesExperiment()
