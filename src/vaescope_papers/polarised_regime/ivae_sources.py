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
from vaescope_papers.criteria import Bound, PairedDifference, Sample, at_least
from vaescope_papers.embrace_the_gap.shared import linear_ica
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
    mcc_linear_ica: float
    """Of linear ICA on the observations: a baseline without a VAE."""
    r2_linear: float
    """Share of the variance of the sources that a linear map of the observations explains."""


SourcesResult = Result[SourcesCell, SourcesMeasurement]
Results = Sequence[SourcesResult]
Spec = ClaimSpec[SourcesResult, TrainedSettings, Sequence[float] | Sample]
TO_DECIDE = "To decide it: the paper profile, with 20 seeds at a constant rate."


def select(results: Results, data: str, model: str) -> list[SourcesResult]:
    return [r for r in results if (r.cell.data, r.cell.model) == (data, model)]


class IVAESourcesExperiment(TrainedExperiment[TrainedSettings, SourcesCell, SourcesMeasurement]):
    info = EXPERIMENTS["ivae-sources"]
    about = (
        "Four independent normal sources whose variances depend on an auxiliary variable are mixed by two orthogonal "
        "layers with an activation between them, and observed with noise. The auxiliary variable is the label of one "
        "of forty segments, or a number along which the variances drift. The prior of an iVAE learns how the variances "
        "depend on the auxiliary variable; by its theory this identifies the sources, where a VAE may end in a "
        "rotation of them. Recovery is measured by the mean correlation coefficient (MCC) between mean codes and "
        "sources, beside that of linear ICA: over all values of the auxiliary variable the sources are not normal, and "
        "the mixings are not far from linear. The paper profile has a constant rate; in the others the rate decays, "
        "which flattens every curve, so that whether their members have converged is not known. The simulation is our "
        "own; no published run has its mixings."
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
            mcc_linear_ica=metrics.mcc(linear_ica(x.double().numpy()), data.test_factors).score,
            r2_linear=metrics.linear_r2(x, data.test_factors).score,
        )

    def claims(self, settings: TrainedSettings) -> Sequence[Spec]:
        return (
            *(claim for data, (_, words) in AUXILIARIES.items() for claim in _recovery_claims(data, words)),
            ClaimSpec(
                "The VAE's codes contain the sources up to a linear map.",
                "Beyond the paper",
                lambda results, _: Sample(
                    [r.measured.r2 for r in results if r.cell.model == "vae"],
                    [r.cell.seed for r in results if r.cell.model == "vae"],
                ),
                Bound("linear R² of the VAE's codes", at_least(0.9), over="mixings"),
                note=TO_DECIDE,
                looks=LOOKS,
                robust_over=(0.8, 0.9, 0.95),
                requires=(members_converged(),),
            ),
        )

    def figures(self, results: Results, settings: TrainedSettings) -> list[ReportFigure]:
        figure, axes = figures.row_of_panels(2, width=4.6)
        _panel(axes[0], results, lambda m: (m.mcc, m.mcc_linear_ica), title="Recovery of each source", y="MCC")
        _panel(axes[1], results, lambda m: (m.r2, m.r2_linear), title="Up to a linear map", y="linear R²")
        caption = (
            "Left: mean correlation coefficient of the best one-to-one matching of codes and sources; every dot is a "
            "mixing, and bars are medians; crosses are linear ICA of the observations. Right: how much of the sources "
            "a linear map of the codes explains; crosses are a linear map of the observations."
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
                "linear ICA of the observations: MCC": median([r.measured.mcc_linear_ica for r in own]),
                "linear map of the observations: R²": median([r.measured.r2_linear for r in own]),
                "ELBO": median([r.elbo for r in own]),
            }
            for (data, (_, words)), (model, label) in product(AUXILIARIES.items(), MODELS.items())
            if (own := select(results, data, model))
        ]
        return [ReportTable("Medians over seeds", rows)]


# claims ---------------------------------------------------------------------------------------


LOOKS = (6, 20)
"""Mixings at which results were looked at, and with those of the paper profile may be looked at once more."""


def _differences(
    data: str, value: Callable[[SourcesMeasurement], float], other: Callable[[SourcesMeasurement], float], model: str
) -> Callable[[Results, object], list[float]]:
    """A value of the iVAE less another one, of a member with the same mixing."""

    def measure(results: Results, _: object) -> list[float]:
        partners = {r.cell.seed: other(r.measured) for r in select(results, data, model)}
        own = select(results, data, "ivae")
        return [value(r.measured) - partners[r.cell.seed] for r in own if r.cell.seed in partners]

    return measure


def linear_baseline(results: Results, data: str) -> float:
    """Median MCC of linear ICA of the observations."""
    return median([r.measured.mcc_linear_ica for r in select(results, data, "ivae")])


def beyond_linear_ica(data: str, demanded: float) -> Callable[[Results, object], str | None]:
    """A condition: recovery says something about an iVAE only where linear ICA does not reach what is demanded."""

    def condition(results: Results, _: object) -> str | None:
        baseline = linear_baseline(results, data)
        if baseline < demanded:
            return None
        return f"Linear ICA of the observations has a median MCC of {baseline:.3f}: it would be judged the same."

    return condition


def _baseline_note(data: str, demanded: float) -> Callable[[Results, object], str]:
    def note(results: Results, _: object) -> str:
        own = select(results, data, "ivae")
        if not own:
            return ""
        explained = median([r.measured.r2_linear for r in own])
        text = (
            f"Linear ICA of the observations has a median MCC of {linear_baseline(results, data):.3f}, and a linear "
            f"map of them explains {explained:.0%} of the variance of the sources."
        )
        if linear_baseline(results, data) < demanded:
            return f"{text} {TO_DECIDE}"
        return f"{text} An MCC of {demanded:g} is no evidence for an iVAE: only less linear mixings would decide it."

    return note


def _recovery_claims(data: str, words: str) -> tuple[Spec, Spec, Spec]:
    """That the iVAE recovers the sources with this auxiliary variable, and better than a VAE and linear ICA."""
    source = "Khemakhem et al. 2020, §5; the models of Bonheme & Grzes 2023"
    return (
        ClaimSpec(
            f"An iVAE recovers the sources of these mixings if the auxiliary variable is {words}.",
            source,
            lambda results, _: [r.measured.mcc for r in select(results, data, "ivae")],
            Bound("MCC", at_least(0.9), over="mixings"),
            note=_baseline_note(data, 0.9),
            robust_over=(0.8, 0.9, 0.95),
            family="recovery",
            looks=LOOKS,
            requires=(members_converged(), beyond_linear_ica(data, 0.9)),
        ),
        ClaimSpec(
            f"A VAE, which has no access to the auxiliary variable ({words}), recovers them less well.",
            source,
            _differences(data, lambda m: m.mcc, lambda m: m.mcc, "vae"),
            PairedDifference("MCC", "the iVAE", "the VAE", 0.1, over="mixings"),
            note=TO_DECIDE,
            robust_over=(0.0, 0.05, 0.1, 0.2),
            family="recovery",
            looks=LOOKS,
            requires=(members_converged(),),
        ),
        ClaimSpec(
            f"An iVAE recovers them better than linear ICA of the observations ({words}).",
            "Beyond the paper: a baseline without a VAE",
            _differences(data, lambda m: m.mcc, lambda m: m.mcc_linear_ica, "ivae"),
            PairedDifference("MCC", "the iVAE", "linear ICA", over="mixings"),
            note=TO_DECIDE,
            robust_over=(0.0, 0.05, 0.1),
            family="baseline",
            looks=LOOKS,
            requires=(members_converged(),),
        ),
    )


# figure ---------------------------------------------------------------------------------------


def _panel(
    axis: Axes, results: Results, values: Callable[[SourcesMeasurement], tuple[float, float]], *, title: str, y: str
) -> None:
    """A value of both models, and that of a baseline on the observations."""
    names = [words for _, words in AUXILIARIES.values()]
    for index, (model, label) in enumerate(MODELS.items()):
        own = [[values(r.measured)[0] for r in select(results, data, model)] for data in AUXILIARIES]
        figures.plot_strips(axis, names, own, label=label, offset=0.2 * index - 0.1, index=index)
    for place, data in enumerate(AUXILIARIES):
        baseline = [values(r.measured)[1] for r in select(results, data, "ivae")]
        axis.plot([place + 0.3] * len(baseline), baseline, "x", color="#6b7680", label="" if place else "no VAE")
    figures.format_axis(axis, title=title, x="auxiliary variable", y=y, log="")
    axis.set_ylim(0, 1.02)
    axis.legend(loc="lower right")


EXPERIMENT = IVAESourcesExperiment()
