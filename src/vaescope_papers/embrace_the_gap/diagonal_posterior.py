"""Does recovery of the sources need the diagonal posterior? The causal test of the title of Reizinger et al. 2022."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import metrics, theory
from vaescope.core import randomness
from vaescope.data.dataset import split
from vaescope.data.mixings import Affine, Compose, Mixing, Moebius
from vaescope.distributions import Normal, Prior
from vaescope.models import VAE, Member
from vaescope.training import MemberSpec
from vaescope.training.loop import EpochMetrics
from vaescope_papers.claims import ClaimSpec, ClaimSpecs, settled
from vaescope_papers.criteria import Bound, PairedDifference, Sample, at_least, at_most, within
from vaescope_papers.embrace_the_gap import EXPERIMENTS, PAPER
from vaescope_papers.embrace_the_gap.shared import BOX, DIM, Recovery, measure_recovery, strips_figure
from vaescope_papers.experiment import ReportFigure, ReportTable, TableRow
from vaescope_papers.results import Result
from vaescope_papers.statistics import median
from vaescope_papers.trained import FactorData, TrainedExperiment, TrainedSettings, restart_gain


def titles() -> dict[str, str]:
    """What the kinds of data are called in figures and tables."""
    return {"uniform": "uniform sources, conformal mixing", "normal": "normal sources, stretched mixing"}


def stretch() -> Float[Tensor, " d"]:
    """Deviations of the normal sources before the Möbius transform, whose pole is far outside."""
    return torch.tensor([0.08, 0.12, 0.18], dtype=torch.float64)


@dataclass(frozen=True)
class DiagonalPosteriorSettings(TrainedSettings):
    normal_seeds: int = 1
    """Seeds on normal sources, at most as many as on uniform ones."""
    posteriors: tuple[str, ...] = ("diagonal", "full", "isotropic")
    """On uniform sources; on normal ones isotropic posteriors are left out."""
    mixings: tuple[int, ...] = (1000, 1010, 1012, 1013, 1030, 1032, 1033, 1034, 1037, 1046)
    """Seeds of Möbius transforms: the first from 1000 on where linear ICA has an MCC of at most 0.75 on 5,000 samples
    of uniform sources that no model sees."""
    uniform_precision: float = 1e3
    normal_precision: float = 1e4
    exact_points: int = 60
    """Sources at which the best posteriors of the true mixing are solved exactly; 0 for no such gap."""

    def families(self, sources: str) -> tuple[str, ...]:
        """The posteriors that are compared."""
        return tuple(name for name in self.posteriors if sources == "uniform" or name != "isotropic")

    def precision(self, sources: str) -> float:
        return self.uniform_precision if sources == "uniform" else self.normal_precision


@dataclass(frozen=True)
class DiagonalPosteriorCell:
    sources: str
    """A key of `titles`."""
    posterior: str
    mixing: int
    """Seed of the Möbius transform and of the samples."""
    seed: int


@dataclass(frozen=True)
class PosteriorMeasurement(Recovery):
    """What is measured of one member; ELBOs are means over the same test points, in nats."""

    mcc_pca: float
    """Of the principal components of the observations."""
    restart_gain: float
    """Nats of validation ELBO that the member gained after the learning rate was restarted; NaN if it was not."""
    mcc_curve: tuple[float, ...]
    """MCC of the posterior means of 500 test points after every epoch."""
    true_gap: float
    """log p(x) - ELBO* of the true mixing as decoder, with the best posteriors of the family, in nats; or NaN."""


PosteriorResult = Result[DiagonalPosteriorCell, PosteriorMeasurement]
Results = Sequence[PosteriorResult]
Value = Callable[[PosteriorMeasurement], float]


# data -----------------------------------------------------------------------------------------


def prior_of(sources: str) -> Prior:
    return BOX if sources == "uniform" else Normal()


def sample_sources(sources: str, count: int, seed: int) -> Float[Tensor, "N d"]:
    """Draws of the prior; the few normal ones whose stretched values leave the box of the pole are drawn again."""
    generator, prior = randomness.generator(seed, "sources"), prior_of(sources)
    found = prior.sample(count, DIM, generator=generator)
    limit = 0.5 / stretch()
    while sources == "normal" and bool((outside := found.abs() >= limit).any()):
        found = torch.where(outside, prior.sample(count, DIM, generator=generator), found)
    return found


def make_mixing(sources: str, seed: int) -> Mixing:
    """A Möbius transform; for normal sources after a stretch, and scaled so that its derivative at the centre is one.

    A Möbius transform after a rotation is as conformal as before, and normal sources are the same after a rotation: no
    posterior could find their axes. After a stretch, only the axes of the sources have orthogonal Jacobian columns.
    """
    if sources == "uniform":
        return Moebius(DIM, seed=seed, low=BOX.low, high=BOX.high)
    pole = Moebius(DIM, seed=seed).pole
    moebius = Moebius(DIM, seed=seed, pole=pole, scale=float(pole.square().sum()))
    return Compose(Mixing(DIM, [Affine(torch.diag(stretch()))]), moebius)


@cache
def true_gap(sources: str, family: str, seed: int, settings: DiagonalPosteriorSettings) -> float:
    """Mean log p(x) - ELBO* of the true mixing as decoder; NaN without points."""
    if not settings.exact_points:
        return math.nan
    mixing, prior, precision = make_mixing(sources, seed), prior_of(sources), settings.precision(sources)
    z = sample_sources(sources, settings.exact_points, seed)
    best = theory.project(mixing, mixing(z), precision=precision, prior=prior, start=z, family=family)
    likelihood = theory.log_marginal(mixing, mixing(z), precision=precision, prior=prior, start=best.mean).value
    return float((likelihood - best.elbo)[best.converged].mean())


# claims ---------------------------------------------------------------------------------------


def of_mixings(sources: str, posterior: str, value: Value) -> Callable[[Results, object], Sample]:
    """A measured value of every member of a group; the units are mixings."""

    def measure(results: Results, _: object) -> Sample:
        own = [r for r in results if (r.cell.sources, r.cell.posterior) == (sources, posterior)]
        return Sample([value(r.measured) for r in own], [r.cell.mixing for r in own])

    return measure


def differences(sources: str, first: str, second: str, value: Value) -> Callable[[Results, object], list[float]]:
    """Per mixing, the median over seeds of one family minus that of another."""

    def measure(results: Results, settings: object) -> list[float]:
        one, other = (_medians(of_mixings(sources, family, value)(results, settings)) for family in (first, second))
        return [one[mixing] - other[mixing] for mixing in one if mixing in other]

    return measure


def _medians(sample: Sample) -> dict[object, float]:
    units = dict.fromkeys(sample.units)
    return {u: median([v for v, own in zip(sample.values, sample.units, strict=True) if own == u]) for u in units}


def mcc(measured: PosteriorMeasurement) -> float:
    return measured.mcc_mean


def lead_over_ica(measured: PosteriorMeasurement) -> float:
    return measured.mcc_mean - measured.mcc_linear_ica


def contrast(measured: PosteriorMeasurement) -> float:
    return measured.ima_contrast


def settled_in(sources: str, *families: str) -> Callable[[Results, object], str | None]:
    """A condition: the recovery of the members that a claim is about has stopped changing."""
    condition = settled("MCC", lambda r: r.measured.mcc_curve, tolerance=0.02)

    def recovery_settled(results: Results, settings: object) -> str | None:
        own = [r for r in results if r.cell.sources == sources and r.cell.posterior in families]
        return condition(own, settings) if own else None

    return recovery_settled


def claims_for(sources: str, where: str) -> ClaimSpecs[PosteriorResult, object]:
    """The same questions for both kinds of sources."""
    return (
        ClaimSpec(
            sentence=f"Diagonal posteriors recover the sources {where}.",
            source=f"{PAPER}, §4.3",
            measure=of_mixings(sources, "diagonal", mcc),
            criterion=Bound("MCC of posterior means", at_least(0.95), over="mixings"),
            requires=(settled_in(sources, "diagonal"),),
            family=f"recovery, {sources}",
            robust_over=(0.9, 0.95, 0.97),
        ),
        ClaimSpec(
            sentence=f"Recovery needs the diagonal posterior {where}: full-covariance posteriors recover less.",
            source=f"{PAPER}, the title read as a statement about causes",
            measure=differences(sources, "diagonal", "full", mcc),
            criterion=PairedDifference("MCC", "diagonal posteriors", "full posteriors", 0.05, over="mixings"),
            requires=(settled_in(sources, "diagonal", "full"),),
            family=f"recovery, {sources}",
            robust_over=(0.01, 0.02, 0.05, 0.1),
        ),
        ClaimSpec(
            sentence=f"Full-covariance posteriors recover the sources as well as diagonal ones {where}.",
            source="Beyond the paper: the opposite, as an equivalence",
            measure=differences(sources, "diagonal", "full", mcc),
            criterion=Bound("MCC with diagonal minus that with full posteriors", within(0, 0.02), over="mixings"),
            requires=(settled_in(sources, "diagonal", "full"),),
            family=f"recovery, {sources}",
            robust_over=(0.01, 0.02, 0.05),
        ),
        ClaimSpec(
            sentence=f"Decoders of diagonal posteriors have the more nearly orthogonal columns {where}.",
            source=f"{PAPER}, Theorem 1: the gap of diagonal posteriors is c_IMA, that of full ones is zero",
            measure=differences(sources, "full", "diagonal", contrast),
            criterion=PairedDifference("c_IMA", "full posteriors", "diagonal posteriors", over="mixings"),
            requires=(settled_in(sources, "diagonal", "full"),),
            family=f"contrast, {sources}",
            robust_over=(0.0, 0.01, 0.02, 0.05),
        ),
        ClaimSpec(
            sentence=f"Full-covariance posteriors recover more than linear ICA does {where}.",
            source="Beyond the paper: linear ICA as a baseline",
            measure=of_mixings(sources, "full", lead_over_ica),
            criterion=PairedDifference("MCC", "full posteriors", "linear ICA", 0.1, over="mixings"),
            requires=(settled_in(sources, "full"),),
            family=f"recovery, {sources}",
            robust_over=(0.0, 0.05, 0.1, 0.2),
        ),
    )


def linear_ica_fails() -> ClaimSpec[PosteriorResult, object, Sample]:
    return ClaimSpec(
        sentence="Linear ICA fails on the conformal mixings of uniform sources.",
        source="The condition of this test",
        measure=of_mixings("uniform", "diagonal", lambda m: m.mcc_linear_ica),
        criterion=Bound("MCC of linear ICA", at_most(0.8), statistic="largest", over="mixings", exact=True),
    )


def isotropic_claim() -> ClaimSpec[PosteriorResult, object, Sequence[float]]:
    return ClaimSpec(
        sentence="Isotropic posteriors recover the sources less well than diagonal ones on conformal mixings of "
        "uniform sources.",
        source="Beyond the paper: the third family, which is isotropic in the logit of the latents",
        measure=differences("uniform", "diagonal", "isotropic", mcc),
        criterion=PairedDifference("MCC", "diagonal posteriors", "isotropic posteriors", 0.05, over="mixings"),
        requires=(settled_in("uniform", "diagonal", "isotropic"),),
        family="recovery, uniform",
        robust_over=(0.01, 0.02, 0.05, 0.1),
    )


# experiment -----------------------------------------------------------------------------------


class DiagonalPosterior(TrainedExperiment[DiagonalPosteriorSettings, DiagonalPosteriorCell, PosteriorMeasurement]):
    info = EXPERIMENTS["diagonal-posterior"]
    about = (
        "The paper explains recovery of the sources by the gap of diagonal posteriors, which is c_IMA. Posteriors with "
        "full covariance have no such gap: if recovery needs this pressure, it is lost with them, everything else "
        "being equal. Mixings are the first Möbius transforms on which linear ICA has an MCC of at most 0.75, so that "
        "nothing nearly linear explains recovery. Uniform sources, as in the paper, may be identifiable from their "
        "distribution and the smoothness of networks alone. Normal sources are not: a rotation does not change their "
        "distribution. After a stretch the mixing has orthogonal columns along the axes of the sources only, so that "
        "the diagonal posterior is all that can find them: this shows whether the test would notice a cause. On "
        "bounded sources all posteriors are Gaussian in the logit of the latents, so that isotropic ones are not "
        "isotropic in the latents themselves. The members of a mixing are one unit, and claims are decided only "
        "if recovery has settled over the last third of training. The laptop profile has uniform sources, and "
        "diagonal and full posteriors; the others restart the learning rate and show what that gains. Settings were "
        "chosen on four other mixings, of the seeds 106, 112, 129 and 164."
    )
    quick = DiagonalPosteriorSettings(
        seeds=1,
        samples=12_000,
        epochs=70,
        patience=70,
        batch_size=128,
        learning_rate=3e-3,
        decay="restart",
        precision_start=1e2,
        precision_hold=400,
        precision_warmup=1200,
        mixings=(1000, 1010),
        exact_points=10,
    )
    laptop = replace(
        quick,
        seeds=3,
        samples=30_000,
        epochs=15,
        patience=15,
        batch_size=64,
        learning_rate=5e-3,
        decay="cosine",
        precision_hold=300,
        mixings=DiagonalPosteriorSettings.mixings,
        posteriors=("diagonal", "full"),
        normal_seeds=0,
        exact_points=0,
    )
    paper = replace(
        quick,
        seeds=3,
        samples=60_000,
        epochs=200,
        patience=200,
        mixings=laptop.mixings,
        normal_seeds=3,
        exact_points=30,
    )
    cell_type = DiagonalPosteriorCell
    measured_type = PosteriorMeasurement

    def claims(self, settings: DiagonalPosteriorSettings) -> ClaimSpecs[PosteriorResult, object]:
        """About the sources and posteriors of a profile."""
        isotropic = [isotropic_claim()] if "isotropic" in settings.posteriors else []
        normal = claims_for("normal", "on stretched mixings of normal sources") if settings.normal_seeds else ()
        uniform = claims_for("uniform", "on conformal mixings of uniform sources")
        return (linear_ica_fails(), *uniform, *isotropic, *normal)

    def cells(self, settings: DiagonalPosteriorSettings) -> list[DiagonalPosteriorCell]:
        return [
            DiagonalPosteriorCell(sources, posterior, mixing, seed)
            for sources in titles()
            for posterior, mixing in product(settings.families(sources), settings.mixings)
            for seed in range(settings.seeds if sources == "uniform" else min(settings.seeds, settings.normal_seeds))
        ]

    def stack_key(self, cell: DiagonalPosteriorCell) -> tuple[str, str]:
        return cell.sources, cell.posterior

    def data_key(self, cell: DiagonalPosteriorCell) -> tuple[str, int]:
        return cell.sources, cell.mixing

    def member(self, cell: DiagonalPosteriorCell, data_index: int, settings: DiagonalPosteriorSettings) -> MemberSpec:
        seed = 100 * cell.mixing + cell.seed  # other initial weights on every mixing
        return MemberSpec(seed, precision=settings.precision(cell.sources), data=data_index)

    def model(self, cell: DiagonalPosteriorCell, settings: DiagonalPosteriorSettings) -> VAE:
        return VAE.mlp(DIM, DIM, hidden=(30, 30), prior=prior_of(cell.sources), posterior=cell.posterior)

    def data(self, cell: DiagonalPosteriorCell, settings: DiagonalPosteriorSettings) -> FactorData:
        sources = sample_sources(cell.sources, settings.samples, cell.mixing)
        parts = split(make_mixing(cell.sources, cell.mixing)(sources))
        return FactorData(parts, sources[-len(parts.test) :])

    def epoch_metrics(self, data: Mapping[int, FactorData], settings: DiagonalPosteriorSettings) -> EpochMetrics:
        """Recovery after every epoch: whether it has settled."""

        def measure(epoch: int, member: Member) -> dict[str, float]:
            own = data[member.seed]
            mean, _ = member.encode(own.observations.test[:500])
            finite = bool(mean.isfinite().all())
            return {"mcc": metrics.mcc(mean, own.test_factors[: len(mean)]).score if finite else float("nan")}

        return measure

    def measure(
        self,
        cell: DiagonalPosteriorCell,
        member: Member,
        data: FactorData,
        settings: DiagonalPosteriorSettings,
    ) -> PosteriorMeasurement:
        mixing, x = make_mixing(cell.sources, cell.mixing), data.observations.test
        components = torch.linalg.eigh(torch.cov(x.mT)).eigenvectors
        return PosteriorMeasurement(
            **asdict(measure_recovery(member, data, mixing)),
            mcc_pca=metrics.mcc(x @ components, data.test_factors).score,
            restart_gain=restart_gain(member) if settings.decay == "restart" else math.nan,
            mcc_curve=tuple(member.history["mcc"]),
            true_gap=true_gap(cell.sources, cell.posterior, cell.mixing, settings),
        )

    def figures(self, results: Results, settings: DiagonalPosteriorSettings) -> list[ReportFigure]:
        panels: tuple[tuple[str, str, str, Value], ...] = (
            ("Recovery of the sources", "MCC of posterior means", "", mcc),
            ("IMA contrast of the decoder", "nats", "y", contrast),
            ("Lead over linear ICA", "difference of the MCCs", "", lead_over_ica),
        )
        groups = {
            title: {
                family: [r.measured for r in results if (r.cell.sources, r.cell.posterior) == (sources, family)]
                for family in settings.posteriors
            }
            for sources, title in titles().items()
            if any(r.cell.sources == sources for r in results)
        }
        figure = strips_figure(panels, groups, x="posterior family")
        caption = (
            "Every dot is a member, every bar a median. Left: recovery with each family of posteriors. Middle: c_IMA "
            "of the decoder, which is the gap of diagonal posteriors. Right: recovery beyond that of linear "
            "ICA on the same data."
        )
        return [ReportFigure("diagonal_posterior", figure, caption)]

    def tables(self, results: Results, settings: DiagonalPosteriorSettings) -> list[ReportTable]:
        columns: dict[str, Value] = {
            "MCC": mcc,
            "MCC of samples": lambda m: m.mcc_sampled,
            "linear ICA": lambda m: m.mcc_linear_ica,
            "PCA": lambda m: m.mcc_pca,
            "linear R²": lambda m: m.r2_mean,
            "c_IMA": contrast,
            "gain of the restart": lambda m: m.restart_gain,
            "gap of the true mixing": lambda m: m.true_gap,
            "active latents": lambda m: m.active,
        }
        rows: list[TableRow] = []
        for sources, title in titles().items():
            for family in settings.families(sources):
                own = [r.measured for r in results if (r.cell.sources, r.cell.posterior) == (sources, family)]
                if own:
                    found = {name: median([value(m) for m in own]) for name, value in columns.items()}
                    medians = {name: None if math.isnan(value) else value for name, value in found.items()}
                    rows.append({"data": title, "posterior": family, "members": len(own)} | medians)
        return [ReportTable("Medians over members; ELBOs and contrasts in nats", rows)]


EXPERIMENT = DiagonalPosterior()
