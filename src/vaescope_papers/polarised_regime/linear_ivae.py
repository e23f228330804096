"""Mixed latents of iVAEs: predicted by the closed form of the linear iVAE, and found in trained ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vaescope import regime, theory
from vaescope.core import randomness
from vaescope.data.dataset import Split
from vaescope.data.mixings import random_orthogonal
from vaescope.inference.linear_ivae import LinearIVAE, expected_elbo
from vaescope.models import VAE, AuxiliarySettings, Member, MLPNetworks
from vaescope.report import figures
from vaescope.training import MemberSpec
from vaescope_papers.claims import ClaimSpec, ClaimSpecs, Statement, members_converged
from vaescope_papers.criteria import Bound, Sample, at_least, at_most
from vaescope_papers.experiment import ReportFigure, ReportTable, TableRow
from vaescope_papers.polarised_regime import EXPERIMENTS
from vaescope_papers.results import Result
from vaescope_papers.statistics import median
from vaescope_papers.trained import FactorData, TrainedExperiment, TrainedSettings


@dataclass(frozen=True)
class GroupedData:
    """Moments of x in three groups along six axes, and the model's size."""

    precision: float = 10.0
    latents: int = 5
    variances: tuple[tuple[float, ...], ...] = (
        (30, 20, 12, 0.3, 0.3, 0.3),
        (20, 15, 0.2, 0.3, 0.3, 0.3),
        (40, 0.2, 0.2, 0.3, 0.3, 0.3),
    )
    """In units of the decoder's: along the second and third axis they cross it, along the others they do not."""
    shifts: tuple[float, ...] = (1.0, -2.0, 1.0)
    """Means of the groups along the fourth axis, where the prior mean is learned."""

    @property
    def groups(self) -> int:
        return len(self.variances)

    @property
    def columns(self) -> int:
        return len(self.variances[0])


DATA = GroupedData()
MODELS = {  # decoder and prior
    "fixed": "linear, prior mean fixed",
    "learned": "linear, prior mean learned",
    "network": "hidden layers, prior mean learned",
}


@dataclass(frozen=True)
class LinearIVAECell:
    model: str
    """A key of `MODELS`."""
    seed: int

    @property
    def prior_mean(self) -> str:
        return "fixed" if self.model == "fixed" else "learned"


@dataclass(frozen=True)
class LinearIVAEMeasurement:
    """A trained iVAE beside the optimum of the linear one."""

    kinds: tuple[str, ...]
    """Of every latent, judged by posteriors of test samples; in the order of the predicted ones."""
    predicted_kinds: tuple[str, ...]
    passive_fraction: tuple[float, ...]
    predicted_passive_fraction: tuple[float, ...]
    ratios: tuple[float, ...]
    """Posterior variance over prior variance of every latent in every group, group after group."""
    predicted_ratios: tuple[float, ...]
    shortfall: float | None
    """Nats by which the exact ELBO of decoder and prior is below the optimum; None for decoders with hidden layers."""
    optimum: float
    """The ELBO of the best linear iVAE."""


LinearIVAEResult = Result[LinearIVAECell, LinearIVAEMeasurement]
Results = Sequence[LinearIVAEResult]


# data -----------------------------------------------------------------------------------------


def moments(cell: LinearIVAECell) -> tuple[Float[Tensor, "G n"], Float[Tensor, "G n n"]]:
    """Mean and covariance of x in every group."""
    axes = random_orthogonal(DATA.columns, randomness.generator(cell.seed, "axes"))
    variances = torch.tensor(DATA.variances, dtype=torch.float64) / DATA.precision
    shifts = torch.zeros_like(variances)
    if cell.prior_mean == "learned":
        shifts[:, 3] = torch.tensor(DATA.shifts, dtype=torch.float64)
    return shifts @ axes.T, axes @ torch.diag_embed(variances) @ axes.T


def exact_sample(
    mean: Float[Tensor, " n"], covariance: Float[Tensor, "n n"], samples: int, generator: torch.Generator
) -> Float[Tensor, "N n"]:
    """Normal samples, transformed so that their mean and covariance are exactly the given ones."""
    drawn = torch.randn(samples, len(mean), dtype=torch.float64, generator=generator)
    drawn -= drawn.mean(0)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(drawn.T @ drawn / samples), drawn.T, upper=False)
    return (torch.linalg.cholesky(covariance) @ white).T + mean


def best(cell: LinearIVAECell) -> LinearIVAE:
    """The optimum of the linear iVAE for the data of a cell."""
    return theory.linear_ivae(
        *moments(cell), precision=DATA.precision, latent_dim=DATA.latents, prior_mean=cell.prior_mean
    )


# measurements ---------------------------------------------------------------------------------


def conditional_prior(member: Member) -> tuple[Float[Tensor, "G d"], Float[Tensor, "G d"]]:
    """Mean and variance of the prior in every group."""
    groups = torch.eye(DATA.groups)
    mean, variance = member.prior_at(groups).mean_and_variance()
    shape = DATA.groups, DATA.latents
    return torch.as_tensor(mean).double().expand(shape), torch.as_tensor(variance).double().expand(shape)


def matched(columns: Float[Tensor, "n d"], axes: Float[Tensor, "n d"]) -> list[int]:
    """For every predicted axis the trained column that is closest to it in direction."""
    cosines = torch.nn.functional.normalize(axes, dim=0).T @ torch.nn.functional.normalize(columns, dim=0)
    return [int(k) for k in linear_sum_assignment(-cosines.abs().numpy())[1]]


# claims ---------------------------------------------------------------------------------------


def shortfall(result: LinearIVAEResult) -> float:
    """Nats below the optimum of the linear iVAE: of decoder and prior, or of the whole model where it is not linear."""
    measured = result.measured
    return measured.optimum - result.elbo if measured.shortfall is None else measured.shortfall


def _linear(results: Results) -> list[LinearIVAEResult]:
    return [r for r in results if r.cell.model != "network"]


def of_linear(value: Callable[[LinearIVAEMeasurement], float]) -> Callable[[Results, object], Sample]:
    """A value of every linear member; the two of one seed share their axes and are one unit."""
    return lambda results, _: Sample(
        [value(r.measured) for r in _linear(results)], [r.cell.seed for r in _linear(results)]
    )


def share_as_predicted(measured: LinearIVAEMeasurement) -> float:
    """Share of the latents whose kind is the predicted one."""
    pairs = list(zip(measured.kinds, measured.predicted_kinds, strict=True))
    return sum(found == predicted for found, predicted in pairs) / len(pairs)


def ratio_error(measured: LinearIVAEMeasurement) -> float:
    """The largest relative error of a variance ratio among those predicted to be below one."""
    pairs = zip(measured.ratios, measured.predicted_ratios, strict=True)
    return max(abs(found / predicted - 1) for found, predicted in pairs if predicted < 1)


# experiment -----------------------------------------------------------------------------------


class LinearIVAEExperiment(TrainedExperiment[TrainedSettings, LinearIVAECell, LinearIVAEMeasurement]):
    info = EXPERIMENTS["linear-ivae"]
    about = (
        "The paper trains iVAEs on images that their auxiliary input determines, and observes no mixed latents. The "
        "optimum of the linear iVAE says when they must appear: if the variance of x along a latent's direction, given "
        "the auxiliary input, is above the decoder's variance for some of its values and below for others. Here x has "
        "three groups; along two of its axes the variance within groups crosses the decoder's."
    )
    quick = TrainedSettings(
        seeds=7, samples=6_000, epochs=150, patience=150, learning_rate=5e-3, batch_size=128, decay="cosine"
    )
    laptop = TrainedSettings(
        seeds=10, samples=12_000, epochs=400, patience=400, learning_rate=5e-3, batch_size=128, decay="cosine"
    )
    paper = laptop
    cell_type = LinearIVAECell
    measured_type = LinearIVAEMeasurement
    claim_specs: ClaimSpecs[LinearIVAEResult, object] = (
        ClaimSpec(
            sentence="No trained linear iVAE has a higher exact ELBO than the closed form.",
            source="Found here, by the closed form of the linear iVAE",
            measure=lambda results, _: [shortfall(r) for r in _linear(results)],
            criterion=Bound("nats below the optimum", at_least(-1e-9), statistic="smallest", exact=True),
            kind=Statement.MATHEMATICAL,
        ),
        ClaimSpec(
            sentence="The posterior variances of trained linear iVAEs are those of the closed form, in every group.",
            source="Found here, by the closed form of the linear iVAE",
            measure=of_linear(ratio_error),
            criterion=Bound("largest relative error of a ratio below one", at_most(0.1), over="seeds"),
            requires=(members_converged(shortfall=shortfall),),
            robust_over=(0.03, 0.1, 0.3),
        ),
        ClaimSpec(
            sentence="Latents of trained linear iVAEs are active, passive and mixed as predicted.",
            source="Found here, by the closed form of the linear iVAE",
            measure=of_linear(share_as_predicted),
            criterion=Bound("share of latents of the predicted kind", at_least(1), over="seeds"),
            requires=(members_converged(shortfall=shortfall),),
        ),
        ClaimSpec(
            sentence="With hidden layers in the decoder the same latents are mixed.",
            source="Found here, by the closed form of the linear iVAE",
            measure=lambda results, _: [share_as_predicted(r.measured) for r in results if r.cell.model == "network"],
            criterion=Bound("share of latents of the predicted kind", at_least(1), over="seeds"),
            requires=(members_converged(shortfall=shortfall),),
        ),
    )

    def cells(self, settings: TrainedSettings) -> list[LinearIVAECell]:
        return [LinearIVAECell(model, seed) for model, seed in product(MODELS, range(settings.seeds))]

    def stack_key(self, cell: LinearIVAECell) -> str:
        return cell.model

    def model(self, cell: LinearIVAECell, settings: TrainedSettings) -> VAE:
        networks = MLPNetworks((64, 64), linear_decoder=cell.model != "network")
        auxiliary = AuxiliarySettings(DATA.groups, cell.prior_mean)
        return VAE(DATA.columns, DATA.latents, networks, auxiliary=auxiliary)

    def member(self, cell: LinearIVAECell, data_index: int, settings: TrainedSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=DATA.precision, data=data_index)

    def data(self, cell: LinearIVAECell, settings: TrainedSettings) -> FactorData:
        generator, groups = randomness.generator(cell.seed, "samples"), DATA.groups
        parts = {}
        for part, share in (("train", 0.7), ("validation", 0.2), ("test", 0.1)):
            each = max(int(settings.samples * share) // groups, 2 * DATA.columns)
            x = torch.cat([exact_sample(a, C, each, generator) for a, C in zip(*moments(cell), strict=True)])
            parts[part] = torch.cat([x, torch.eye(groups, dtype=x.dtype).repeat_interleave(each, 0)], dim=1)
        return FactorData(Split(**parts), parts["test"][:, DATA.columns :])

    def measure(
        self, cell: LinearIVAECell, member: Member, data: FactorData, settings: TrainedSettings
    ) -> LinearIVAEMeasurement:
        optimum, (prior_mean, prior_variance) = best(cell), conditional_prior(member)
        W = theory.jacobian(member.decode, torch.zeros(1, DATA.latents, dtype=torch.float64))[0]
        x, auxiliary = member.split_auxiliary(data.observations.test.float())
        _, variance = member.encode(x, auxiliary)
        group = data.test_factors.argmax(1)
        ratios = torch.stack([variance[group == g].double().mean(0) for g in range(DATA.groups)]) / prior_variance
        judged = regime.of_model(member, x, auxiliary=auxiliary, decoder=False)
        order = matched(W * prior_variance.amax(0).sqrt(), optimum.axes)
        missing = None
        if cell.model != "network":
            offset = member.decode(torch.zeros(1, DATA.latents, dtype=torch.float64))[0]
            reached = expected_elbo(W, offset, prior_mean, prior_variance, *moments(cell), precision=DATA.precision)
            missing = optimum.elbo - float(reached)
        return LinearIVAEMeasurement(
            kinds=tuple(judged.kind[k] for k in order),
            predicted_kinds=tuple(optimum.kind),
            passive_fraction=tuple(float(judged.passive_fraction[k]) for k in order),
            predicted_passive_fraction=tuple(optimum.passive_fraction.tolist()),
            ratios=tuple(ratios[:, order].flatten().tolist()),
            predicted_ratios=tuple(optimum.variance_ratio.flatten().tolist()),
            shortfall=missing,
            optimum=optimum.elbo,
        )

    def figures(self, results: Results, settings: TrainedSettings) -> list[ReportFigure]:
        trained = [model for model in MODELS if any(r.cell.model == model for r in results)]
        drawn, axes = figures.row_of_panels(len(trained))
        for axis, model in zip(axes, trained, strict=True):
            own = [r.measured for r in results if r.cell.model == model]
            for k, kind in enumerate(("active", "mixed", "passive")):
                points = [
                    (predicted, found)
                    for m in own
                    for index, (predicted, found) in enumerate(zip(m.predicted_ratios, m.ratios, strict=True))
                    if m.predicted_kinds[index % DATA.latents] == kind
                ]
                if points:
                    x, y = zip(*points, strict=True)
                    axis.scatter(x, y, s=18, alpha=0.6, color=figures.COLOURS[k], label=kind)
            axis.plot([0.02, 1.2], [0.02, 1.2], color="grey", linewidth=0.8, zorder=0)
            figures.format_axis(
                axis,
                title=MODELS[model],
                x="predicted variance / prior's",
                y="trained variance / prior's",
                legend=axis is axes[0],
            )
        caption = (
            "Posterior variance relative to the prior's, one dot per latent, group and seed: predicted by the closed "
            "form and trained. Mixed latents are narrow in some groups and equal to their prior in the others."
        )
        return [ReportFigure("linear_ivae", drawn, caption)]

    def tables(self, results: Results, settings: TrainedSettings) -> list[ReportTable]:
        rows: list[TableRow] = []
        for model, title in MODELS.items():
            own = [r.measured for r in results if r.cell.model == model]
            if own:
                rows.append(
                    {
                        "model": title,
                        "kinds as predicted": median([share_as_predicted(m) for m in own]),
                        "mixed latents": median([float(m.kinds.count("mixed")) for m in own]),
                        "predicted": float(own[0].predicted_kinds.count("mixed")),
                        "worst ratio error": median([ratio_error(m) for m in own]),
                        "ELBO below the optimum": median([shortfall(r) for r in results if r.cell.model == model]),
                        "optimum": own[0].optimum,
                    }
                )
        return [ReportTable("Medians over seeds; ELBOs in nats", rows)]


EXPERIMENT = LinearIVAEExperiment()
