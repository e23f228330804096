"""β and the decoder's precision are one knob (Reizinger et al. 2022, appendix 6.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure

from vaescope import randomness
from vaescope.data.arrays import split
from vaescope.data.mixings import OrthogonalMLP
from vaescope.distributions import Normal
from vaescope.models import VAE, Member
from vaescope.objectives import beta_elbo
from vaescope.papers.claims import Claim, claim_over
from vaescope.papers.columns import column
from vaescope.papers.trained import SyntheticData, TrainedExperiment, TrainedSettings
from vaescope.report import figures
from vaescope.runs import Cell
from vaescope.runs.files import Row
from vaescope.training import MemberSpec

DIM = 3


@dataclass(frozen=True)
class BetaPrecisionSettings(TrainedSettings):
    """Every β is trained twice: as a β-VAE at γ₀², and as a VAE at γ₀²/β."""

    betas: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0)
    precision: float = 1e3


class BetaPrecision(TrainedExperiment):
    name = "beta-precision"
    title = "A β-VAE is a VAE with another decoder precision"
    source = "Reizinger et al. 2022, appendix 6.3"
    about = (
        "The β-VAE with precision γ₀² has the gradients of the plain ELBO with precision γ₀²/β, times β. So every "
        "statement about γ² is one about β. Here both are trained from the same seed on the same batches. Adam "
        "divides by the gradient's size, so even the paths of the weights agree, up to rounding and Adam's ε."
    )
    profiles: ClassVar = {
        "quick": BetaPrecisionSettings(seeds=3, samples=8_000, epochs=30, patience=30),
        "paper": BetaPrecisionSettings(seeds=10, samples=60_000, epochs=100, patience=100),
    }

    def cells(self, settings: BetaPrecisionSettings) -> list[Cell]:
        return [
            {"role": role, "beta": beta, "seed": seed}
            for role in ("beta-VAE", "VAE")
            for beta in settings.betas
            for seed in range(settings.seeds)
        ]

    def model(self, cell: Cell, settings: BetaPrecisionSettings) -> VAE:
        return VAE.mlp(DIM, DIM, hidden=(30, 30))

    def spec(self, cell: Cell, data: int, settings: Any) -> MemberSpec:
        precision = settings.precision
        if cell["role"] == "VAE":
            return MemberSpec(cell["seed"], precision=precision / cell["beta"], data=data)
        return MemberSpec(cell["seed"], precision=precision, beta=cell["beta"], data=data)

    def data(self, cell: Cell, settings: BetaPrecisionSettings) -> SyntheticData:
        generator = randomness.generator(cell["seed"], "sources")
        sources = Normal().sample(settings.samples, DIM, generator=generator)
        parts = split(OrthogonalMLP(DIM, seed=cell["seed"])(sources))
        return SyntheticData(parts, sources[-len(parts.test) :])

    def measure(self, cell: Cell, member: Member, data: SyntheticData, settings: BetaPrecisionSettings) -> Row:
        x = data.observations.test
        mean, variance = member.encode(x)
        return {
            "posterior_variance": float(variance.log().mean().exp()),
            "reconstruction_mse": float((x - member.decode(mean)).square().mean()),
            "gradient_mismatch": _gradient_mismatch(member, x[:256], cell["beta"], settings.precision),
        }

    def claims(self, rows: Sequence[Row], settings: BetaPrecisionSettings) -> list[Claim]:
        finished = [row for row in rows if row["status"] == "finished"]
        return [_gradients(finished), _optima(finished, settings)]

    def figures(self, rows: Sequence[Row], settings: BetaPrecisionSettings) -> dict[str, tuple[Figure, str]]:
        figure, axes = figures.row_of_panels(2, width=5.2)
        for axis, name, label in (
            (axes[0], "posterior_variance", "posterior variance σ²"),
            (axes[1], "reconstruction_mse", "mean squared x − f(μ(x))"),
        ):
            for role, dashed in (("beta-VAE", False), ("VAE", True)):
                values = [column(rows, name, role=role, beta=beta) for beta in settings.betas]
                text = "β-VAE at (β, γ₀²)" if role == "beta-VAE" else "VAE at γ₀²/β"
                figures.spread(axis, settings.betas, values, label=text, dashed=dashed)
            figures.finish(axis, title=label, x=f"β (γ₀² = {settings.precision:g})", y=label)
        caption = "Both lines lie on each other: medians and ranges over seeds of members trained in the two ways."
        return {"beta_precision": (figure, caption)}


def _gradient_mismatch(member: Member, x: torch.Tensor, beta: float, precision: float) -> float:
    """Largest difference of ∇(β, γ₀²) and β ∇(1, γ₀²/β), relative to the gradient's norm, in float64."""
    params = {name: value.double() for name, value in member.params.items()}
    noise = torch.randn(x.shape[0], DIM, generator=randomness.generator(0, "gradients"), dtype=torch.float64)

    def gradient(weight: float, gamma2: float) -> torch.Tensor:
        def loss(values: dict[str, torch.Tensor]) -> torch.Tensor:
            terms = member.model.terms(
                values, x[None].double(), noise[None], torch.tensor([gamma2], dtype=torch.float64)
            )
            return beta_elbo(terms, torch.tensor([weight], dtype=torch.float64)).sum()

        return torch.cat([g.flatten() for g in torch.func.grad(loss)(params).values()])

    left, right = gradient(beta, precision), beta * gradient(1.0, precision / beta)
    return float((left - right).abs().max() / left.norm())


def _gradients(rows: Sequence[Row]) -> Claim:
    values = column(rows, "gradient_mismatch")
    return claim_over(
        values,
        pick=max,
        holds=lambda v: v <= 1e-10,
        sentence="The β-VAE at γ₀² has β times the gradients of the VAE at γ₀²/β.",
        source="Reizinger et al. 2022, appendix 6.3",
        demand="relative difference at most 1e-10 in every member (float64)",
    )


def _optima(rows: Sequence[Row], settings: BetaPrecisionSettings) -> Claim:
    differences = []
    for beta in settings.betas:
        for seed in range(settings.seeds):
            pair = [column(rows, "posterior_variance", role=r, beta=beta, seed=seed) for r in ("beta-VAE", "VAE")]
            if all(pair):
                differences.append(abs(float(np.log(pair[0][0] / pair[1][0]))))
    return claim_over(
        differences,
        pick=max,
        holds=lambda v: v <= 0.05,
        sentence="From one seed, both reach the same optimum.",
        source="Reizinger et al. 2022, appendix 6.3",
        demand="posterior variances differ by at most 5 % in every pair",
        note="The largest |log ratio|, with the range over pairs.",
    )


EXPERIMENT = BetaPrecision()
