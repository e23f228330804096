"""Factors of sprite images, recovered without labels (Reizinger et al. 2022, §4.3, Fig. 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.decomposition import PCA
from torch import Tensor

from vaescope import metrics, randomness, theory
from vaescope.data.arrays import split
from vaescope.data.rendering import Sprites
from vaescope.data.rendering.structure import LabelledImages
from vaescope.distributions import Beta
from vaescope.metrics.mcc import MCC
from vaescope.models import VAE, Member
from vaescope.models.networks import Params
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.embrace_the_gap import SPRITES
from vaescope.papers.embrace_the_gap import sprites_figures as drawings
from vaescope.papers.embrace_the_gap import sprites_results as report
from vaescope.papers.embrace_the_gap.linear_ica import linear_ica
from vaescope.papers.embrace_the_gap.sprites_results import (
    FACTORS,
    STEPS,
    FactorRecovery,
    SpriteCell,
    SpriteMeasurement,
    SpriteResult,
    TrainingCurve,
)
from vaescope.papers.embrace_the_gap.sprites_settings import NO_REMEDY, REMEDIES, Remedy, SpritesSettings
from vaescope.papers.embrace_the_gap.sprites_start import weights_at_factors
from vaescope.papers.experiment import ReportFigure, ReportTable
from vaescope.papers.published import Comparison
from vaescope.papers.trained import FactorData, TrainedExperiment, TrainingStack
from vaescope.training import MemberSpec
from vaescope.training.loop import EpochMetrics

PRIOR = Beta(2.0, 2.0)
SHOWN = 200  # test images in the scatter plot of true and estimated factors
CONTRAST_POINTS = 64
FINE_SIZE = 64  # side of the published images, in pixels
WATCHED_IMAGES = 1000  # test images by which recovery is measured during training


class SpritesExperiment(TrainedExperiment[SpritesSettings, SpriteCell, SpriteMeasurement]):
    info = SPRITES
    about = (
        "Each image shows one sprite with four independent factors. The renderer is close to the IMA class (the table "
        "lists its contrast), so a VAE should recover the factors. The figures show recovery and the contrast of the "
        "decoder during training, next to three baselines: principal components and linear ICA, which need no decoder, "
        "and codes without any information. Data sets are draws of the authors' generator, which draws a distribution "
        "for every factor; on each, members are trained, and the one with the highest ELBO is the best. Controls start "
        "with the true factors as their latents: where they stay and have a higher ELBO, the ELBO prefers the factors "
        "and training from random weights did not find them. At the laptop profile, further members are trained in "
        "other ways, to see whether one of them finds the factors. The paper profile needs a GPU. The others have "
        "images of 32 x 32 pixels. Their γ² is 8 at first and then rises to 50: a low γ² leaves the decoder free to "
        "rotate its axes, a high one makes codes precise."
    )
    quick = SpritesSettings(
        seeds=1,
        samples=20_000,
        epochs=8,
        patience=8,
        learning_rate=1e-3,
        decay="cosine",
        size=32,
        precision=50.0,
        precision_start=8.0,
        precision_hold=800,
        precision_warmup=800,
        data_sets=(2, 7),
    )
    laptop = replace(
        quick,
        seeds=2,
        controls=1,
        epochs=32,
        patience=32,
        precision_hold=5000,
        precision_warmup=1000,
        data_sets=(1, 2, 4, 7),
        remedies=tuple(REMEDIES),
    )
    paper = SpritesSettings(seeds=2, samples=60_000, epochs=500, patience=30, learning_rate=1e-5)
    cell_type = SpriteCell
    measured_type = SpriteMeasurement

    def cells(self, settings: SpritesSettings) -> list[SpriteCell]:
        starts = [("random", settings.seeds), ("factors", settings.controls)]
        cells = [
            SpriteCell(data_set, seed, start)
            for data_set in settings.data_sets
            for start, count in starts
            for seed in range(count)
        ]
        return cells + [SpriteCell(d, 0, remedy=name) for d in settings.data_sets for name in settings.remedies]

    def stack_key(self, cell: SpriteCell) -> tuple[int, str, str]:
        return cell.data_set, cell.start, cell.remedy

    def training_of(self, cell: SpriteCell, settings: SpritesSettings) -> SpritesSettings:
        return _remedy(cell).settings(settings)

    def data_key(self, cell: SpriteCell) -> int:
        return cell.data_set

    def member(self, cell: SpriteCell, data_index: int, settings: SpritesSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=self.training_of(cell, settings).precision, data=data_index)

    def model(self, cell: SpriteCell, settings: SpritesSettings) -> VAE:
        return VAE.conv((3, settings.size, settings.size), _remedy(cell).latents, prior=PRIOR)

    def before_training(
        self, stack: TrainingStack, cells: Sequence[SpriteCell], settings: SpritesSettings
    ) -> Params | None:
        if cells[0].start == "random":
            return None
        factors = _drawn(cells[0], settings).factors[: stack.train.shape[1]]
        own = [weights_at_factors(stack.model, stack.train[0], factors, PRIOR, cell.seed) for cell in cells]
        return {name: torch.cat([weights[name] for weights in own]) for name in own[0]}

    def data(self, cell: SpriteCell, settings: SpritesSettings) -> FactorData:
        drawn = _drawn(cell, settings)
        parts = split(drawn.images.flatten(1), fractions=(0.8, 0.1))
        return FactorData(parts, drawn.factors[-len(parts.test) :])

    def epoch_metrics(self, data: Mapping[int, FactorData], settings: SpritesSettings) -> EpochMetrics:
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
        mean, variance = (t.detach() for t in member.encode(x))
        found = metrics.mcc(mean, z)
        sampled = member.sample(x, randomness.generator(member.seed, "measure"))
        components, independent = _linear_codes(data)
        pca, ica = metrics.mcc(components, z), metrics.mcc(independent, z)
        renderer, fine = (Sprites.published(cell.data_set, size=size)[0] for size in (settings.size, FINE_SIZE))
        curve = [tuple(member.history.get(name, ())) for name in ("mcc", "contrast")]
        return SpriteMeasurement(
            mcc=found.score,
            mcc_sampled=metrics.mcc(sampled, z).score,
            mcc_floor=found.floor,
            mcc_pca=pca.score,
            mcc_ica=ica.score,
            mcc_unmixed=metrics.mcc(linear_ica(mean.numpy()), z).score,
            latents_in_use=int((mean.var(0) > variance.mean(0)).sum()),
            r2=metrics.linear_r2(mean, z).score,
            r2_pca=metrics.linear_r2(components, z).score,
            ima_contrast=_median_contrast(member.decode, mean),
            renderer_contrast=_median_contrast(lambda v: renderer.render_batch(v).flatten(1), z),
            fine_renderer_contrast=_median_contrast(lambda v: fine.render_batch(v).flatten(1), z),
            reconstruction_mse=float((x - member.decode(mean)).square().mean()),
            factors={name: _factor_recovery(k, mean, z, found, pca, ica) for k, name in enumerate(FACTORS)},
            curve=TrainingCurve(tuple(range(1, len(curve[0]) + 1)), *curve),
            interpolations=_interpolations(member, mean, found.assignment),
        )

    def claims(self, settings: SpritesSettings) -> Sequence[ClaimSpec[SpriteResult, SpritesSettings, Any]]:
        return report.claims({name: REMEDIES[name].title for name in settings.remedies})

    def comparisons(self, results: Sequence[SpriteResult], settings: SpritesSettings) -> list[Comparison]:
        return report.comparisons(results)

    def figures(self, results: Sequence[SpriteResult], settings: SpritesSettings) -> list[ReportFigure]:
        return drawings.all_figures(results, settings.size)

    def tables(self, results: Sequence[SpriteResult], settings: SpritesSettings) -> list[ReportTable]:
        return report.tables(results)


def _remedy(cell: SpriteCell) -> Remedy:
    return REMEDIES[cell.remedy] if cell.remedy else NO_REMEDY


def _drawn(cell: SpriteCell, settings: SpritesSettings) -> LabelledImages:
    renderer, distributions = Sprites.published(cell.data_set, size=settings.size)
    return renderer.sample(settings.samples, seed=cell.data_set, distributions=distributions)


def _median_contrast(decoder: Callable[[Tensor], Tensor], z: Float[Tensor, "N d"]) -> float:
    """The median over points, because a vanishing column makes single points infinite."""
    return float(theory.ima_contrast(decoder, z[:CONTRAST_POINTS]).median())


def _linear_codes(data: FactorData) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of the test images, and the same components rotated by linear ICA."""
    pca = PCA(len(FACTORS), random_state=0, svd_solver="randomized").fit(data.observations.train[:5000].numpy())
    components = pca.transform(data.observations.test.numpy())
    return components, linear_ica(components)


def _factor_recovery(index: int, mean: Tensor, factors: Tensor, found: MCC, pca: MCC, ica: MCC) -> FactorRecovery:
    latent = mean[:SHOWN, found.assignment[index]].double().numpy()
    true = factors[:SHOWN, index].numpy()
    slope, offset = np.polyfit(latent, true, 1)
    return FactorRecovery(
        mcc=float(found.per_factor[index]),
        mcc_pca=float(pca.per_factor[index]),
        mcc_ica=float(ica.per_factor[index]),
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
