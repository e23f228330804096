"""The polarised regime of VAEs and iVAEs on images (Bonheme & Grzes 2023, Figs. 1 to 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from vaescope import randomness, regime
from vaescope.data.arrays import split
from vaescope.data.rendering import DSprites, LabelledImages
from vaescope.encoded import EncodedSample, encode
from vaescope.models import VAE, AuxiliarySettings, Member
from vaescope.models.networks import Params
from vaescope.objectives import Objective, beta_elbo
from vaescope.objectives.weighted import balanced
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.experiment import ReportFigure, ReportTable
from vaescope.papers.polarised_regime import POLARISED_REGIME
from vaescope.papers.polarised_regime import polarised_regime_figures as drawings
from vaescope.papers.polarised_regime import polarised_regime_results as report
from vaescope.papers.polarised_regime.polarised_regime_claims import claims
from vaescope.papers.polarised_regime.polarised_regime_results import (
    PANELS,
    Accuracy,
    Distance,
    Histogram,
    LatentHistograms,
    PerLatent,
    RegimeCell,
    RegimeCurve,
    RegimeMeasurement,
    RegimeResult,
    RegimeSettings,
    StatementRow,
    Truncation,
)
from vaescope.papers.results import DIVERGED
from vaescope.papers.trained import FactorData, TrainedExperiment, TrainingStack, train_stack
from vaescope.protocol import LatentModel
from vaescope.regime.verify import Statement, Verification
from vaescope.theory import jacobian
from vaescope.training import MemberSpec
from vaescope.training.loop import EpochMetrics

BINS = 60
JACOBIAN_SAMPLES = 64  # test images at which the decoder is differentiated
RECORDED_SAMPLES = 1000  # test images on which the regime is recorded after every epoch
STATEMENT_SAMPLES = 10_000  # further images on which statements are measured, as many as in the paper's histograms
TRUNCATION_SAMPLES = 200  # test images on which codes are truncated
PRIOR_HIDDEN = (50, 50, 50)  # of the prior's networks, as in the authors' code
HELD_OUT = 0.1  # of the images; half for validation and classifiers, half for measuring
RESAMPLES = 200  # for the intervals of statements
FEWEST_RESAMPLES = 20  # where only the distance is needed
FURTHER_SEED = 1_000_000  # added to a member's seed for further images
FINISHING_RATE = 0.1  # of the learning rate, in finishing epochs
CLASSIFIED = ("shape", "scale")  # factors with few values


@dataclass(frozen=True, eq=False)
class RegimeData(FactorData):
    """With the factors of the validation images, on which classifiers are trained, and further images."""

    validation_factors: Float[Tensor, "M k"]
    further: Float[Tensor, "S n"]
    """Rows of further images, on which the statements are measured at the end."""


class PolarisedRegimeExperiment(TrainedExperiment[RegimeSettings, RegimeCell, RegimeMeasurement]):
    info = POLARISED_REGIME
    about = (
        "VAEs and iVAEs are trained on images with the structure of dSprites. The auxiliary input of the iVAEs is the "
        "five factors of an image; the variance of their prior p(z | factors) is learned, and its mean is fixed at 0 "
        "or learned. Every latent is compared with its own prior. Histograms show one active and one passive latent "
        "of each model, as in the paper. Every statement of the paper is then measured as a distance with a bootstrap "
        "interval. Distances are relative to the prior, because the learned priors are so narrow that all variances "
        "are far below one. The quick and laptop profiles have images of 32 x 32 pixels, with the log-likelihood "
        "weighted by 4 so that it counts as much against the KL as at 64 x 64, and about 1,100 and 30,000 steps at a "
        "learning rate of 1e-3, which decays; the laptop profile adds 15,000 steps from 1e-4 on, along which the "
        "statements are measured after every epoch. The paper has 300,000 steps at 1e-4. A statement is refuted if a "
        "member contradicts it, with its interval, and did so after every one of the last third of the epochs."
    )
    quick = RegimeSettings(
        seeds=1,
        samples=16_000,
        epochs=5,
        patience=5,
        learning_rate=1e-3,
        decay="cosine",
        size=32,
        latents=(10, 20),
        betas=(1.0,),
    )
    laptop = replace(
        quick,
        seeds=3,
        samples=40_000,
        epochs=54,
        patience=54,
        latents=(10, 5, 20, 30),
        compared_seeds=1,
        finishing_epochs=27,
    )
    paper = RegimeSettings(seeds=3, samples=100_000, epochs=213, patience=213, learning_rate=1e-4)
    cell_type = RegimeCell
    measured_type = RegimeMeasurement

    def cells(self, settings: RegimeSettings) -> list[RegimeCell]:
        """The models of the figures, then VAE and iVAE with other numbers of latents, and with other β."""
        first, beta = settings.latents[0], settings.betas[0]
        figures = [(model, first, beta) for model in report.MODELS]
        compared = [(model, latents, beta) for latents in settings.latents[1:] for model in report.COMPARED]
        compared += [(model, first, other) for other in settings.betas[1:] for model in report.COMPARED]
        seeds = settings.seeds if settings.compared_seeds is None else min(settings.seeds, settings.compared_seeds)
        kinds = [(kind, settings.seeds) for kind in figures] + [(kind, seeds) for kind in compared]
        return [RegimeCell(*kind, seed) for kind, count in kinds for seed in range(count)]

    def stack_key(self, cell: RegimeCell) -> tuple[str, int]:
        return cell.model, cell.latents

    def data_key(self, cell: RegimeCell) -> tuple[int, bool]:
        return cell.seed, cell.model != "vae"

    def member(self, cell: RegimeCell, data_index: int, settings: RegimeSettings) -> MemberSpec:
        return MemberSpec(cell.seed, beta=cell.beta, data=data_index)

    def model(self, cell: RegimeCell, settings: RegimeSettings) -> VAE:
        return VAE.conv(
            (1, settings.size, settings.size),
            cell.latents,
            architecture="regime",
            likelihood="bernoulli",
            auxiliary=AuxiliarySettings(
                dim=0 if cell.model == "vae" else len(DSprites().factors),
                prior_mean="learned" if cell.model == "ivae-mean" else "fixed",
                hidden=PRIOR_HIDDEN,
            ),
        )

    def data(self, cell: RegimeCell, settings: RegimeSettings) -> RegimeData:
        drawn = _images(settings.samples, settings.size, cell.seed)
        rows = _rows(drawn, cell.model)
        parts = split(rows, fractions=(1 - HELD_OUT, HELD_OUT / 2))
        first = len(parts.train)
        validation = drawn.factors[first : first + len(parts.validation)]
        further = _rows(_images(STATEMENT_SAMPLES, settings.size, cell.seed + FURTHER_SEED), cell.model)
        return RegimeData(parts, drawn.factors[-len(parts.test) :], validation, further)

    def objective(self, cell: RegimeCell, samples: int, settings: RegimeSettings) -> Objective:
        return balanced(beta_elbo, size=settings.size, reference=settings.balanced_size)

    def training_of(self, cell: RegimeCell, settings: RegimeSettings) -> RegimeSettings:
        """The finishing epochs, if there are any: `before_training` trains the others."""
        if not settings.finishing_epochs:
            return settings
        epochs, rate = settings.finishing_epochs, FINISHING_RATE * settings.learning_rate
        return replace(settings, epochs=epochs, patience=epochs, learning_rate=rate)

    def before_training(
        self, stack: TrainingStack, cells: Sequence[RegimeCell], settings: RegimeSettings
    ) -> Params | None:
        """The weights after the first epochs, which share the checkpoint of the stack; NaN of members that diverged."""
        if not settings.finishing_epochs:
            return None
        members = train_stack(replace(stack, settings=settings.training(stack.settings.device)))
        kept = [1.0 if m.summary().status != DIVERGED else math.nan for m in members]
        names = members[0].params
        return {name: torch.cat([k * m.params[name] for k, m in zip(kept, members, strict=True)]) for name in names}

    def epoch_metrics(self, data: Mapping[int, FactorData], settings: RegimeSettings) -> EpochMetrics:
        """The regime after every epoch: what refutes a claim about it must last."""

        def measure(epoch: int, member: Member) -> dict[str, float]:
            x, auxiliary = member.split_auxiliary(data[member.seed].observations.test[:RECORDED_SAMPLES])
            found = _verified(encode(member, x, auxiliary), resamples=FEWEST_RESAMPLES)
            distances = {name: found[name].distance if found[name].latents else 0.0 for name in report.STATEMENTS}
            return {"active": float(found.kind.count("active")), "mixed": float(found.kind.count("mixed")), **distances}

        return measure

    def measure(
        self, cell: RegimeCell, member: Member, data: FactorData, settings: RegimeSettings
    ) -> RegimeMeasurement:
        assert isinstance(data, RegimeData)
        x, auxiliary = member.split_auxiliary(data.observations.test)
        judged = regime.of_model(member, x, auxiliary=auxiliary)
        encoded = encode(member, x, auxiliary)
        advice = regime.advise(member, x, auxiliary=auxiliary, samples=TRUNCATION_SAMPLES)
        active, passive = _histograms(judged, encoded, member.seed)
        on_means, on_draws = _accuracies(member, data, judged)
        return RegimeMeasurement(
            per_latent=_per_latent(judged, encoded, _optimal_ratios(member, encoded, settings)),
            boundary=int(judged.boundary.sum()),
            collapse=judged.collapse.kind,
            truncation=Truncation(
                used=advice.latents,
                sufficient=advice.latents_by_elbo,
                error=_floats(advice.error),
                elbo=_floats(() if advice.elbo is None else advice.elbo),
            ),
            statements=_statements(encode(member, *member.split_auxiliary(data.further))),
            active_histograms=active,
            passive_histograms=passive,
            mean_accuracy=on_means,
            sampled_accuracy=on_draws,
            curve=_curve(member),
        )

    def claims(self, settings: RegimeSettings) -> Sequence[ClaimSpec[RegimeResult, RegimeSettings, Any]]:
        return claims(settings)

    def figures(self, results: Sequence[RegimeResult], settings: RegimeSettings) -> list[ReportFigure]:
        return drawings.figures_of(results, settings)

    def tables(self, results: Sequence[RegimeResult], settings: RegimeSettings) -> list[ReportTable]:
        return report.tables(results, settings)


def _images(count: int, size: int, seed: int) -> LabelledImages:
    return DSprites(size=size).sample(count, seed=seed, distributions="grid")


def _rows(drawn: LabelledImages, model: str) -> Float[Tensor, "N n"]:
    """Pixels, and for iVAEs the factors, from -1 to 1."""
    if model == "vae":
        return drawn.images.flatten(1)
    low, high = torch.tensor([(factor.low, factor.high) for factor in DSprites().factors]).T
    auxiliary = (2 * (drawn.factors - low) / (high - low) - 1).float()
    return torch.cat([drawn.images.flatten(1), auxiliary], dim=1)


def _curve(member: Member) -> RegimeCurve:
    recorded = {name: tuple(values) for name, values in member.history.items()}
    distances = {name: recorded[name] for name in report.STATEMENTS if name in recorded}
    return RegimeCurve(recorded.get("active", ()), recorded.get("mixed", ()), distances)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(v) for v in values)


def _optimal_ratios(member: LatentModel, encoded: EncodedSample, settings: RegimeSettings) -> Float[Tensor, " d"]:
    """Optimal posterior variance over prior variance, given the decoder: 1 / (1 + σ†² w Σ_i J_ij² / (x̂_i (1 - x̂_i))).

    w is the weight on the log-likelihood. Below 1 only for latents that the decoder responds to.
    """
    rows = slice(JACOBIAN_SAMPLES)
    z = encoded.mean[rows].double()
    output, J = member.decode(z), jacobian(member.decode, z)
    weights = (settings.balanced_size / settings.size) ** 2 / (output * (1 - output)).clamp(min=1e-6)
    information = (J.square() * weights.unsqueeze(2)).sum(1)
    return (1 / (1 + encoded.prior_variance[rows].double() * information)).log().mean(0).exp().detach()


def _per_latent(judged: regime.Regime, encoded: EncodedSample, optimal_ratios: Tensor) -> PerLatent:
    assert judged.effect is not None  # members have a decoder
    return PerLatent(
        kind=tuple(judged.kind),
        kl=_floats(judged.kl),
        variance_ratio=_floats(judged.variance_ratio),
        optimal_variance_ratio=_floats(optimal_ratios),
        effect=_floats(judged.effect),
        prior_variance=_floats(encoded.prior_variance.mean(0)),
        baseline_rules={name: tuple(kinds) for name, kinds in judged.baseline_rules.verdicts().items()},
    )


def _statements(encoded: EncodedSample) -> dict[str, StatementRow]:
    """Distance, interval and verdict of every statement, by name."""
    return {name: _statement_row(statement) for name, statement in _verified(encoded).statements.items()}


def _verified(encoded: EncodedSample, resamples: int = RESAMPLES) -> Verification:
    return regime.verify(
        encoded.mean,
        encoded.variance,
        prior_mean=encoded.prior_mean,
        prior_variance=encoded.prior_variance,
        resamples=resamples,
    )


def _statement_row(statement: Statement) -> StatementRow:
    distance = Distance(float(statement.distance), float(statement.low), float(statement.high))
    return StatementRow(statement.verdict, statement.tolerance, distance if statement.latents else None)


# histograms -----------------------------------------------------------------------------------


def _histograms(
    judged: regime.Regime, encoded: EncodedSample, seed: int
) -> tuple[LatentHistograms | None, LatentHistograms | None]:
    """Figs. 1 to 4: of the most used active latent, and of the least used passive one."""
    noise = torch.randn((2, *encoded.mean.shape), generator=randomness.generator(seed, "histograms"))
    values = {
        "mean": encoded.mean,
        "variance": encoded.variance,
        "prior_variance": encoded.prior_variance,
        "sample": encoded.mean + encoded.variance.sqrt() * noise[0],
        "prior_sample": encoded.prior_mean + encoded.prior_variance.sqrt() * noise[1],
    }

    def of_latent(latents: list[int]) -> LatentHistograms | None:
        if not latents:
            return None
        columns = {name: value[:, latents[0]].numpy() for name, value in values.items()}
        return LatentHistograms(
            **{panel: _histogram({name: columns[name] for name in names}) for panel, names in PANELS.items()}
        )

    return of_latent(judged.active[:1]), of_latent(judged.passive[-1:])


def _histogram(columns: dict[str, np.ndarray]) -> Histogram:
    """Counts in bins that all columns share."""
    low = min(float(v.min()) for v in columns.values())
    high = max(float(v.max()) for v in columns.values())
    edges = np.linspace(low, high if high > low else low + 1e-6, BINS + 1)
    return Histogram(_floats(edges), {name: _floats(np.histogram(v, edges)[0]) for name, v in columns.items()})


# classifiers ----------------------------------------------------------------------------------


def _accuracies(member: Member, data: RegimeData, judged: regime.Regime) -> tuple[Accuracy, Accuracy]:
    """Accuracy of classifiers of shape and scale, on mean codes and on sampled codes.

    On sampled codes too, because a classifier that ignores scale can read changes of a mean that are far below the
    noise of its latent.
    """
    parts = data.observations.validation, data.observations.test
    encoded = [encode(member, *member.split_auxiliary(part)) for part in parts]
    generator = randomness.generator(member.seed, "downstream")
    sampled = [e.mean + e.variance.sqrt() * torch.randn(e.mean.shape, generator=generator) for e in encoded]
    return _accuracy([e.mean for e in encoded], data, judged), _accuracy(sampled, data, judged)


def _accuracy(codes: Sequence[Tensor], data: RegimeData, judged: regime.Regime) -> Accuracy:
    def on(latents: list[int]) -> float | None:
        return _classified([c[:, sorted(latents)].numpy() for c in codes], data) if latents else None

    everything = on(list(range(judged.latent_dim)))
    assert everything is not None
    return Accuracy(everything, on(judged.used), on(judged.passive))


def _classified(codes: Sequence[np.ndarray], data: RegimeData) -> float:
    """Trained on validation codes; the mean accuracy over factors on test codes."""
    scores = []
    for name in CLASSIFIED:
        column = DSprites().factor_names.index(name)
        labels = [(100 * f[:, column]).round().long().numpy() for f in (data.validation_factors, data.test_factors)]
        classifier = HistGradientBoostingClassifier(max_iter=30, random_state=0)
        classifier.fit(codes[0], labels[0])
        scores.append(classifier.score(codes[1], labels[1]))
    return float(np.mean(scores))


EXPERIMENT = PolarisedRegimeExperiment()
