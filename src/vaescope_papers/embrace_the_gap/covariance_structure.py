"""The three conjectures of Reizinger et al. 2022, §6: how covariances of posterior and noise shape the decoder.

Sources and prior are Laplace distributions. Their latents are unbounded, so that an isotropic posterior is isotropic in
the latents themselves, and they are not Gaussian: a Gaussian prior with isotropic posterior and noise leaves every
rotation of the latents the same ELBO, so that the third conjecture could not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from vaescope import metrics
from vaescope.core import randomness
from vaescope.data.dataset import split
from vaescope.data.mixings import Affine, Compose, Mixing, Moebius, OrthogonalMLP
from vaescope.distributions import Laplace
from vaescope.inference.anisotropic import Noise, isotropic_posterior
from vaescope.models import VAE, Member
from vaescope.training import MemberSpec
from vaescope_papers.claims import ClaimSpec, ClaimSpecs, of_members
from vaescope_papers.criteria import Bound, PairedDifference, at_least, within
from vaescope_papers.embrace_the_gap import EXPERIMENTS, PAPER
from vaescope_papers.embrace_the_gap.shared import BOX, DIM, linear_ica, strips_figure
from vaescope_papers.experiment import ReportFigure
from vaescope_papers.results import Result, paired_differences
from vaescope_papers.statistics import median
from vaescope_papers.trained import FactorData, TrainedExperiment, TrainedSettings

PRIOR = Laplace(0.0, 0.08)  # nearly all of it inside the box, outside of which a Möbius transform has its pole
MIXINGS = {"moebius": "conformal (Möbius)", "stretched": "orthogonal, not conformal"}


@dataclass(frozen=True)
class CovarianceSettings(TrainedSettings):
    precision: float = 1e4


@dataclass(frozen=True)
class CovarianceCell:
    posterior: str
    """isotropic, diagonal or full."""
    mixing: str
    """One of `MIXINGS`."""
    seed: int
    noise: str = "even"
    """even or uneven."""


@dataclass(frozen=True)
class CovarianceMeasurement:
    """What is measured of one member."""

    conformal_contrast: float
    """Of the decoder, its outputs divided by the deviations of the noise: the gap of an isotropic posterior."""
    ima_contrast: float
    encoder_contrast: float
    """c_IMA of the inverse of the decoder's Jacobian."""
    true_conformal_contrast: float
    """Of the mixing."""
    reconstruction_mse: float
    mcc_mean: float
    r2: float
    mcc_linear_ica: float
    """Of linear ICA on the observations: a baseline without a VAE."""
    r2_linear: float
    """Share of the variance of the sources that a linear map of the observations explains."""
    flattest_signal: float
    """Smallest eigenvalue of the covariance of the observations, in units of the variance of the noise."""


CovarianceResult = Result[CovarianceCell, CovarianceMeasurement]
Results = Sequence[CovarianceResult]
Value = Callable[[CovarianceMeasurement], float]


# data -----------------------------------------------------------------------------------------


def make_mixing(name: str, seed: int) -> Mixing:
    """A mixing of the IMA class; only the Möbius transform is conformal."""
    if name == "moebius":
        return Moebius(DIM, seed=seed, low=BOX.low, high=BOX.high)
    stretch = Mixing(DIM, [Affine(torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)))])
    return Compose(stretch, OrthogonalMLP(DIM, layers=1, seed=seed, activation="sigmoid", activate_input=True))


def sample_sources(count: int, seed: int) -> torch.Tensor:
    """Draws of the prior inside the box; the few outside are drawn again."""
    generator = randomness.generator(seed, "sources")
    low, high = BOX.bounds
    sources = PRIOR.sample(count, DIM, generator=generator)
    while bool((outside := (sources <= low) | (sources >= high)).any()):
        sources = torch.where(outside, PRIOR.sample(count, DIM, generator=generator), sources)
    return sources


def relative_noise(cell: CovarianceCell) -> Noise:
    """The noise of a cell at γ² = 1: precisions of the three outputs whose product is one."""
    precision = {"even": [1.0, 1.0, 1.0], "uneven": [0.25, 1.0, 4.0]}[cell.noise]
    return Noise(torch.tensor(precision, dtype=torch.float64))


# claims ---------------------------------------------------------------------------------------


LOOKS = (5, 20)
"""Seeds at which the results were looked at."""


def family_differences(value: Value, first: str, second: str, mixing: str) -> Callable[[Results, object], list[float]]:
    """A value with one posterior family minus that with another, for every seed of a kind of mixing with even noise."""

    def measure(results: Results, _: object) -> list[float]:
        even = [r for r in results if (r.cell.noise, r.cell.mixing) == ("even", mixing)]
        one, other = ([r for r in even if r.cell.posterior == family] for family in (first, second))
        return paired_differences(one, other, value, lambda c: c.seed)

    return measure


def encoder_leads(mixing: str) -> Callable[[Results, object], list[float]]:
    """c_IMA of the decoder's Jacobian minus that of the encoder's, with uneven noise on one kind of mixing."""
    return lambda results, _: [
        r.measured.ima_contrast - r.measured.encoder_contrast
        for r in results
        if (r.cell.noise, r.cell.mixing) == ("uneven", mixing)
    ]


def conformal(cell: CovarianceCell) -> bool:
    """Isotropic posteriors and noise on a conformal mixing: the setting of the third conjecture."""
    return (cell.posterior, cell.mixing, cell.noise) == ("isotropic", "moebius", "even")


def baseline_words(results: Results, _: object) -> str:
    """What linear ICA reaches on the mixings of the third conjecture, and how flat their observations are."""
    own = [r.measured for r in results if conformal(r.cell)]
    if not own:
        return ""
    flat = sorted(m.flattest_signal for m in own)
    return (
        f"Linear ICA of the observations has a median MCC of {median([m.mcc_linear_ica for m in own]):.3f}, and a "
        f"linear map explains {median([m.r2_linear for m in own]):.0%} of the variance of the sources. Along their "
        f"flattest direction the observations vary {flat[0]:.2g} to {flat[-1]:.2g} times as much as the noise; where "
        "this is small a latent is easily lost, and the contrasts of its column mean nothing."
    )


def not_nearly_linear(results: Results, _: object, *, highest: float = 0.95) -> str | None:
    """A condition: recovery says something about nonlinear mixings only where linear ICA does not reach it."""
    own = [r.measured.mcc_linear_ica for r in results if conformal(r.cell)]
    if not own or median(own) < highest:
        return None
    return f"These mixings are too nearly linear to tell: linear ICA has a median MCC of {median(own):.3f}."


# experiment -----------------------------------------------------------------------------------


class CovarianceStructure(TrainedExperiment[CovarianceSettings, CovarianceCell, CovarianceMeasurement]):
    info = EXPERIMENTS["covariance-structure"]
    groups = (("isotropic", "even"), ("diagonal", "even"), ("full", "even"), ("isotropic", "uneven"))
    """Posterior family and noise."""
    about = (
        "The near-deterministic gap of a diagonal posterior is c_IMA, so training favours decoders with orthogonal "
        "Jacobian columns. By the same argument the gap of an isotropic posterior is the conformal contrast "
        "(orthogonal columns of equal length), and a full-covariance posterior has no gap and favours no decoder. VAEs "
        "with each family are trained on data from a conformal mixing, and from a mixing that is orthogonal but "
        "stretches its three latents by 1, 2 and 4; isotropic posteriors also with a noise that differs between "
        "outputs. The paper does not test its conjectures. The claims about full covariances are our own control. All "
        "claims are about decoders as these runs trained them, under a learning rate that decays; whether they are at "
        "their optimum is not known. Both kinds of mixing are nearly linear on these sources, as linear ICA shows. The "
        "results were looked at with 5 seeds and then with 20, and α pays for both looks."
    )
    quick = CovarianceSettings(seeds=4, samples=12_000, epochs=150, patience=150).annealed(
        3e-3, hold=2_000, warmup=8_000
    )
    laptop = replace(quick, seeds=20, samples=30_000, epochs=60, patience=60)
    paper = CovarianceSettings(seeds=20, samples=60_000, epochs=100, patience=30)
    cell_type = CovarianceCell
    measured_type = CovarianceMeasurement
    claim_specs: ClaimSpecs[CovarianceResult, object] = (
        ClaimSpec(
            sentence="On mixings that stretch their latents, decoders trained with isotropic posteriors are more "
            "nearly conformal than those trained with diagonal ones.",
            source=f"{PAPER}, §6, conjecture 1",
            measure=family_differences(lambda m: m.conformal_contrast, "diagonal", "isotropic", "stretched"),
            criterion=PairedDifference(
                "conformal contrast", "diagonal posteriors", "isotropic posteriors", 0.1, over="mixings"
            ),
            looks=LOOKS,
            family="conjecture 1",
            robust_over=(0.001, 0.1, 0.5),
        ),
        ClaimSpec(
            sentence="On conformal mixings the two families make no difference: both decoders are conformal.",
            source=f"{PAPER}, §6, conjecture 1; the case in which it asks for nothing",
            measure=family_differences(lambda m: m.conformal_contrast, "diagonal", "isotropic", "moebius"),
            criterion=Bound("difference of the conformal contrasts in nats", within(0, 0.01), over="mixings"),
            looks=LOOKS,
            family="conjecture 1",
            robust_over=(0.001, 0.01, 0.1),
        ),
        *(
            ClaimSpec(
                sentence="With an isotropic posterior and a noise that is not isotropic, IMA holds for the encoder "
                f"rather than for the decoder: {title} mixings.",
                source=f"{PAPER}, §6, conjecture 2",
                measure=encoder_leads(mixing),
                criterion=PairedDifference(
                    "c_IMA", "the decoder's Jacobian", "the encoder's Jacobian", 0.001, over="mixings"
                ),
                looks=LOOKS,
                family="conjecture 2",
                robust_over=(0.0, 0.001, 0.01, 0.05),
            )
            for mixing, title in MIXINGS.items()
        ),
        ClaimSpec(
            sentence="The sources of conformal mixings are recovered with isotropic posteriors and noise.",
            source=f"{PAPER}, §6, conjecture 3",
            measure=of_members(lambda m: m.mcc_mean, conformal),
            criterion=Bound("MCC", at_least(0.95), over="mixings"),
            looks=LOOKS,
            requires=(not_nearly_linear,),
            note=baseline_words,
            robust_over=(0.9, 0.95, 0.97),
        ),
        ClaimSpec(
            sentence="On these conformal mixings linear ICA of the observations recovers the sources as well.",
            source="Beyond the paper: linear ICA as a baseline of conjecture 3",
            measure=of_members(lambda m: m.mcc_mean - m.mcc_linear_ica, conformal),
            criterion=Bound("MCC of the VAE minus that of linear ICA", within(0, 0.01), over="mixings"),
            looks=LOOKS,
            robust_over=(0.005, 0.01, 0.02),
        ),
        *(
            ClaimSpec(
                sentence="Decoders trained with full-covariance posteriors have less nearly orthogonal columns: "
                f"{title} mixings.",
                source="Beyond the paper: our own control",
                measure=family_differences(lambda m: m.ima_contrast, "full", "diagonal", mixing),
                criterion=PairedDifference(
                    "c_IMA", "full-covariance posteriors", "diagonal posteriors", 0.001, over="mixings"
                ),
                looks=LOOKS,
                family="full covariance",
                robust_over=(0.0, 0.001, 0.01),
            )
            for mixing, title in MIXINGS.items()
        ),
        *(
            ClaimSpec(
                sentence=f"On mixings that stretch their latents, {family} posteriors recover the sources as well as "
                "diagonal ones.",
                source="Beyond the paper: our own control",
                measure=family_differences(lambda m: m.mcc_mean, "diagonal", family.split("-")[0], "stretched"),
                criterion=Bound("difference of the MCCs", within(0, 0.01), over="mixings"),
                looks=LOOKS,
                family="recovery",
                robust_over=(0.001, 0.01, 0.05),
            )
            for family in ("full-covariance", "isotropic")
        ),
    )

    def cells(self, settings: CovarianceSettings) -> list[CovarianceCell]:
        return [
            CovarianceCell(posterior, mixing, seed, noise)
            for posterior, noise in self.groups
            for mixing in MIXINGS
            for seed in range(settings.seeds)
        ]

    def stack_key(self, cell: CovarianceCell) -> str:
        return cell.posterior

    def data_key(self, cell: CovarianceCell) -> tuple[str, int, str]:
        return cell.mixing, cell.seed, cell.noise

    def member(self, cell: CovarianceCell, data_index: int, settings: CovarianceSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=settings.precision, data=data_index)

    def model(self, cell: CovarianceCell, settings: CovarianceSettings) -> VAE:
        return VAE.mlp(DIM, DIM, hidden=(30, 30), prior=PRIOR, posterior=cell.posterior)

    def data(self, cell: CovarianceCell, settings: CovarianceSettings) -> FactorData:
        """Observations divided by the deviations of the noise, for which isotropic noise is that of the cell."""
        sources = sample_sources(settings.samples, cell.seed)
        parts = split(relative_noise(cell).whiten(make_mixing(cell.mixing, cell.seed)(sources)))
        return FactorData(parts, sources[-len(parts.test) :])

    def measure(
        self, cell: CovarianceCell, member: Member, data: FactorData, settings: CovarianceSettings
    ) -> CovarianceMeasurement:
        x, noise = data.observations.test, relative_noise(cell)
        mean, _ = member.encode(x)

        def decoder(z: torch.Tensor) -> torch.Tensor:
            return member.decode(z) / noise.precision.sqrt().to(z)  # in units of the observations

        found = isotropic_posterior(decoder, mean, noise=noise)
        truth = isotropic_posterior(make_mixing(cell.mixing, cell.seed), data.test_factors, noise=noise)
        return CovarianceMeasurement(
            conformal_contrast=float(found.gap.mean()),
            ima_contrast=float(found.decoder.mean()),
            encoder_contrast=float(found.encoder.mean()),
            true_conformal_contrast=float(truth.gap.mean()),
            reconstruction_mse=float((x - member.decode(mean)).square().mean()),
            mcc_mean=metrics.mcc(mean, data.test_factors).score,
            r2=metrics.linear_r2(mean, data.test_factors).score,
            mcc_linear_ica=metrics.mcc(linear_ica(x.numpy()), data.test_factors).score,
            r2_linear=metrics.linear_r2(x, data.test_factors).score,
            flattest_signal=float(torch.linalg.eigvalsh(torch.cov(x.mT))[0]) * settings.precision,
        )

    def figures(self, results: Results, settings: CovarianceSettings) -> list[ReportFigure]:
        panels: tuple[tuple[str, str, str, Value], ...] = (
            ("Conformal contrast", "nats", "y", lambda m: m.conformal_contrast),
            ("IMA contrast of the decoder", "nats", "y", lambda m: m.ima_contrast),
            ("IMA contrast of the encoder", "nats", "y", lambda m: m.encoder_contrast),
            ("Recovery of the sources", "MCC of posterior means", "", lambda m: m.mcc_mean),
        )
        groups = {
            label: {
                family if noise == "even" else f"{family},\n{noise} noise": [
                    r.measured
                    for r in results
                    if (r.cell.mixing, r.cell.posterior, r.cell.noise) == (mixing, family, noise)
                ]
                for family, noise in self.groups
            }
            for mixing, label in MIXINGS.items()
        }
        figure = strips_figure(panels, groups, x="posterior family")
        caption = (
            "Every dot is a seed, every bar a median over seeds. Both mixings belong to the IMA class. The last column "
            "has isotropic posteriors and a noise with precisions 1/4, 1 and 4 times γ²."
        )
        return [ReportFigure("covariance_structure", figure, caption)]


EXPERIMENT = CovarianceStructure()
