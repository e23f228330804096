"""The linear VAE, where everything has a closed form (Reizinger et al. 2022, appendix 10.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from matplotlib.figure import Figure
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from vaescope import randomness, theory
from vaescope.data.arrays import split
from vaescope.data.invertible import random_orthogonal
from vaescope.models import VAE, Member
from vaescope.papers.claims import Claim, claim_over, slope
from vaescope.papers.columns import column
from vaescope.papers.trained import SyntheticData, TrainedExperiment, TrainedSettings
from vaescope.report import figures
from vaescope.runs import Cell
from vaescope.runs.files import Row

OBSERVED, LATENT = 6, 3
AXES = (3.0, 1.5, 0.7)  # distinct standard deviations along the principal axes
LIMIT_PRECISIONS = tuple(10.0**k for k in range(-2, 9))


@dataclass(frozen=True)
class LinearSettings(TrainedSettings):
    precisions: tuple[float, ...] = (1.0, 1e1, 1e2)


class LinearVAE(TrainedExperiment):
    name = "linear-vae"
    title = "Linear VAEs: the gap in closed form, and the principal axes it singles out"
    source = "Reizinger et al. 2022, appendix 10.1, Prop. 8 and Corollary 1"
    about = (
        "For a linear decoder W the optimal posterior, the ELBO, the likelihood and the gap are known exactly. The "
        "likelihood does not care about a rotation of the latents; the gap does, and vanishes only for orthogonal "
        "columns. So training the ELBO finds the principal axes themselves. The paper's Eq. 55 drops a factor ½, "
        "which is restored here."
    )
    profiles: ClassVar = {
        "quick": LinearSettings(seeds=5, samples=6_000, epochs=400, patience=60, learning_rate=1e-2),
        "paper": LinearSettings(seeds=20, samples=60_000, epochs=100, patience=30, learning_rate=1e-2),
    }

    def cells(self, settings: LinearSettings) -> list[Cell]:
        return [{"precision": p, "seed": s} for p in settings.precisions for s in range(settings.seeds)]

    def model(self, cell: Cell, settings: LinearSettings) -> VAE:
        return VAE.mlp(OBSERVED, LATENT, hidden=())

    def data_key(self, cell: Cell) -> tuple[int, float]:
        return cell["seed"], cell["precision"]

    def data(self, cell: Cell, settings: LinearSettings) -> SyntheticData:
        generator = randomness.generator(cell["seed"], "sources")
        z = torch.randn(settings.samples, LATENT, dtype=torch.float64, generator=generator)
        noise = torch.randn(settings.samples, OBSERVED, dtype=torch.float64, generator=generator)
        turned = z @ random_orthogonal(LATENT, generator).T  # the true sources are not the principal axes
        x = turned @ _axes(cell["seed"]).T + noise / math.sqrt(cell["precision"])
        parts = split(x)
        return SyntheticData(parts, z[-len(parts.test) :])

    def measure(self, cell: Cell, member: Member, data: SyntheticData, settings: LinearSettings) -> Row:
        x, precision = data.observations.test, cell["precision"]
        W = theory.jacobian(member.decode, torch.zeros(1, LATENT, dtype=torch.float64))[0]
        optimum = _axes(cell["seed"])
        start = torch.randn(OBSERVED, LATENT, dtype=torch.float64, generator=randomness.generator(cell["seed"], "W"))
        x_centred = x - member.decode(torch.zeros(1, LATENT, dtype=torch.float64))
        return {
            "trained_gap": float(theory.linear.gap(W, precision)),
            "initial_gap": float(theory.linear.gap(start, precision)),
            "axes_cosine": _axes_cosine(W, optimum),
            "likelihood_loss": float(
                (
                    theory.linear.log_likelihood(x, optimum, precision)
                    - theory.linear.log_likelihood(x_centred, W, precision)
                ).mean()
            ),
            "closed_form_mismatch": _mismatch(start, x[:20], precision),
            "corollary_gap": float(theory.linear.gap(optimum, precision)),
            "limit_error": [float(theory.linear.limit(start) - theory.linear.gap(start, p)) for p in LIMIT_PRECISIONS],
            "limit_gap": [float(theory.linear.gap(start, p)) for p in LIMIT_PRECISIONS],
            "limit": float(theory.linear.limit(start)),
        }

    def claims(self, rows: Sequence[Row], settings: LinearSettings) -> list[Claim]:
        done = [row for row in rows if row["status"] == "finished"]
        return [_closed_forms(done), _corollary(done), _limit(done), _trained_gap(done), _principal_axes(done)]

    def figures(self, rows: Sequence[Row], settings: LinearSettings) -> dict[str, tuple[Figure, str]]:
        done = [row for row in rows if row["status"] == "finished"]
        figure, axes = figures.row_of_panels(3)
        shown = [row for row in done if row["precision"] == settings.precisions[0]][:4]
        for index, row in enumerate(shown):
            axes[0].plot(LIMIT_PRECISIONS, row["limit_gap"], color=figures.COLOURS[index])
            axes[0].axhline(row["limit"], color=figures.COLOURS[index], linestyle=":", linewidth=1.2)
        title = "The gap tends to c_IMA (dotted)"
        figures.finish(axes[0], title=title, x="γ²", y="gap in nats", log="x", legend=False)
        for name, label in (("initial_gap", "random W"), ("trained_gap", "trained W")):
            values = [column(done, name, precision=p) for p in settings.precisions]
            figures.spread(axes[1], settings.precisions, values, label=label)
        figures.finish(axes[1], title="Training closes the gap", x="γ²", y="gap in nats")
        cosines = [[1 - v for v in column(done, "axes_cosine", precision=p)] for p in settings.precisions]
        figures.spread(axes[2], settings.precisions, cosines, label="trained")
        figures.finish(axes[2], title="Principal axes are found", x="γ²", y="1 − |cos| to the true axis (worst)")
        caption = (
            "Left: exact gaps of four random decoders as the precision grows, with their limits. Middle: the "
            "closed-form gap at the trained decoder. Right: the worst angle between trained columns and principal axes."
        )
        return {"linear_vae": (figure, caption)}


def _axes(seed: int) -> Tensor:
    """The true principal axes: orthogonal columns of distinct length."""
    frame = random_orthogonal(OBSERVED, randomness.generator(seed, "axes"))
    return frame[:, :LATENT] * torch.tensor(AXES, dtype=torch.float64)


def _axes_cosine(W: Tensor, optimum: Tensor) -> float:
    """The worst |cos| between trained columns and axes under the best matching."""
    cosines = torch.nn.functional.normalize(W, dim=0).T @ torch.nn.functional.normalize(optimum, dim=0)
    rows, columns = linear_sum_assignment(-cosines.abs().numpy())
    return float(cosines.abs()[rows, columns].min())


def _mismatch(W: Tensor, x: Tensor, precision: float) -> float:
    """Largest relative difference of projection and quadrature from the closed forms."""

    def decoder(z: Tensor) -> Tensor:
        return z @ W.T

    found = theory.project(decoder, x, precision=precision, latent_dim=LATENT)
    likelihood = theory.log_marginal(decoder, x, precision=precision, latent_dim=LATENT).value
    pairs = (
        (found.elbo, theory.linear.elbo(x, W, precision)),
        (found.variance, theory.linear.optimal_variance(W, precision)),
        (likelihood, theory.linear.log_likelihood(x, W, precision)),
    )
    return max(float((a / b - 1).abs().max()) for a, b in pairs)


def _closed_forms(rows: Sequence[Row]) -> Claim:
    values = column(rows, "closed_form_mismatch")
    return claim_over(
        values,
        pick=max,
        holds=lambda v: v <= 1e-8,
        sentence="Projection and quadrature agree with the closed forms of ELBO*, D* and log p.",
        source="Reizinger et al. 2022, Prop. 8 with the missing ½ restored",
        demand="relative difference at most 1e-8",
    )


def _corollary(rows: Sequence[Row]) -> Claim:
    values = column(rows, "corollary_gap")
    return claim_over(
        values,
        pick=max,
        holds=lambda v: v <= 1e-12,
        sentence="For column-orthogonal W the ELBO equals the log-likelihood at every γ².",
        source="Reizinger et al. 2022, Corollary 1",
        demand="gap at most 1e-12",
    )


def _limit(rows: Sequence[Row]) -> Claim:
    large = [i for i, p in enumerate(LIMIT_PRECISIONS) if p >= 1e3]
    slopes = [slope([LIMIT_PRECISIONS[i] for i in large], [r["limit_error"][i] for i in large]) for r in rows]
    return claim_over(
        slopes,
        holds=lambda v: abs(v + 1) <= 0.05,
        sentence="The gap tends to the IMA contrast of W like 1/γ².",
        source="Reizinger et al. 2022, appendix 10.1",
        demand="median slope within -1 ± 0.05 (γ² from 1e3)",
    )


def _trained_gap(rows: Sequence[Row]) -> Claim:
    values = column(rows, "trained_gap")
    return claim_over(
        values,
        holds=lambda v: v <= 0.01,
        sentence="Training the ELBO closes the gap: the trained decoder has orthogonal columns.",
        source="Reizinger et al. 2022, appendix 10.1; Lucas et al. 2019",
        demand="closed-form gap at the trained W at most 0.01 nats in the median",
    )


def _principal_axes(rows: Sequence[Row]) -> Claim:
    values = column(rows, "axes_cosine")
    return claim_over(
        values,
        holds=lambda v: v >= 0.99,
        sentence="The trained columns are the principal axes, up to sign and order.",
        source="Lucas et al. 2019; Reizinger et al. 2022, appendix 10.1",
        demand="worst |cos| at least 0.99 in the median",
    )


EXPERIMENT = LinearVAE()
