"""VAE, β-VAE and β-TCVAE on images with known factors: the models that two experiments measure (Bhowal et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from vaescope.data.arrays import split
from vaescope.data.catalogue import find_dataset, official_file, render_dataset
from vaescope.data.files.official import load_official
from vaescope.models import VAE
from vaescope.objectives import BetaTC, Objective, beta_elbo
from vaescope.papers.trained import SyntheticData, TrainedExperiment, TrainedSettings
from vaescope.runs import Cell
from vaescope.training import MemberSpec

PAPER = "Bhowal et al. 2024"
OBJECTIVES = {"vae": "VAE", "beta-vae": "β-VAE", "beta-tcvae": "β-TCVAE"}
RENDERED = ("dsprites", "3dshapes")
TITLES = {"dsprites": "dSprites", "3dshapes": "3DShapes", "mpi3d": "MPI3D", "3dfaces": "3DFaces"}
OFFICIAL = " (official)"  # behind the name of a data set that was read from its own file


@dataclass(frozen=True)
class DisentanglingSettings(TrainedSettings):
    beta: float = 6.0
    latent_dim: int = 10
    hidden: tuple[int, ...] = (1200, 1200)
    """Of the MLP: for dSprites always, for all data where `network` says so."""
    network: str = "conv"
    """For images in colour."""
    size: int = 64
    """Pixels along a side of dSprites."""
    colour_size: int = 64
    points: int = 256
    """Test images at which a decoder is fitted locally."""
    draws: int = 1000


QUICK = DisentanglingSettings(
    seeds=3,
    samples=12_000,
    epochs=20,
    patience=20,
    learning_rate=2e-3,
    hidden=(128, 128),
    network="mlp",
    size=32,
    colour_size=16,
    points=12,
    draws=300,
)
FULL = DisentanglingSettings(seeds=5, samples=200_000, epochs=100, patience=10, learning_rate=1e-3)
CHANGED = (
    "The quick profile has small images (32 x 32, and 16 x 16 in colour), small MLPs for both data sets and about "
    "2,600 steps. β is the paper's although small images make the same β stronger, since losses sum over pixels."
)


def title(data: str) -> str:
    """A data set for people."""
    base = data.removesuffix(OFFICIAL)
    return TITLES[base] + data[len(base) :]


class DisentanglingExperiment(TrainedExperiment):
    """Cells are a data set, an objective and a seed; the objectives of one data set are trained on the same images."""

    profiles: ClassVar = {"quick": QUICK, "paper": FULL}

    def cells(self, settings: DisentanglingSettings) -> list[Cell]:
        """Rendered stand-ins always; the paper's profile also reads official files, where the user has them."""
        official = [name for name in TITLES if official_file(name)] if settings.samples == FULL.samples else []
        return [
            {"data": data, "objective": objective, "seed": seed}
            for data in (*RENDERED, *(f"{name}{OFFICIAL}" for name in official))
            for objective in OBJECTIVES
            for seed in range(settings.seeds)
        ]

    def stack_key(self, cell: Cell) -> Any:
        return cell["data"], cell["objective"] == "beta-tcvae"

    def data_key(self, cell: Cell) -> Any:
        return cell["data"]

    def spec(self, cell: Cell, data: int, settings: DisentanglingSettings) -> MemberSpec:
        return MemberSpec(cell["seed"], beta=1.0 if cell["objective"] == "vae" else settings.beta, data=data)

    def model(self, cell: Cell, settings: DisentanglingSettings) -> VAE:
        name = cell["data"].removesuffix(OFFICIAL)
        channels = 1 if name in ("dsprites", "3dfaces") else 3
        size = settings.size if name == "dsprites" else settings.colour_size
        if name == "dsprites" or settings.network == "mlp":
            return VAE.mlp(
                channels * size**2,
                settings.latent_dim,
                hidden=settings.hidden,
                activation="relu",
                likelihood="bernoulli",
            )
        architecture = "orthogonality-faces" if name == "3dfaces" else "orthogonality-shapes"
        return VAE.conv(
            (channels, size, size), latent_dim=settings.latent_dim, architecture=architecture, likelihood="bernoulli"
        )

    def data(self, cell: Cell, settings: DisentanglingSettings) -> SyntheticData:
        name = cell["data"].removesuffix(OFFICIAL)
        entry = find_dataset(name)
        if cell["data"] == name:
            size = settings.size if name == "dsprites" else settings.colour_size
            drawn = render_dataset(entry, rows=settings.samples, seed=0, size=size)
        else:
            file = official_file(name)
            assert file is not None
            assert entry.official is not None
            drawn = load_official(entry.official, file, rows=settings.samples, seed=0)
        assert drawn.factors is not None
        parts = split(drawn.x.float())
        return SyntheticData(parts, drawn.factors[-len(parts.test) :])

    def objective(self, cell: Cell, samples: int) -> Objective:
        return BetaTC(samples) if cell["objective"] == "beta-tcvae" else beta_elbo


def flat(values: Tensor) -> list[float]:
    """A tensor for a row of results."""
    return [float(v) for v in values.flatten()]
