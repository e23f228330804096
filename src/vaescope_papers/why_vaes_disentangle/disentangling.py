"""VAE, β-VAE and β-TCVAE on images with known factors: the members of two experiments (Bhowal et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple, TypeVar

from vaescope import metrics
from vaescope.core.errors import RunError
from vaescope.data import Dataset
from vaescope.data.catalogue import find_dataset, official_file, render_dataset
from vaescope.data.dataset import split
from vaescope.data.files.official import load_official
from vaescope.models import VAE, Member
from vaescope.objectives import BetaTC, Objective, beta_elbo
from vaescope.objectives.weighted import WeightRise, balanced
from vaescope.training import MemberSpec
from vaescope.training.loop import EpochMetrics
from vaescope_papers.results import Result, grouped
from vaescope_papers.trained import FactorData, TrainedExperiment, TrainedSettings

PAPER = "Bhowal et al. 2024"
OBJECTIVES = {"vae": "VAE", "beta-vae": "β-VAE", "beta-tcvae": "β-TCVAE"}
TITLES = {"dsprites": "dSprites", "3dshapes": "3DShapes", "mpi3d": "MPI3D", "3dfaces": "3DFaces"}
RENDERED = ("dsprites", "3dshapes")
GREY = ("dsprites", "3dfaces")  # one channel; the others have three
PUBLISHED_SIZE = 64
SQUARED_ERROR_PRECISION = 2.0  # with this γ², -log p(x|z) is ‖x - f(z)‖² and a constant: Eq. 5
M = TypeVar("M")
T = TypeVar("T")


@dataclass(frozen=True)
class DisentanglingSettings(TrainedSettings):
    """The paper profile has the published networks and image sizes."""

    beta: float = 6.0
    """Of β-VAE and β-TCVAE."""
    latent_dim: int = 10
    hidden: tuple[int, ...] = (1200, 1200)
    """Hidden units of the MLP."""
    network: str = "published"
    """`published`: an MLP for dSprites and convolutions for other data, as in Tab. 3; or an architecture for all."""
    size: int = PUBLISHED_SIZE
    """Pixels along a side of dSprites images."""
    colour_size: int = PUBLISHED_SIZE
    """Pixels along a side of other images."""
    balanced_size: int = PUBLISHED_SIZE
    """Log-likelihoods count as much against the KL as at this size, because they are weighted by (this / size)²."""
    weight_start: float = 1.0
    """Fraction of that weight at the beginning; below 1, posteriors start wide."""
    weight_hold: int = 0
    """Steps for which the weight stays at its start."""
    weight_warmup: int = 0
    """Steps over which the weight then rises geometrically."""
    points: int = 256
    """Test images at which a decoder is fitted locally."""
    draws: int = 1000
    """Of the posterior noise, for every local fit."""
    squared_error: tuple[str, ...] = ()
    """Rendered data sets on which models are trained with squared errors too (Eq. 5)."""
    dsprites_epochs: int | None = None
    """Epochs on rendered dSprites, where the MIG settles later; None for as many as elsewhere."""
    official_files: bool = False
    """Whether to use official files too, if VAESCOPE_DATA names a folder that contains them."""


QUICK = DisentanglingSettings(
    seeds=1,
    samples=10_000,
    epochs=12,
    patience=12,
    learning_rate=1e-3,
    decay="cosine",
    network="regime",
    size=32,
    colour_size=32,
    points=12,
    draws=300,
    weight_start=0.125,
    weight_hold=400,
    weight_warmup=400,
)
LAPTOP = replace(
    QUICK,
    seeds=10,
    dsprites_epochs=25,
    samples=26_000,
    epochs=15,
    patience=15,
    points=16,
    weight_hold=1000,
    weight_warmup=1000,
    squared_error=("dsprites",),
)
FULL = DisentanglingSettings(
    seeds=5,
    samples=200_000,
    epochs=100,
    patience=10,
    learning_rate=1e-3,
    squared_error=RENDERED,
    official_files=True,
)
SMALLER_CHANGES = (
    "The quick and laptop profiles have images of 32 x 32 pixels, the convolutions of Bonheme & Grzes 2023 for both "
    "data sets, and about 1,500 or 4,900 steps with a decaying learning rate (8,100 for dSprites at laptop). Losses "
    "sum over pixels: at 32 x 32 the log-likelihood is weighted by (64/32)² = 4, so that β = 6 means what it means at "
    "64 x 64. The weight starts at an eighth of that and then rises to it, for all three objectives: started at its "
    "full value, most models keep the rotation of factors that they happen to start with."
)


# cells ----------------------------------------------------------------------------------------


class ImageSet(NamedTuple):
    """Images of a data set, rendered here or read from the official file, and the likelihood they are trained with."""

    data: str
    """A key of `TITLES`."""
    official: bool
    likelihood: str = "bernoulli"

    @property
    def title(self) -> str:
        loss = "" if self.likelihood == "bernoulli" else " with squared error"
        return f"{'official' if self.official else 'rendered'} {TITLES[self.data]}{loss}"


@dataclass(frozen=True)
class DisentanglingCell:
    data: str
    """A key of `TITLES`."""
    official: bool
    """Whether images are read from the official file; else they are rendered."""
    objective: str
    """A key of `OBJECTIVES`."""
    seed: int
    likelihood: str = "bernoulli"
    """Or `gaussian`: squared error."""

    @property
    def images(self) -> ImageSet:
        return ImageSet(self.data, self.official, self.likelihood)


def by_images(results: Sequence[Result[DisentanglingCell, M]]) -> dict[ImageSet, list[Result[DisentanglingCell, M]]]:
    return grouped(results, lambda r: r.cell.images)


def of_objective(results: Sequence[Result[DisentanglingCell, M]], objective: str) -> list[Result[DisentanglingCell, M]]:
    return [r for r in results if r.cell.objective == objective]


def on_images(
    images: ImageSet, function: Callable[[Sequence[Result[DisentanglingCell, M]], object], T]
) -> Callable[[Sequence[Result[DisentanglingCell, M]], object], T]:
    """A measure or condition that sees only the results on one image set."""
    return lambda results, settings: function([r for r in results if r.cell.images == images], settings)


def beside(images: ImageSet, published: float | None) -> float | str | None:
    """A published value, which is that of official images: beside rendered ones it stands as text, without a ratio."""
    return published if images.official or published is None else f"{published:.4g} (official images)"


# experiments ----------------------------------------------------------------------------------


class DisentanglingExperiment(TrainedExperiment[DisentanglingSettings, DisentanglingCell, M]):
    """All objectives on all image sets; the seeds of one image set are trained on the same images."""

    quick = QUICK
    laptop = LAPTOP
    paper = FULL
    cell_type = DisentanglingCell

    def image_sets(self, settings: DisentanglingSettings) -> list[ImageSet]:
        """Rendered images, the same with squared error, then official files that the user has, if asked for."""
        official = [data for data in TITLES if official_file(data)] if settings.official_files else []
        return [
            *(ImageSet(data, False) for data in RENDERED),
            *(ImageSet(data, False, "gaussian") for data in settings.squared_error),
            *(ImageSet(data, True) for data in official),
        ]

    def cells(self, settings: DisentanglingSettings) -> list[DisentanglingCell]:
        return [
            DisentanglingCell(images.data, images.official, objective, seed, images.likelihood)
            for images, objective, seed in product(self.image_sets(settings), OBJECTIVES, range(settings.seeds))
        ]

    def training_of(self, cell: DisentanglingCell, settings: DisentanglingSettings) -> DisentanglingSettings:
        if cell.data != "dsprites" or cell.official or settings.dsprites_epochs is None:
            return settings
        return replace(settings, epochs=settings.dsprites_epochs, patience=settings.dsprites_epochs)

    def stack_key(self, cell: DisentanglingCell) -> tuple[ImageSet, bool]:
        return cell.images, cell.objective == "beta-tcvae"

    def data_key(self, cell: DisentanglingCell) -> ImageSet:
        return cell.images

    def member(self, cell: DisentanglingCell, data_index: int, settings: DisentanglingSettings) -> MemberSpec:
        precision = 1.0 if cell.likelihood == "bernoulli" else SQUARED_ERROR_PRECISION
        beta = 1.0 if cell.objective == "vae" else settings.beta
        return MemberSpec(cell.seed, precision=precision, beta=beta, data=data_index)

    def model(self, cell: DisentanglingCell, settings: DisentanglingSettings) -> VAE:
        channels, size = 1 if cell.data in GREY else 3, _size(cell, settings)
        if cell.data == "dsprites" and settings.network == "published":
            return VAE.mlp(
                channels * size**2,
                settings.latent_dim,
                hidden=settings.hidden,
                activation="relu",
                likelihood=cell.likelihood,
            )
        published = "orthogonality-faces" if cell.data == "3dfaces" else "orthogonality-shapes"
        architecture = published if settings.network == "published" else settings.network
        return VAE.conv(
            (channels, size, size), settings.latent_dim, architecture=architecture, likelihood=cell.likelihood
        )

    def data(self, cell: DisentanglingCell, settings: DisentanglingSettings) -> FactorData:
        loaded = _official(cell.data, settings) if cell.official else _rendered(cell, settings)
        assert loaded.factors is not None
        parts = split(loaded.x.float(), fractions=(0.8, 0.1))
        return FactorData(parts, loaded.factors[-len(parts.test) :])

    def objective(self, cell: DisentanglingCell, samples: int, settings: DisentanglingSettings) -> Objective:
        own: Objective = BetaTC(samples) if cell.objective == "beta-tcvae" else beta_elbo
        rise = WeightRise(settings.weight_start, settings.weight_hold, settings.weight_warmup)
        return balanced(
            own,
            size=_size(cell, settings),
            reference=settings.balanced_size,
            rise=None if settings.weight_start == 1 else rise,
        )

    def epoch_metrics(self, data: Mapping[int, FactorData], settings: DisentanglingSettings) -> EpochMetrics:
        """The MIG of the test images after every epoch: what refutes a claim about it must last."""

        def measure(epoch: int, member: Member) -> dict[str, float]:
            own = data[member.seed]
            mean, _ = member.encode(own.observations.test)
            finite = bool(mean.isfinite().all())
            return {"mig": metrics.mig(mean, own.test_factors).score if finite else float("nan")}

        return measure


def _size(cell: DisentanglingCell, settings: DisentanglingSettings) -> int:
    """Pixels along a side; official files have the published size."""
    if cell.official:
        return PUBLISHED_SIZE
    return settings.size if cell.data == "dsprites" else settings.colour_size


def _rendered(cell: DisentanglingCell, settings: DisentanglingSettings) -> Dataset:
    return render_dataset(find_dataset(cell.data), rows=settings.samples, seed=0, size=_size(cell, settings))


def _official(data: str, settings: DisentanglingSettings) -> Dataset:
    file, layout = official_file(data), find_dataset(data).official
    if file is None or layout is None:
        raise RunError(f"the official file of {TITLES[data]} is missing; set VAESCOPE_DATA to the folder that has it.")
    return load_official(layout, file, rows=settings.samples, seed=0)
