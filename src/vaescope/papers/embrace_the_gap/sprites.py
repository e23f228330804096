"""Factors of sprite images, recovered without labels (Reizinger et al. 2022, §4.3, Fig. 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.decomposition import PCA
from torch import Tensor

from vaescope import metrics, randomness, theory
from vaescope.data.arrays import split
from vaescope.data.rendering import Sprites
from vaescope.distributions import Beta
from vaescope.metrics.mcc import MCC
from vaescope.models import VAE, FixedMaps, Member
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.embrace_the_gap import SPRITES
from vaescope.papers.embrace_the_gap import sprites_figures as drawings
from vaescope.papers.embrace_the_gap import sprites_results as report
from vaescope.papers.embrace_the_gap.sprites_results import (
    FACTORS,
    STEPS,
    FactorRecovery,
    SpriteCell,
    SpriteMeasurement,
    SpriteResult,
    TrainingCurve,
)
from vaescope.papers.experiment import ReportFigure, ReportTable
from vaescope.papers.published import Comparison
from vaescope.papers.trained import FactorData, TrainedExperiment, TrainedSettings
from vaescope.training import MemberSpec
from vaescope.training.loop import Watch

PRIOR = Beta(2.0, 2.0)
SHOWN = 200  # test images in the scatter plot of true and estimated factors
CONTRAST_POINTS = 64
FINE_SIZE = 64  # side of the published images, in pixels
WATCHED_IMAGES = 1000  # test images by which recovery is measured during training


@dataclass(frozen=True)
class SpritesSettings(TrainedSettings):
    size: int = 64
    """Height and width of the images."""
    precision: float = 1.0
    """γ² per pixel and channel; its meaning depends on the image size."""
    network: str = "conv"
    """conv or mlp."""
    hidden: tuple[int, ...] = (256, 256)
    """Hidden layers of the MLP."""
    published: bool = True
    """Use the authors' ranges, with sprites partly outside the image; otherwise all sprites are inside."""


def sprite_generator(seed: int, settings: SpritesSettings) -> tuple[Sprites, dict[str, Beta]]:
    """The renderer and the distributions of its factors."""
    if settings.published:
        return Sprites.published(seed, size=settings.size)
    return Sprites(size=settings.size, scale=(0.08, 0.25), hue=(0.0, 0.4)), dict.fromkeys(FACTORS, PRIOR)


class SpritesExperiment(TrainedExperiment[SpritesSettings, SpriteCell, SpriteMeasurement]):
    info = SPRITES
    about = (
        "Each image shows one sprite with four independent factors. The renderer is close to the IMA class (the table "
        "lists its contrast), so a VAE should recover the factors. The figures show recovery and the contrast of the "
        "decoder during training, next to two baselines: principal components, which need no training, and codes "
        "without any information. The paper profile needs a GPU. The quick profile uses 16 x 16 images, an MLP, and a "
        "precision that rises during training."
    )
    quick = SpritesSettings(
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
    )
    laptop = SpritesSettings(seeds=10, samples=60_000, epochs=500, patience=30, learning_rate=1e-5)
    paper = SpritesSettings(seeds=10, samples=60_000, epochs=500, patience=30, learning_rate=1e-5)
    cell_type = SpriteCell
    measured_type = SpriteMeasurement

    def cells(self, settings: SpritesSettings) -> list[SpriteCell]:
        return [SpriteCell(seed) for seed in range(settings.seeds)]

    def member(self, cell: SpriteCell, data_index: int, settings: SpritesSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=settings.precision, data=data_index)

    def model(self, cell: SpriteCell, settings: SpritesSettings) -> VAE:
        if settings.network == "conv":
            return VAE.conv((3, settings.size, settings.size), len(FACTORS), prior=PRIOR)
        return VAE.mlp(
            3 * settings.size**2,
            len(FACTORS),
            hidden=settings.hidden,
            activation="relu",
            prior=PRIOR,
            fixed=FixedMaps(encoder_input=_standardise),
        )

    def data(self, cell: SpriteCell, settings: SpritesSettings) -> FactorData:
        renderer, distributions = sprite_generator(cell.seed, settings)
        drawn = renderer.sample(settings.samples, seed=cell.seed, distributions=distributions)
        parts = split(drawn.images.flatten(1))
        return FactorData(parts, drawn.factors[-len(parts.test) :])

    def watch(self, data: Mapping[int, FactorData], settings: SpritesSettings) -> Watch:
        """Recovery and contrast after every epoch; NaN for a member that has just diverged."""

        def measure(epoch: int, member: Member) -> dict[str, float]:
            own = data[member.seed]
            mean, _ = member.encode(own.observations.test[:WATCHED_IMAGES])
            if not bool(mean.isfinite().all()):
                return {"mcc": float("nan"), "contrast": float("nan")}
            mcc = metrics.mcc(mean, own.test_factors[:WATCHED_IMAGES]).score
            return {"mcc": mcc, "contrast": _median_contrast(member.decode, mean)}

        return measure

    def measure(
        self, cell: SpriteCell, member: Member, data: FactorData, settings: SpritesSettings
    ) -> SpriteMeasurement:
        x, z = data.observations.test, data.test_factors
        mean, _ = member.encode(x)
        found = metrics.mcc(mean, z)
        sampled = member.sample(x, randomness.generator(member.seed, "measure"))
        components = _principal_components(data)
        baseline = metrics.mcc(components, z)
        renderer, fine = (sprite_generator(cell.seed, s)[0] for s in (settings, replace(settings, size=FINE_SIZE)))
        curve = [tuple(member.history.get(name, ())) for name in ("mcc", "contrast")]
        return SpriteMeasurement(
            mcc=found.score,
            mcc_sampled=metrics.mcc(sampled, z).score,
            mcc_floor=found.floor,
            mcc_pca=baseline.score,
            r2=metrics.linear_r2(mean, z).score,
            r2_pca=metrics.linear_r2(components, z).score,
            ima_contrast=_median_contrast(member.decode, mean),
            renderer_contrast=_median_contrast(lambda v: renderer.render_batch(v).flatten(1), z),
            fine_renderer_contrast=_median_contrast(lambda v: fine.render_batch(v).flatten(1), z),
            reconstruction_mse=float((x - member.decode(mean)).square().mean()),
            factors={name: _factor_recovery(k, mean, z, found, baseline) for k, name in enumerate(FACTORS)},
            curve=TrainingCurve(tuple(range(1, len(curve[0]) + 1)), *curve),
            interpolations=_interpolations(member, mean, found.assignment),
        )

    def claims(self, settings: SpritesSettings) -> Sequence[ClaimSpec[SpriteResult, SpritesSettings, Any]]:
        return report.CLAIMS

    def comparisons(self, results: Sequence[SpriteResult], settings: SpritesSettings) -> list[Comparison]:
        return report.comparisons(results)

    def figures(self, results: Sequence[SpriteResult], settings: SpritesSettings) -> list[ReportFigure]:
        return drawings.all_figures(results, settings.size)

    def tables(self, results: Sequence[SpriteResult], settings: SpritesSettings) -> list[ReportTable]:
        return [report.members_table(results)]


def _standardise(x: Tensor) -> Tensor:
    """Images are mostly black: approximately mean 0 and variance 1."""
    return (x - 0.05) / 0.2


def _median_contrast(decoder: Callable[[Tensor], Tensor], z: Float[Tensor, "N d"]) -> float:
    """The median over points, because a vanishing column makes single points infinite."""
    return float(theory.ima_contrast(decoder, z[:CONTRAST_POINTS]).median())


def _principal_components(data: FactorData) -> np.ndarray:
    pca = PCA(len(FACTORS), random_state=0, svd_solver="randomized").fit(data.observations.train[:5000].numpy())
    return pca.transform(data.observations.test.numpy())


def _factor_recovery(index: int, mean: Tensor, factors: Tensor, found: MCC, baseline: MCC) -> FactorRecovery:
    latent = mean[:SHOWN, found.assignment[index]].double().numpy()
    true = factors[:SHOWN, index].numpy()
    slope, offset = np.polyfit(latent, true, 1)
    return FactorRecovery(
        mcc=float(found.per_factor[index]),
        mcc_pca=float(baseline.per_factor[index]),
        true=tuple(true.tolist()),
        estimated=tuple((slope * latent + offset).tolist()),
    )


def _interpolations(member: Member, mean: Tensor, assignment: np.ndarray) -> bytes:
    """Images (factor, step) as bytes: every matched latent is moved through its range, from the code of one image."""
    rows = []
    for latent in assignment:
        low, high = np.quantile(mean[:, latent].numpy(), (0.02, 0.98))
        codes = mean[:1].repeat(STEPS, 1)
        codes[:, latent] = torch.linspace(float(low), float(high), STEPS)
        rows.append(member.decode(codes))
    return (torch.cat(rows).detach().clamp(0, 1) * 255).round().byte().numpy().tobytes()


EXPERIMENT = SpritesExperiment()
