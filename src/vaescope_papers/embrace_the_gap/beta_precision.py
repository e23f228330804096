"""A β-VAE is a VAE with another decoder precision (Reizinger et al. 2022, appendix 6.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vaescope.core import randomness
from vaescope.data.mixings import OrthogonalMLP
from vaescope.distributions import Normal
from vaescope.models import VAE, Member
from vaescope.objectives import beta_elbo
from vaescope.report import figures
from vaescope.training import MemberSpec
from vaescope_papers.claims import ClaimSpec, ClaimSpecs, Statement, of_members
from vaescope_papers.criteria import Bound, at_most
from vaescope_papers.embrace_the_gap import EXPERIMENTS
from vaescope_papers.embrace_the_gap.shared import DIM, mixed_sources
from vaescope_papers.experiment import ReportFigure
from vaescope_papers.results import Result, paired_differences
from vaescope_papers.trained import FactorData, TrainedExperiment, TrainedSettings

ROLES = {"beta-VAE": "β-VAE at (β, γ₀²)", "VAE": "VAE at γ₀²/β"}


@dataclass(frozen=True)
class BetaPrecisionSettings(TrainedSettings):
    """Every β is trained twice: as a β-VAE at γ₀², and as a VAE at γ₀²/β."""

    betas: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0)
    precision: float = 1e3
    """γ₀²."""


@dataclass(frozen=True)
class BetaCell:
    role: str
    """`beta-VAE` or `VAE`."""
    beta: float
    seed: int


@dataclass(frozen=True)
class BetaPrecisionMeasurement:
    """What is measured of one member."""

    posterior_variance: float
    """Geometric mean over samples and latents."""
    reconstruction_mse: float
    gradient_mismatch: float
    """Relative difference of the gradients of both losses at the trained weights."""


BetaResult = Result[BetaCell, BetaPrecisionMeasurement]
Results = Sequence[BetaResult]


def _gradient_mismatch(member: Member, x: Tensor, beta: float, precision: float) -> float:
    """Largest difference of ∇(β, γ₀²) and β ∇(1, γ₀²/β), relative to the norm of the gradient, in float64."""
    params = {name: value.double() for name, value in member.params.items()}
    noise = torch.randn(x.shape[0], DIM, generator=randomness.generator(0, "gradients"), dtype=torch.float64)

    def gradient(weight: float, gamma2: float) -> Tensor:
        def loss(values: dict[str, Tensor]) -> Tensor:
            terms = member.model.terms(
                values, x[None].double(), noise[None], torch.tensor([gamma2], dtype=torch.float64)
            )
            return beta_elbo(terms, torch.tensor([weight], dtype=torch.float64)).sum()

        return torch.cat([g.flatten() for g in torch.func.grad(loss)(params).values()])

    left, right = gradient(beta, precision), beta * gradient(1.0, precision / beta)
    return float((left - right).abs().max() / left.norm())


def _variance_differences(results: Results, _: object) -> list[float]:
    """|log ratio| of the posterior variances of both members of every pair."""
    first, second = ([r for r in results if r.cell.role == role] for role in ROLES)
    found = paired_differences(first, second, lambda m: math.log(m.posterior_variance), lambda c: (c.beta, c.seed))
    return [abs(difference) for difference in found]


class BetaPrecision(TrainedExperiment[BetaPrecisionSettings, BetaCell, BetaPrecisionMeasurement]):
    info = EXPERIMENTS["beta-precision"]
    about = (
        "The gradient of a β-VAE with precision γ₀² is β times the gradient of a plain VAE with precision γ₀²/β. Every "
        "statement about γ² is therefore also one about β. Both are trained here, from the same seed and on the same "
        "batches. Adam divides by the size of the gradient, so the weights follow the same path, up to rounding and "
        "Adam's ε."
    )
    quick = BetaPrecisionSettings(seeds=3, samples=8_000, epochs=30, patience=30)
    laptop = BetaPrecisionSettings(seeds=5, samples=20_000, epochs=60, patience=60, learning_rate=3e-3, decay="cosine")
    paper = BetaPrecisionSettings(seeds=10, samples=60_000, epochs=100, patience=100)
    cell_type = BetaCell
    measured_type = BetaPrecisionMeasurement
    claim_specs: ClaimSpecs[BetaResult, object] = (
        ClaimSpec(
            sentence="The gradient of the β-VAE at γ₀² is β times that of the VAE at γ₀²/β.",
            source=EXPERIMENTS["beta-precision"].source,
            measure=of_members(lambda m: m.gradient_mismatch),
            criterion=Bound("relative difference in float64", at_most(1e-10), statistic="largest", exact=True),
            kind=Statement.MATHEMATICAL,
        ),
        ClaimSpec(
            sentence="Trained from the same seed on the same batches, both end with the same posterior variances.",
            source=EXPERIMENTS["beta-precision"].source,
            measure=_variance_differences,
            criterion=Bound(
                "|log ratio| of posterior variances", at_most(0.05), statistic="largest", over="pairs", exact=True
            ),
            kind=Statement.MATHEMATICAL,
            note="0.05 is a difference of 5 %.",
            robust_over=(0.001, 0.01, 0.05),
        ),
    )

    def cells(self, settings: BetaPrecisionSettings) -> list[BetaCell]:
        return [
            BetaCell(role, beta, seed) for role in ROLES for beta in settings.betas for seed in range(settings.seeds)
        ]

    def model(self, cell: BetaCell, settings: BetaPrecisionSettings) -> VAE:
        return VAE.mlp(DIM, DIM, hidden=(30, 30))

    def member(self, cell: BetaCell, data_index: int, settings: BetaPrecisionSettings) -> MemberSpec:
        if cell.role == "VAE":
            return MemberSpec(cell.seed, precision=settings.precision / cell.beta, data=data_index)
        return MemberSpec(cell.seed, precision=settings.precision, beta=cell.beta, data=data_index)

    def data(self, cell: BetaCell, settings: BetaPrecisionSettings) -> FactorData:
        return mixed_sources(OrthogonalMLP(DIM, seed=cell.seed), Normal(), samples=settings.samples, seed=cell.seed)

    def measure(
        self, cell: BetaCell, member: Member, data: FactorData, settings: BetaPrecisionSettings
    ) -> BetaPrecisionMeasurement:
        x = data.observations.test
        mean, variance = member.encode(x)
        return BetaPrecisionMeasurement(
            posterior_variance=float(variance.log().mean().exp()),
            reconstruction_mse=float((x - member.decode(mean)).square().mean()),
            gradient_mismatch=_gradient_mismatch(member, x[:256], cell.beta, settings.precision),
        )

    def figures(self, results: Results, settings: BetaPrecisionSettings) -> list[ReportFigure]:
        panels: tuple[tuple[str, Callable[[BetaPrecisionMeasurement], float]], ...] = (
            ("posterior variance σ²", lambda m: m.posterior_variance),
            ("mean squared x − f(μ(x))", lambda m: m.reconstruction_mse),
        )
        figure, axes = figures.row_of_panels(len(panels), width=5.2)
        for axis, (title, value) in zip(axes, panels, strict=True):
            for role, label in ROLES.items():
                own = [r for r in results if r.cell.role == role]
                values = [[value(r.measured) for r in own if r.cell.beta == beta] for beta in settings.betas]
                figures.plot_median_and_range(axis, settings.betas, values, label=label, dashed=role == "VAE")
            figures.format_axis(axis, title=title, x=f"β (γ₀² = {settings.precision:g})", y=title)
        caption = "The two lines coincide. Lines are medians over seeds, bands the range over seeds."
        return [ReportFigure("beta_precision", figure, caption)]


EXPERIMENT = BetaPrecision()
