"""The polarised regime of VAEs and iVAEs on images (Bonheme & Grzes 2023, Figs. 1 to 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from vaescope import randomness, regime
from vaescope.data.arrays import split
from vaescope.data.rendering import DSprites
from vaescope.encoded import EncodedSample, encode
from vaescope.models import VAE, ConvVAE, Member
from vaescope.papers.claims import Claim
from vaescope.papers.polarised_regime import polarised_regime_results as results
from vaescope.papers.polarised_regime.polarised_regime_results import HISTOGRAMS, slug
from vaescope.papers.trained import SyntheticData, TrainedExperiment, TrainedSettings
from vaescope.runs import Cell
from vaescope.runs.files import Row
from vaescope.training import MemberSpec

BINS = 60
ADVICE_SAMPLES = 200  # test images on which codes are cut
DISCRETE = ("shape", "scale")  # factors with a few values, which a classifier can name


@dataclass(frozen=True)
class RegimeSettings(TrainedSettings):
    size: int = 64
    latents: tuple[int, ...] = (30, 10)
    """The first is the model of the figures; the others are compared with it."""
    betas: tuple[float, ...] = (1.0, 4.0)


@dataclass(frozen=True, eq=False)
class RegimeData(SyntheticData):
    """With the factors of the validation images too: what a classifier is trained on."""

    validation_factors: Float[Tensor, "M k"]


class RegimeExperiment(TrainedExperiment):
    name = "polarised-regime"
    title = "Latents are active or at their prior, for VAEs and iVAEs alike"
    source = "Bonheme & Grzes 2023, Props. 1 to 3, Theorems 1 and 2, Figs. 1 to 4; settings of Tabs. 1 and 2"
    about = (
        "Images with the structure of dSprites, seen by VAEs and by iVAEs whose auxiliary u is the five factors and "
        "whose prior p(z|u) has a learned variance, with its mean at 0 or learned. Every latent is judged against its "
        "own prior. Histograms show one active and one passive latent of each model as the paper does; every "
        "statement of the paper is then a distance with a bootstrap interval, relative to the prior, because the "
        "learned priors are so narrow that all variances are far below one. The quick profile has smaller images and "
        "far fewer steps than the paper's 300,000."
    )
    profiles: ClassVar = {
        "quick": RegimeSettings(
            seeds=1, samples=20_000, epochs=5, patience=5, learning_rate=1e-3, size=32, latents=(10, 20)
        ),
        "paper": RegimeSettings(seeds=3, samples=100_000, epochs=240, patience=240, learning_rate=1e-4),
    }

    def cells(self, settings: RegimeSettings) -> list[Cell]:
        """The models of the figures, then VAE and iVAE with other numbers of latents, and with other β."""
        first, beta = settings.latents[0], settings.betas[0]
        kinds = [(kind, first, beta) for kind in results.MODELS]
        kinds += [(kind, width, beta) for width in settings.latents[1:] for kind in ("vae", "ivae")]
        kinds += [(kind, first, other) for other in settings.betas[1:] for kind in ("vae", "ivae")]
        return [
            {"model": kind, "latents": width, "beta": beta, "seed": seed}
            for kind, width, beta in kinds
            for seed in range(settings.seeds)
        ]

    def stack_key(self, cell: Cell) -> Any:
        return cell["model"], cell["latents"]

    def data_key(self, cell: Cell) -> Any:
        return cell["seed"], cell["model"] != "vae"

    def spec(self, cell: Cell, data: int, settings: Any) -> MemberSpec:
        return MemberSpec(cell["seed"], beta=cell["beta"], data=data)

    def model(self, cell: Cell, settings: RegimeSettings) -> VAE:
        return ConvVAE.of(
            (1, settings.size, settings.size),
            latent_dim=cell["latents"],
            architecture="regime",
            likelihood="bernoulli",
            auxiliary_dim=0 if cell["model"] == "vae" else len(DSprites().factors),
            prior_mean="learned" if cell["model"] == "ivae-mean" else "fixed",
        )

    def data(self, cell: Cell, settings: RegimeSettings) -> RegimeData:
        renderer = DSprites(size=settings.size)
        drawn = renderer.sample(settings.samples, seed=cell["seed"], distributions="grid")
        low = torch.tensor([factor.low for factor in renderer.factors])
        high = torch.tensor([factor.high for factor in renderer.factors])
        u = (2 * (drawn.factors - low) / (high - low) - 1).float()
        x = drawn.images.flatten(1)
        parts = split(x if cell["model"] == "vae" else torch.cat([x, u], dim=1), fractions=(0.8, 0.1))
        first = len(parts.train)
        validation = drawn.factors[first : first + len(parts.validation)]
        return RegimeData(parts, drawn.factors[-len(parts.test) :], validation)

    def measure(self, cell: Cell, member: Member, data: SyntheticData, settings: Any) -> Row:
        assert isinstance(data, RegimeData)
        x, u = member.parted(data.observations.test)
        judged = regime.of_model(member, x, auxiliary=u)
        seen = encode(member, x, u)
        advice = regime.advise(member, x, auxiliary=u, samples=ADVICE_SAMPLES)
        row: Row = {kind: len(judged.latents_of_kind(kind)) for kind in ("active", "passive", "mixed")}
        row |= {
            "boundary": int(judged.boundary.sum()),
            "kinds": judged.kind,
            "kl": judged.kl.tolist(),
            "variance_ratio": judged.variance_ratio.tolist(),
            "effect": [] if judged.effect is None else judged.effect.tolist(),
            "prior_variance": seen.prior_variance.mean(0).tolist(),
            "collapse": judged.collapse.kind,
            "advice": advice.latents,
            "advice_by_curve": advice.latents_by_elbo,
            "curve_error": advice.error.tolist(),
            "curve_elbo": [] if advice.elbo is None else advice.elbo.tolist(),
        }
        row |= {f"rival {name}": verdicts for name, verdicts in judged.baseline_rules.verdicts().items()}
        row |= _statements(seen) | _histograms(judged, seen, member.seed)
        return row | _downstream(member, data, judged.used, judged.passive)

    def claims(self, rows: Sequence[Row], settings: Any) -> list[Claim]:
        return results.claims([row for row in rows if row["status"] == "finished"], settings)

    def figures(self, rows: Sequence[Row], settings: Any) -> dict[str, tuple[Figure, str]]:
        return results.drawn([row for row in rows if row["status"] == "finished"], settings)

    def tables(self, rows: Sequence[Row], settings: Any) -> dict[str, list[Row]]:
        return results.tables([row for row in rows if row["status"] == "finished"], settings)


def _statements(seen: EncodedSample) -> Row:
    """Every statement's distance, interval and verdict."""
    found = regime.verify(seen.mean, seen.variance, prior_mean=seen.prior_mean, prior_variance=seen.prior_variance)
    row: Row = {}
    for name, statement in found.statements.items():
        key = slug(name)
        row |= {f"{key}_verdict": statement.verdict, f"{key}_tolerance": statement.tolerance}
        for part in ("distance", "low", "high"):
            row[f"{key}_{part}"] = getattr(statement, part) if statement.latents else None
    return row


def _histograms(judged: regime.Regime, seen: EncodedSample, seed: int) -> Row:
    """Figures 1 to 4: mean, variance and draws of the most used and of the least used latent, and of their prior."""
    noise = torch.randn((2, *seen.mean.shape), generator=randomness.generator(seed, "histograms"))
    values = {
        "mean": seen.mean,
        "variance": seen.variance,
        "prior_variance": seen.prior_variance,
        "sample": seen.mean + seen.variance.sqrt() * noise[0],
        "prior_sample": seen.prior_mean + seen.prior_variance.sqrt() * noise[1],
    }
    row: Row = {}
    for kind, places in (("active", judged.active[:1]), ("passive", judged.passive[-1:])):
        for panel, names in HISTOGRAMS.items():
            columns = {name: values[name][:, place].numpy() for name in names for place in places}
            row |= {f"{kind}_{panel}_{key}": value for key, value in _binned(columns, names).items()}
    return row


def _binned(columns: dict[str, np.ndarray], names: tuple[str, ...]) -> dict[str, list[float]]:
    """Densities on shared bins; lists are empty where there is no such latent."""
    if not columns:
        return {"edges": [], **{name: [] for name in names}}
    low = min(float(v.min()) for v in columns.values())
    high = max(float(v.max()) for v in columns.values())
    edges = np.linspace(low, high if high > low else low + 1e-6, BINS + 1)
    return {"edges": edges.tolist()} | {
        name: np.histogram(v, edges)[0].astype(float).tolist() for name, v in columns.items()
    }


def _downstream(member: Member, data: RegimeData, used: list[int], passive: list[int]) -> Row:
    """Accuracy of a classifier of shape and of scale: on all latents, on used and on passive ones.

    On means, and on draws: a classifier that knows no scale reads from a mean what is far below its latent's noise.
    """
    seen = [encode(member, *member.parted(part)) for part in (data.observations.validation, data.observations.test)]
    generator = randomness.generator(member.seed, "downstream")
    drawn = [s.mean + s.variance.sqrt() * torch.randn(s.mean.shape, generator=generator) for s in seen]
    everything = list(range(member.latent_dim))
    sets = {"all": everything, "used": sorted(used), "passive": sorted(passive)}
    return {
        f"{what}_{name}": _accuracy([c.numpy() for c in codes], data, places)
        for what, codes in (("accuracy", [s.mean for s in seen]), ("sampled_accuracy", drawn))
        for name, places in sets.items()
    }


def _accuracy(codes: list[np.ndarray], data: RegimeData, places: list[int]) -> float | None:
    if not places:
        return None
    scores = []
    for name in DISCRETE:
        column = DSprites().names.index(name)
        labels = [(100 * f[:, column]).round().long().numpy() for f in (data.validation_factors, data.test_sources)]
        classifier = HistGradientBoostingClassifier(max_iter=30, random_state=0)
        classifier.fit(codes[0][:, places], labels[0])
        scores.append(classifier.score(codes[1][:, places], labels[1]))
    return float(np.mean(scores))


EXPERIMENT = RegimeExperiment()
