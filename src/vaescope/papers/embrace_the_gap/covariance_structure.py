"""Two conjectures of Reizinger et al. 2022, §6: what the posterior's family asks of the decoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure

from vaescope import metrics, theory
from vaescope.data.invertible import Affine
from vaescope.data.mixings import Compose, Mixing, Moebius, OrthogonalMLP
from vaescope.models import VAE, Member
from vaescope.papers.claims import Claim, claim_over
from vaescope.papers.columns import column
from vaescope.papers.embrace_the_gap.moebius import BOX, DIM, mixed_uniform
from vaescope.papers.trained import SyntheticData, TrainedExperiment, TrainedSettings
from vaescope.report import figures
from vaescope.runs import Cell
from vaescope.runs.files import Row
from vaescope.training import MemberSpec

STRETCH = (1.0, 2.0, 4.0)
FAMILIES = ("isotropic", "diagonal", "full")
MIXINGS = {"moebius": "conformal (Möbius)", "stretched": "orthogonal, not conformal"}
NAMES = {"conformal_contrast": "conformal contrast", "ima_contrast": "c_IMA", "mcc_mean": "MCC"}
AGREE = 0.75  # share of seeds that must agree with a claim


def mixing(name: str, seed: int) -> Mixing:
    """Both are in the IMA class; only the Möbius transform is conformal."""
    if name == "moebius":
        return Moebius(DIM, seed=seed, low=BOX.low, high=BOX.high)
    stretch = Mixing(DIM, [Affine(torch.diag(torch.tensor(STRETCH, dtype=torch.float64)))])
    return Compose(stretch, OrthogonalMLP(DIM, layers=1, seed=seed, activation="sigmoid", activate_input=True))


@dataclass(frozen=True)
class CovarianceSettings(TrainedSettings):
    precision: float = 1e4


class CovarianceStructure(TrainedExperiment):
    name = "covariance-structure"
    title = "What the posterior's covariance family asks of the decoder"
    source = "conjectures in Reizinger et al. 2022, §6; no published values"
    about = (
        "A diagonal posterior asks for orthogonal Jacobian columns, because its near-deterministic gap is c_IMA. By "
        "the same argument an isotropic posterior's gap is the conformal contrast (orthogonal columns of one length), "
        "and a full-covariance posterior has no gap and so asks for nothing. VAEs with each family are trained on data "
        "from a conformal mixing and from one that is orthogonal but stretches its three latents by 1, 2 and 4. What "
        "was found is stated either way."
    )
    profiles: ClassVar = {
        "quick": CovarianceSettings(seeds=4, samples=12_000, epochs=200, patience=60, learning_rate=2e-3),
        "paper": CovarianceSettings(seeds=20, samples=60_000, epochs=100, patience=30),
    }

    def cells(self, settings: CovarianceSettings) -> list[Cell]:
        return [
            {"posterior": posterior, "mixing": name, "seed": seed}
            for posterior in FAMILIES
            for name in MIXINGS
            for seed in range(settings.seeds)
        ]

    def stack_key(self, cell: Cell) -> str:
        return str(cell["posterior"])

    def data_key(self, cell: Cell) -> tuple[str, int]:
        return cell["mixing"], cell["seed"]

    def spec(self, cell: Cell, data: int, settings: Any) -> MemberSpec:
        return MemberSpec(cell["seed"], precision=settings.precision, data=data)

    def model(self, cell: Cell, settings: CovarianceSettings) -> VAE:
        return VAE.mlp(DIM, DIM, hidden=(30, 30), prior=BOX, posterior=cell["posterior"])

    def data(self, cell: Cell, settings: CovarianceSettings) -> SyntheticData:
        return mixed_uniform(mixing(cell["mixing"], cell["seed"]), seed=cell["seed"], samples=settings.samples)

    def measure(self, cell: Cell, member: Member, data: SyntheticData, settings: CovarianceSettings) -> Row:
        x = data.observations.test
        mean, _ = member.encode(x)
        truth = mixing(cell["mixing"], cell["seed"])
        return {
            "conformal_contrast": float(theory.conformal_contrast(member.decode, mean).mean()),
            "ima_contrast": float(theory.ima_contrast(member.decode, mean).mean()),
            "true_conformal_contrast": float(theory.conformal_contrast(truth, data.test_sources).mean()),
            "reconstruction_mse": float((x - member.decode(mean)).square().mean()),
            "mcc_mean": metrics.mcc(mean, data.test_sources).score,
            "r2": metrics.linear_r2(mean, data.test_sources).score,
        }

    def claims(self, rows: Sequence[Row], settings: CovarianceSettings) -> list[Claim]:
        done = [row for row in rows if row["status"] == "finished"]
        return [
            _paired(
                done,
                ("moebius", "stretched"),
                "conformal_contrast",
                smaller="isotropic",
                larger="diagonal",
                sentence="An isotropic posterior makes the decoder more nearly conformal than a diagonal one.",
            ),
            _paired(
                done,
                ("moebius", "stretched"),
                "ima_contrast",
                smaller="diagonal",
                larger="full",
                sentence="A full-covariance posterior removes the pressure towards orthogonal columns.",
            ),
            _paired(
                done,
                ("stretched",),
                "mcc_mean",
                smaller="full",
                larger="diagonal",
                least=0.01,
                sentence="Without that pressure the sources of the stretched mixing are recovered less well.",
            ),
            _paired(
                done,
                ("stretched",),
                "mcc_mean",
                smaller="isotropic",
                larger="diagonal",
                least=0.01,
                sentence="Where the truth is not conformal, an isotropic posterior hurts the recovery of the sources.",
            ),
            _paired(
                done,
                ("moebius",),
                "mcc_mean",
                smaller="diagonal",
                larger="isotropic",
                least=0.0,
                sentence="On conformal data an isotropic posterior recovers the sources at least as well.",
            ),
        ]

    def figures(self, rows: Sequence[Row], settings: CovarianceSettings) -> dict[str, tuple[Figure, str]]:
        panels = (
            ("conformal_contrast", "Conformal contrast", "nats", "y"),
            ("ima_contrast", "IMA contrast", "nats", "y"),
            ("mcc_mean", "Recovery of the sources", "MCC of mean latents", ""),
        )
        figure, axes = figures.row_of_panels(3)
        for axis, (name, title, unit, log) in zip(axes, panels, strict=True):
            for index, (key, label) in enumerate(MIXINGS.items()):
                values = [column(rows, name, posterior=family, mixing=key) for family in FAMILIES]
                figures.strips(axis, FAMILIES, values, label=label, offset=0.16 * (2 * index - 1), index=index)
            figures.finish(axis, title=title, x="posterior family", y=unit, log=log, legend=False)
        figures.shared_legend(figure, axes[0])
        caption = "Every dot is a seed, the bar its median. Both mixings are in the IMA class."
        return {"covariance_structure": (figure, caption)}


def _paired(
    rows: Sequence[Row],
    mixings: Sequence[str],
    name: str,
    *,
    smaller: str,
    larger: str,
    sentence: str,
    least: float = 0.001,
) -> Claim:
    """Compare two families seed by seed on the same data."""
    differences = _differences(rows, mixings, name, smaller=smaller, larger=larger)
    share = float(np.mean([d > 0 for d in differences])) if differences else 0.0
    return claim_over(
        differences,
        holds=lambda v: share >= AGREE and v >= least,
        sentence=sentence,
        source="Reizinger et al. 2022, §6 (conjecture)",
        demand=(
            f"{NAMES[name]} larger with {larger} than with {smaller} in {AGREE:.0%} of pairs, "
            f"by {least:g} or more in the median"
        ),
        note=f"The median difference over {len(differences)} pairs; {share:.0%} of them agree.",
    )


def _differences(rows: Sequence[Row], mixings: Sequence[str], name: str, *, smaller: str, larger: str) -> list[float]:
    """Value with `larger` less value with `smaller`, for every mixing and seed."""
    differences = []
    for key in mixings:
        for seed in sorted({row["seed"] for row in rows}):
            pair = [column(rows, name, posterior=family, mixing=key, seed=seed) for family in (larger, smaller)]
            if all(pair):
                differences.append(pair[0][0] - pair[1][0])
    return differences


EXPERIMENT = CovarianceStructure()
