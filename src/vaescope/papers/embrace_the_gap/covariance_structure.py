"""Two conjectures of Reizinger et al. 2022, §6: how the posterior's covariance family shapes the decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from vaescope import metrics, theory
from vaescope.data.invertible import Affine
from vaescope.data.mixings import Compose, Mixing, Moebius, OrthogonalMLP
from vaescope.models import VAE, Member
from vaescope.papers.claims import ClaimSpec, members_converged
from vaescope.papers.criteria import PairedDifference
from vaescope.papers.embrace_the_gap import COVARIANCE_STRUCTURE, PAPER
from vaescope.papers.embrace_the_gap.moebius import BOX, DIM, uniform_mixture
from vaescope.papers.experiment import ReportFigure
from vaescope.papers.results import Result
from vaescope.papers.trained import FactorData, TrainedExperiment, TrainedSettings
from vaescope.report import figures
from vaescope.training import MemberSpec

STRETCH = (1.0, 2.0, 4.0)
FAMILIES = ("isotropic", "diagonal", "full")
MIXINGS = {"moebius": "conformal (Möbius)", "stretched": "orthogonal, not conformal"}
CAPTION = "Every dot is a seed, every bar a median over seeds. Both mixings belong to the IMA class."


def make_mixing(name: str, seed: int) -> Mixing:
    """A mixing of the IMA class; only the Möbius transform is conformal."""
    if name == "moebius":
        return Moebius(DIM, seed=seed, low=BOX.low, high=BOX.high)
    stretch = Mixing(DIM, [Affine(torch.diag(torch.tensor(STRETCH, dtype=torch.float64)))])
    return Compose(stretch, OrthogonalMLP(DIM, layers=1, seed=seed, activation="sigmoid", activate_input=True))


@dataclass(frozen=True)
class CovarianceSettings(TrainedSettings):
    precision: float = 1e4


@dataclass(frozen=True)
class CovarianceCell:
    posterior: str
    """One of `FAMILIES`."""
    mixing: str
    """One of `MIXINGS`."""
    seed: int


@dataclass(frozen=True)
class CovarianceMeasurement:
    """What is measured of one member."""

    conformal_contrast: float
    ima_contrast: float
    true_conformal_contrast: float
    """Of the mixing."""
    reconstruction_mse: float
    mcc_mean: float
    r2: float


CovarianceResult = Result[CovarianceCell, CovarianceMeasurement]
Value = Callable[[CovarianceMeasurement], float]


class CovarianceStructure(TrainedExperiment[CovarianceSettings, CovarianceCell, CovarianceMeasurement]):
    info = COVARIANCE_STRUCTURE
    about = (
        "The near-deterministic gap of a diagonal posterior is c_IMA, so training favours decoders with orthogonal "
        "Jacobian columns. By the same argument the gap of an isotropic posterior is the conformal contrast "
        "(orthogonal columns of equal length), and a full-covariance posterior has no gap and favours no decoder. VAEs "
        "with each family are trained on data from a conformal mixing, and from a mixing that is orthogonal but "
        "stretches its three latents by 1, 2 and 4. The claims are conjectures: the paper does not test them."
    )
    quick = CovarianceSettings(
        seeds=4,
        samples=12_000,
        epochs=150,
        patience=150,
        learning_rate=3e-3,
        decay="cosine",
        precision_start=1e2,
        precision_hold=2_000,
        precision_warmup=8_000,
    )
    laptop = CovarianceSettings(
        seeds=5,
        samples=30_000,
        epochs=60,
        patience=60,
        learning_rate=3e-3,
        decay="cosine",
        precision_start=1e2,
        precision_hold=2_000,
        precision_warmup=8_000,
    )
    paper = CovarianceSettings(seeds=20, samples=60_000, epochs=100, patience=30)
    cell_type = CovarianceCell
    measured_type = CovarianceMeasurement

    def cells(self, settings: CovarianceSettings) -> list[CovarianceCell]:
        return [
            CovarianceCell(posterior, mixing, seed)
            for posterior in FAMILIES
            for mixing in MIXINGS
            for seed in range(settings.seeds)
        ]

    def stack_key(self, cell: CovarianceCell) -> str:
        return cell.posterior

    def data_key(self, cell: CovarianceCell) -> tuple[str, int]:
        return cell.mixing, cell.seed

    def member(self, cell: CovarianceCell, data_index: int, settings: CovarianceSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=settings.precision, data=data_index)

    def model(self, cell: CovarianceCell, settings: CovarianceSettings) -> VAE:
        return VAE.mlp(DIM, DIM, hidden=(30, 30), prior=BOX, posterior=cell.posterior)

    def data(self, cell: CovarianceCell, settings: CovarianceSettings) -> FactorData:
        return uniform_mixture(make_mixing(cell.mixing, cell.seed), seed=cell.seed, samples=settings.samples)

    def measure(
        self, cell: CovarianceCell, member: Member, data: FactorData, settings: CovarianceSettings
    ) -> CovarianceMeasurement:
        x = data.observations.test
        mean, _ = member.encode(x)
        truth = make_mixing(cell.mixing, cell.seed)
        return CovarianceMeasurement(
            conformal_contrast=float(theory.conformal_contrast(member.decode, mean).mean()),
            ima_contrast=float(theory.ima_contrast(member.decode, mean).mean()),
            true_conformal_contrast=float(theory.conformal_contrast(truth, data.test_factors).mean()),
            reconstruction_mse=float((x - member.decode(mean)).square().mean()),
            mcc_mean=metrics.mcc(mean, data.test_factors).score,
            r2=metrics.linear_r2(mean, data.test_factors).score,
        )

    def claims(
        self, settings: CovarianceSettings
    ) -> Sequence[ClaimSpec[CovarianceResult, CovarianceSettings, Sequence[float]]]:
        return CLAIMS

    def figures(self, results: Sequence[CovarianceResult], settings: CovarianceSettings) -> list[ReportFigure]:
        panels: tuple[tuple[str, str, str, Value], ...] = (
            ("Conformal contrast", "nats", "y", conformal_contrast),
            ("IMA contrast", "nats", "y", ima_contrast),
            ("Recovery of the sources", "MCC of posterior means", "", mcc_mean),
        )
        figure, axes = figures.row_of_panels(len(panels))
        for axis, (title, unit, log, value) in zip(axes, panels, strict=True):
            for index, (mixing, label) in enumerate(MIXINGS.items()):
                own = [r for r in results if r.cell.mixing == mixing]
                values = [[value(r.measured) for r in own if r.cell.posterior == family] for family in FAMILIES]
                figures.plot_strips(axis, FAMILIES, values, label=label, offset=0.16 * (2 * index - 1), index=index)
            figures.format_axis(axis, title=title, x="posterior family", y=unit, log=log, legend=False)
        figures.shared_legend(figure, axes[0])
        return [ReportFigure("covariance_structure", figure, CAPTION)]


# claims ---------------------------------------------------------------------------------------


def conformal_contrast(measured: CovarianceMeasurement) -> float:
    return measured.conformal_contrast


def ima_contrast(measured: CovarianceMeasurement) -> float:
    return measured.ima_contrast


def mcc_mean(measured: CovarianceMeasurement) -> float:
    return measured.mcc_mean


def differences(
    results: Sequence[CovarianceResult], value: Value, *, larger: str, smaller: str, mixings: Sequence[str]
) -> list[float]:
    """The value with one family minus that with another, for every mixing and seed."""
    values = {(r.cell.posterior, r.cell.mixing, r.cell.seed): value(r.measured) for r in results}
    return [
        first - values[smaller, mixing, seed]
        for (posterior, mixing, seed), first in values.items()
        if posterior == larger and mixing in mixings and (smaller, mixing, seed) in values
    ]


def _conjecture(
    sentence: str,
    quantity: str,
    value: Value,
    *,
    larger: str,
    smaller: str,
    minimum: float = 0.001,
    mixings: Sequence[str] = tuple(MIXINGS),
) -> ClaimSpec[CovarianceResult, object, Sequence[float]]:
    """A claim that compares two posterior families on the same data, seed by seed."""
    return ClaimSpec(
        sentence=sentence,
        source=f"{PAPER}, §6 (conjecture)",
        measure=lambda results, _: differences(results, value, larger=larger, smaller=smaller, mixings=mixings),
        criterion=PairedDifference(quantity, f"{larger} posteriors", f"{smaller} posteriors", minimum),
        requires=(members_converged(),),
    )


CLAIMS = (
    _conjecture(
        "An isotropic posterior makes the decoder more nearly conformal than a diagonal one.",
        "conformal contrast",
        conformal_contrast,
        larger="diagonal",
        smaller="isotropic",
    ),
    _conjecture(
        "A full-covariance posterior removes the pressure towards orthogonal columns.",
        "c_IMA",
        ima_contrast,
        larger="full",
        smaller="diagonal",
    ),
    _conjecture(
        "Without that pressure the sources of the stretched mixing are recovered less well.",
        "MCC",
        mcc_mean,
        larger="diagonal",
        smaller="full",
        minimum=0.01,
        mixings=("stretched",),
    ),
    _conjecture(
        "If the mixing is not conformal, an isotropic posterior recovers the sources less well than a diagonal one.",
        "MCC",
        mcc_mean,
        larger="diagonal",
        smaller="isotropic",
        minimum=0.01,
        mixings=("stretched",),
    ),
    _conjecture(
        "If the mixing is conformal, an isotropic posterior recovers the sources at least as well as a diagonal one.",
        "MCC",
        mcc_mean,
        larger="isotropic",
        smaller="diagonal",
        minimum=0.0,
        mixings=("moebius",),
    ),
)

EXPERIMENT = CovarianceStructure()
