"""Sprites: factors of images, recovered without labels (Reizinger et al. 2022, §4.3, Fig. 5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from torch import Tensor

from vaescope import metrics, randomness, theory
from vaescope.data.arrays import Split, split
from vaescope.data.rendering import Renderer, Sprites
from vaescope.distributions import Beta
from vaescope.models import VAE, FixedMaps, Member
from vaescope.objectives import Objective
from vaescope.papers.base import Context
from vaescope.papers.claims import Claim
from vaescope.papers.comparison import Comparison
from vaescope.papers.embrace_the_gap import sprites_results as results
from vaescope.papers.embrace_the_gap.sprites_results import FACTORS, STEPS
from vaescope.papers.trained import SyntheticData, TrainedExperiment, TrainedSettings
from vaescope.runs import Cell
from vaescope.runs.files import Row
from vaescope.training import MemberSpec, TrainSettings, train

PRIOR = Beta(2.0, 2.0)
SHOWN = 200  # test images in the scatter of true against estimated factors
CONTRAST_POINTS = 64
FINE = 64  # pixels of the published images: coarser ones mix the factors of a sprite
PROBE = 1000  # test images by which training is watched


@dataclass(frozen=True)
class SpritesSettings(TrainedSettings):
    size: int = 64
    precision: float = 1.0
    """γ² per pixel and channel; at another image size it means another thing."""
    network: str = "conv"
    hidden: tuple[int, ...] = (256, 256)
    """Of the MLP, where the network is one."""
    precision_warmup: int = 0
    published: bool = True
    """The authors' ranges, in which sprites leave the frame at times; otherwise ranges that keep them inside."""

    def training(self, device: str) -> TrainSettings:
        return TrainSettings(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            patience=self.patience,
            device=device,
            precision_warmup=self.precision_warmup,
        )


def source(seed: int, settings: SpritesSettings) -> tuple[Renderer, dict[str, Beta]]:
    """The renderer and the distributions of its factors."""
    if settings.published:
        return Sprites.published(seed, size=settings.size)
    return Sprites(size=settings.size, scale=(0.08, 0.25), hue=(0.0, 0.4)), dict.fromkeys(FACTORS, PRIOR)


class SpritesExperiment(TrainedExperiment):
    name = "sprites"
    title = "A VAE finds position, size and colour of sprites, and its contrast falls as it does"
    source = "Reizinger et al. 2022, §4.3 and Fig. 5; settings of Tab. 5 in the appendix"
    about = (
        "Images of one sprite with four independent factors. The data-generating process is close to the IMA class "
        "(its own contrast, computed through the renderer, stands in the table), so a VAE should recover the factors. "
        "Recovery is shown along training beside the decoder's contrast, against what principal components reach "
        "without any training and what codes that know nothing would score. The paper's profile is for a GPU; the "
        "quick profile is smaller in every way and finds its own way: small images, an MLP, a precision that rises."
    )
    profiles: ClassVar = {
        "quick": SpritesSettings(
            seeds=3,
            samples=10_000,
            epochs=150,
            patience=150,
            learning_rate=2e-3,
            size=16,
            precision=300.0,
            network="mlp",
            precision_warmup=3000,
            published=False,
        ),
        "paper": SpritesSettings(seeds=10, samples=60_000, epochs=500, patience=30, learning_rate=1e-5),
    }

    def cells(self, settings: SpritesSettings) -> list[Cell]:
        return [{"seed": seed} for seed in range(settings.seeds)]

    def spec(self, cell: Cell, data: int, settings: Any) -> MemberSpec:
        return MemberSpec(cell["seed"], precision=settings.precision, data=data)

    def model(self, cell: Cell, settings: SpritesSettings) -> VAE:
        if settings.network == "conv":
            return VAE.conv((3, settings.size, settings.size), len(FACTORS), prior=PRIOR)
        return VAE.mlp(
            3 * settings.size**2,
            len(FACTORS),
            hidden=settings.hidden,
            activation="relu",
            prior=PRIOR,
            fixed=FixedMaps(encoder_input=_centred),
        )

    def data(self, cell: Cell, settings: SpritesSettings) -> SyntheticData:
        renderer, distributions = source(cell["seed"], settings)
        drawn = renderer.sample(settings.samples, seed=cell["seed"], distributions=distributions)
        parts = split(drawn.images.flatten(1))
        return SyntheticData(parts, drawn.factors[-len(parts.test) :])

    def train_stack(
        self,
        model: VAE,
        data: Sequence[Split],
        specs: Sequence[MemberSpec],
        objective: Objective,
        settings: Any,
        context: Context,
    ) -> list[Member]:
        """As ever, with recovery and contrast noted after every epoch."""
        probes = {spec.seed: self.data({"seed": spec.seed}, settings) for spec in specs}

        def watch(epoch: int, member: Member) -> dict[str, float]:
            x = probes[member.seed].observations.test[:PROBE]
            mean, _ = member.encode(x)
            factors = probes[member.seed].test_sources[:PROBE]
            return {"mcc": metrics.mcc(mean, factors).score, "contrast": _contrast(member.decode, mean)}

        train_data, validation = (torch.stack([getattr(s, part) for s in data]) for part in ("train", "validation"))
        return train(
            model,
            train_data,
            validation,
            specs,
            settings.training(context.device),
            progress=context.monitor,
            watch=watch,
            checkpoints=context.run.checkpoint_store,
        )

    def measure(self, cell: Cell, member: Member, data: SyntheticData, settings: SpritesSettings) -> Row:
        x, z = data.observations.test, data.test_sources
        mean, _ = member.encode(x)
        found = metrics.mcc(mean, z)
        sampled = member.sample(x, randomness.generator(member.seed, "measure"))
        components = _principal_components(data)
        baseline = metrics.mcc(components, z)
        renderer, fine = (source(cell["seed"], s)[0] for s in (settings, replace(settings, size=FINE)))
        row: Row = {
            "mcc": found.score,
            "mcc_sampled": metrics.mcc(sampled, z).score,
            "mcc_floor": found.floor,
            "mcc_pca": baseline.score,
            "r2": metrics.linear_r2(mean, z).score,
            "r2_pca": metrics.linear_r2(components, z).score,
            "ima_contrast": _contrast(member.decode, mean),
            "renderer_contrast": _contrast(lambda v: renderer.render_batch(v).flatten(1), z),
            "fine_renderer_contrast": _contrast(lambda v: fine.render_batch(v).flatten(1), z),
            "reconstruction_mse": float((x - member.decode(mean)).square().mean()),
            "interpolations": _interpolations(member, mean, found.assignment),
        }
        for k, name in enumerate(FACTORS):
            row |= {f"mcc_{name}": float(found.per_factor[k]), f"mcc_pca_{name}": float(baseline.per_factor[k])}
            latent = mean[:SHOWN, found.assignment[k]].double()
            row |= {f"true_{name}": z[:SHOWN, k].tolist(), f"estimated_{name}": _fitted(latent, z[:SHOWN, k])}
        return row

    def _row(self, cell: Cell, data: SyntheticData, settings: Any, context: Context) -> Row:
        along = context.run.rows([cell], "history")
        lists = {f"along_{name}": [row[name] for row in along] for name in ("epoch", "mcc", "contrast")}
        return super()._row(cell, data, settings, context) | lists

    def claims(self, rows: Sequence[Row], settings: Any) -> list[Claim]:
        return results.claims([row for row in rows if row["status"] == "finished"])

    def comparisons(self, rows: Sequence[Row], settings: Any) -> list[Comparison]:
        return results.comparisons([row for row in rows if row["status"] == "finished"])

    def figures(self, rows: Sequence[Row], settings: Any) -> dict[str, tuple[Figure, str]]:
        return results.drawn([row for row in rows if row["status"] == "finished"], settings.size)

    def tables(self, rows: Sequence[Row], settings: Any) -> dict[str, list[Row]]:
        done = [row for row in rows if row["status"] == "finished"]
        return {"Every member, with its baselines": results.table(done)}


def _centred(x: Tensor) -> Tensor:
    """Images are mostly black: brought near mean 0 and variance 1."""
    return (x - 0.05) / 0.2


def _contrast(decoder: Callable[[Tensor], Tensor], z: Float[Tensor, "N d"]) -> float:
    """The median over points: a dead column makes single points infinite."""
    return float(theory.ima_contrast(decoder, z[:CONTRAST_POINTS]).median())


def _principal_components(data: SyntheticData) -> np.ndarray:
    pca = PCA(len(FACTORS), random_state=0, svd_solver="randomized").fit(data.observations.train[:5000].numpy())
    return pca.transform(data.observations.test.numpy())


def _fitted(latent: Tensor, factor: Tensor) -> list[float]:
    """The latent in the factor's units: sign, scale and offset by least squares."""
    slope, offset = np.polyfit(latent.numpy(), factor.numpy(), 1)
    return (slope * latent.numpy() + offset).tolist()


def _interpolations(member: Member, mean: Tensor, assignment: np.ndarray) -> bytes:
    """Images (factor, step) as bytes: each matched latent moved through its range, the others at one sample's code."""
    rows = []
    for latent in assignment:
        low, high = np.quantile(mean[:, latent].numpy(), (0.02, 0.98))
        codes = mean[:1].repeat(STEPS, 1)
        codes[:, latent] = torch.linspace(float(low), float(high), STEPS)
        rows.append(member.decode(codes))
    return (torch.cat(rows).detach().clamp(0, 1) * 255).round().byte().numpy().tobytes()


EXPERIMENT = SpritesExperiment()
