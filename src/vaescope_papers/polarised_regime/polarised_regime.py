"""The polarised regime of VAEs and iVAEs on images (Bonheme & Grzes 2023, Figs. 1 to 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import matplotlib as mpl
import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from vaescope import regime
from vaescope.analysis.encoding import EncodedSample, encode
from vaescope.core import randomness
from vaescope.data.dataset import split
from vaescope.data.rendering import DSprites
from vaescope.models import VAE, AuxiliarySettings, Member
from vaescope.models.networks import Params
from vaescope.objectives import Objective, beta_elbo
from vaescope.objectives.weighted import balanced
from vaescope.protocol import LatentModel
from vaescope.regime.verify import STATEMENTS, Tolerances, Verification
from vaescope.report import figures
from vaescope.theory import jacobian
from vaescope.training import MemberSpec
from vaescope.training.loop import EpochMetrics
from vaescope_papers.claims import FEWEST_LATE, TOO_SHORT, ClaimSpec, settled, show
from vaescope_papers.criteria import Bound, Interval, IntervalsBelow, above, at_most
from vaescope_papers.experiment import ReportFigure, ReportTable
from vaescope_papers.polarised_regime import EXPERIMENTS
from vaescope_papers.published import published
from vaescope_papers.results import DIVERGED, Result
from vaescope_papers.statistics import median
from vaescope_papers.trained import FactorData, TrainedExperiment, TrainedSettings, TrainingStack, train_stack

MODELS = {"vae": "VAE", "ivae": "iVAE, prior mean 0", "ivae-mean": "iVAE, learned prior mean"}
COMPARED = ("vae", "ivae")  # models that are also trained with other numbers of latents and other β
MIXED_STATEMENT = "Theorem 2 (iii)"  # in the table only: on this data no latent should be mixed
CLAIMED = [name for name in STATEMENTS if name != MIXED_STATEMENT]
VARIANCE_RULE = "variance near 1"  # a baseline rule of `vaescope.regime`
PUBLISHED = published("polarised_regime")["polarised-regime"]
T = TypeVar("T")

# settings -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RegimeSettings(TrainedSettings):
    """The paper profile has the published settings."""

    size: int = 64
    """Pixels along a side of an image."""
    balanced_size: int = 64
    """Log-likelihoods count as much against the KL as at this size, because they are weighted by (this / size)²."""
    latents: tuple[int, ...] = (30, 10)
    """Numbers of latents; the first is that of the figures."""
    betas: tuple[float, ...] = (1.0, 4.0)
    """Values of β; the first is that of the figures."""
    compared_seeds: int | None = None
    """Seeds of models with other numbers of latents or other β; None for as many as those of the figures."""
    finishing_epochs: int = 0
    """Further epochs at a tenth of the learning rate, along which the regime is recorded. With 0 it is recorded along
    all epochs."""

    @property
    def late_epochs(self) -> int:
        """The last third of all epochs."""
        return max(1, (self.epochs + self.finishing_epochs) // 3)


# cell and measurement -------------------------------------------------------------------------


@dataclass(frozen=True)
class RegimeCell:
    model: str
    """A key of `MODELS`."""
    latents: int
    beta: float
    seed: int

    @property
    def title(self) -> str:
        beta = "" if self.beta == 1 else f", β = {self.beta:g}"
        return f"{MODELS[self.model]}, {self.latents} latents{beta}"


@dataclass(frozen=True)
class PerLatent:
    """Tuples with one entry per latent."""

    kind: tuple[str, ...]
    """`active`, `passive` or `mixed`."""
    kl: tuple[float, ...]
    """Mean KL from the prior, in nats."""
    variance_ratio: tuple[float, ...]
    """Posterior variance over prior variance, geometric mean over samples."""
    optimal_variance_ratio: tuple[float, ...]
    """The same for the posterior that is optimal for the decoder, to first order in its Jacobian."""
    effect: tuple[float, ...]
    """Squared error added by drawing the latent from its prior, as a share of the data's variance."""
    prior_variance: tuple[float, ...]
    """Mean over samples."""
    baseline_rules: dict[str, tuple[str, ...]]
    """Kinds by the usual rules, by the name of the rule."""

    def of_kind(self, kind: str, values: Sequence[T]) -> list[T]:
        """The values of the latents of this kind."""
        return [value for value, own in zip(values, self.kind, strict=True) if own == kind]


@dataclass(frozen=True)
class Truncation:
    """Codes of 0, 1, 2, … latents, most used ones first, without retraining."""

    used: int
    """Number of latents that are active or mixed."""
    sufficient: int
    """Number of latents after which the ELBO no longer rises."""
    error: tuple[float, ...]
    """Squared error per image at the mean code."""
    elbo: tuple[float, ...]
    """ELBO in nats."""


@dataclass(frozen=True)
class Distance:
    """How far the worst latent is from a statement, with a 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class StatementRow:
    """One statement of the paper, as `vaescope.regime.verify` found it."""

    verdict: str
    tolerance: float
    distance: Distance | None
    """None without a latent of the kind that the statement is about."""


@dataclass(frozen=True)
class Histogram:
    edges: tuple[float, ...]
    counts: dict[str, tuple[float, ...]]
    """By quantity: the keys of `PANELS`."""


PANELS: Mapping[str, tuple[str, ...]] = {
    "means": ("mean",),
    "variances": ("variance", "prior_variance"),
    "samples": ("sample", "prior_sample", "mean"),
}
LatentHistograms = dict[str, Histogram]
"""The panels of one latent: the quantities that each of `PANELS` shows."""


@dataclass(frozen=True)
class Accuracy:
    """Mean accuracy of classifiers of shape and scale; None without latents of that kind."""

    all_latents: float
    used: float | None
    passive: float | None


@dataclass(frozen=True)
class RegimeCurve:
    """After every epoch; empty where it was not recorded."""

    active: tuple[float, ...] = ()
    """Number of active latents."""
    mixed: tuple[float, ...] = ()
    """Number of mixed latents."""
    distances: dict[str, tuple[float, ...]] = field(default_factory=dict)
    """By statement: the distance of the worst latent, 0 without a latent of the kind that the statement is about."""


@dataclass(frozen=True)
class RegimeMeasurement:
    per_latent: PerLatent
    boundary: int
    """Number of latents whose kind changes with thresholds half or twice as large."""
    collapse: str
    truncation: Truncation
    statements: dict[str, StatementRow]
    """By the name of the statement, such as `Theorem 1`."""
    active_histograms: LatentHistograms | None
    """Of the most used active latent."""
    passive_histograms: LatentHistograms | None
    """Of the least used passive latent."""
    mean_accuracy: Accuracy
    sampled_accuracy: Accuracy
    curve: RegimeCurve = field(default_factory=RegimeCurve)

    @property
    def accuracies(self) -> dict[str, Accuracy]:
        return {"mean codes": self.mean_accuracy, "sampled codes": self.sampled_accuracy}

    def count(self, kind: str) -> int:
        """Number of latents of this kind."""
        return self.per_latent.kind.count(kind)


RegimeResult = Result[RegimeCell, RegimeMeasurement]
Results = Sequence[RegimeResult]
Spec = ClaimSpec[RegimeResult, RegimeSettings, Any]


def select(results: Results, *kind: object) -> list[RegimeResult]:
    """Members of this model, number of latents and β."""
    return [r for r in results if (r.cell.model, r.cell.latents, r.cell.beta) == kind]


def of_model(results: Results, model: str) -> list[RegimeMeasurement]:
    return [r.measured for r in results if r.cell.model == model]


def active_counts(results: Results) -> list[float]:
    return [float(r.measured.count("active")) for r in results]


def of_passive(members: Sequence[RegimeMeasurement], values: Callable[[PerLatent], Sequence[T]]) -> list[list[T]]:
    """The values of the passive latents of every member that has some."""
    found = [m.per_latent.of_kind("passive", values(m.per_latent)) for m in members]
    return [own for own in found if own]


# measure --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RegimeData(FactorData):
    """With the factors of the validation images, on which classifiers are trained, and further images."""

    validation_factors: Float[Tensor, "M k"]
    further: Float[Tensor, "S n"]
    """Rows of further images, on which the statements are measured at the end."""


class PolarisedRegimeExperiment(TrainedExperiment[RegimeSettings, RegimeCell, RegimeMeasurement]):
    info = EXPERIMENTS["polarised-regime"]
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
        shown = [(model, first, beta) for model in MODELS]
        compared = [(model, latents, beta) for latents in settings.latents[1:] for model in COMPARED]
        compared += [(model, first, other) for other in settings.betas[1:] for model in COMPARED]
        seeds = settings.seeds if settings.compared_seeds is None else min(settings.seeds, settings.compared_seeds)
        kinds = [(kind, settings.seeds) for kind in shown] + [(kind, seeds) for kind in compared]
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
                hidden=tuple(PUBLISHED["prior_hidden"]),
            ),
        )

    def data(self, cell: RegimeCell, settings: RegimeSettings) -> RegimeData:
        """A tenth of the images is held out: half for validation and classifiers, half for measuring."""
        rows, factors = _images(settings.samples, settings.size, cell.seed, cell.model)
        parts = split(rows, fractions=(0.9, 0.05))
        first = len(parts.train)
        validation = factors[first : first + len(parts.validation)]
        further, _ = _images(PUBLISHED["histogram_samples"], settings.size, cell.seed + 1_000_000, cell.model)
        return RegimeData(parts, factors[-len(parts.test) :], validation, further)

    def objective(self, cell: RegimeCell, samples: int, settings: RegimeSettings) -> Objective:
        return balanced(beta_elbo, size=settings.size, reference=settings.balanced_size)

    def training_of(self, cell: RegimeCell, settings: RegimeSettings) -> RegimeSettings:
        """The finishing epochs, if there are any: `before_training` trains the others."""
        if not settings.finishing_epochs:
            return settings
        epochs = settings.finishing_epochs
        return replace(settings, epochs=epochs, patience=epochs, learning_rate=0.1 * settings.learning_rate)

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
            x, auxiliary = member.split_auxiliary(data[member.seed].observations.test[:1000])
            found = _verified(encode(member, x, auxiliary), resamples=20)  # only the distance is needed
            distances = {name: found[name].distance if found[name].latents else 0.0 for name in CLAIMED}
            return {"active": float(found.kind.count("active")), "mixed": float(found.kind.count("mixed")), **distances}

        return measure

    def measure(
        self, cell: RegimeCell, member: Member, data: FactorData, settings: RegimeSettings
    ) -> RegimeMeasurement:
        assert isinstance(data, RegimeData)
        x, auxiliary = member.split_auxiliary(data.observations.test)
        judged = regime.of_model(member, x, auxiliary=auxiliary)
        encoded = encode(member, x, auxiliary)
        advice = regime.advise(member, x, auxiliary=auxiliary, samples=200)
        active, passive = _histograms(judged, encoded, member.seed)
        on_means, on_draws = _accuracies(member, data, judged)
        statements = _verified(encode(member, *member.split_auxiliary(data.further))).statements
        recorded = {name: tuple(values) for name, values in member.history.items()}
        return RegimeMeasurement(
            per_latent=PerLatent(
                kind=tuple(judged.kind),
                kl=_floats(judged.kl),
                variance_ratio=_floats(judged.variance_ratio),
                optimal_variance_ratio=_floats(_optimal_ratios(member, encoded, settings)),
                effect=_floats(judged.effect),
                prior_variance=_floats(encoded.prior_variance.mean(0)),
                baseline_rules={name: tuple(kinds) for name, kinds in judged.baseline_rules.verdicts().items()},
            ),
            boundary=int(judged.boundary.sum()),
            collapse=judged.collapse.kind,
            truncation=Truncation(
                used=advice.latents,
                sufficient=advice.latents_by_elbo,
                error=_floats(advice.error),
                elbo=_floats(() if advice.elbo is None else advice.elbo),
            ),
            statements={
                name: StatementRow(s.verdict, s.tolerance, Distance(s.distance, s.low, s.high) if s.latents else None)
                for name, s in statements.items()
            },
            active_histograms=active,
            passive_histograms=passive,
            mean_accuracy=on_means,
            sampled_accuracy=on_draws,
            curve=RegimeCurve(
                recorded.get("active", ()),
                recorded.get("mixed", ()),
                {name: recorded[name] for name in CLAIMED if name in recorded},
            ),
        )

    def claims(self, settings: RegimeSettings) -> Sequence[Spec]:
        """All claims that these settings are about."""
        about = [(name, model) for model in MODELS for name in CLAIMED]
        about.remove(("Proposition 2 (ii)", "ivae-mean"))  # its prior mean is learned
        return [*(_statement_claim(*claim) for claim in about), *_count_claims(settings), *_use_claims()]

    def figures(self, results: Sequence[RegimeResult], settings: RegimeSettings) -> list[ReportFigure]:
        return _figures(results, settings)

    def tables(self, results: Sequence[RegimeResult], settings: RegimeSettings) -> list[ReportTable]:
        return _tables(results, settings)


def _images(count: int, size: int, seed: int, model: str) -> tuple[Float[Tensor, "N n"], Float[Tensor, "N k"]]:
    """Pixels with, for iVAEs, the factors from -1 to 1; and the factors."""
    renderer = DSprites(size=size)
    drawn = renderer.sample(count, seed=seed, distributions="grid")
    pixels = drawn.images.flatten(1)
    if model == "vae":
        return pixels, drawn.factors
    low, high = torch.tensor([(factor.low, factor.high) for factor in renderer.factors]).T
    auxiliary = (2 * (drawn.factors - low) / (high - low) - 1).float()
    return torch.cat([pixels, auxiliary], dim=1), drawn.factors


def _floats(values: object) -> tuple[float, ...]:
    return tuple(np.asarray(values, float).tolist())


def _optimal_ratios(member: LatentModel, encoded: EncodedSample, settings: RegimeSettings) -> Float[Tensor, " d"]:
    """Optimal posterior variance over prior variance, given the decoder: 1 / (1 + σ†² w Σ_i J_ij² / (x̂_i (1 - x̂_i))).

    w is the weight on the log-likelihood. Below 1 only for latents that the decoder responds to. At 64 test images.
    """
    rows = slice(64)
    z = encoded.mean[rows].double()
    output, J = member.decode(z), jacobian(member.decode, z)
    weights = (settings.balanced_size / settings.size) ** 2 / (output * (1 - output)).clamp(min=1e-6)
    information = (J.square() * weights.unsqueeze(2)).sum(1)
    return (1 / (1 + encoded.prior_variance[rows].double() * information)).log().mean(0).exp().detach()


def _verified(encoded: EncodedSample, resamples: int = 200) -> Verification:
    return regime.verify(
        encoded.mean,
        encoded.variance,
        prior_mean=encoded.prior_mean,
        prior_variance=encoded.prior_variance,
        resamples=resamples,
    )


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

    def histogram(latent: int, names: Sequence[str]) -> Histogram:
        """Counts in bins that all quantities share."""
        columns = {name: values[name][:, latent].numpy() for name in names}
        low = min(float(v.min()) for v in columns.values())
        high = max(float(v.max()) for v in columns.values())
        edges = np.linspace(low, high if high > low else low + 1e-6, 61)
        return Histogram(_floats(edges), {name: _floats(np.histogram(v, edges)[0]) for name, v in columns.items()})

    active, passive = (
        None if k is None else {panel: histogram(k, names) for panel, names in PANELS.items()}
        for k in (next(iter(judged.active), None), next(reversed(judged.passive), None))
    )
    return active, passive


def _accuracies(member: Member, data: RegimeData, judged: regime.Regime) -> tuple[Accuracy, Accuracy]:
    """Accuracy of classifiers of shape and scale, on mean codes and on sampled codes.

    Trained on validation codes, tested on test codes. On sampled codes too, because a classifier that ignores scale can
    read changes of a mean that are far below the noise of its latent.
    """
    parts = data.observations.validation, data.observations.test
    encoded = [encode(member, *member.split_auxiliary(part)) for part in parts]
    generator = randomness.generator(member.seed, "downstream")
    sampled = [e.mean + e.variance.sqrt() * torch.randn(e.mean.shape, generator=generator) for e in encoded]

    def accuracy(codes: Sequence[Tensor], latents: list[int]) -> float:
        scores = []
        for name in ("shape", "scale"):
            column = DSprites().factor_names.index(name)
            labels = [(100 * f[:, column]).round().long().numpy() for f in (data.validation_factors, data.test_factors)]
            train, test = (c[:, sorted(latents)].numpy() for c in codes)
            classifier = HistGradientBoostingClassifier(max_iter=30, random_state=0).fit(train, labels[0])
            scores.append(classifier.score(test, labels[1]))
        return float(np.mean(scores))

    def of_kinds(codes: Sequence[Tensor]) -> Accuracy:
        used, passive = (accuracy(codes, own) if own else None for own in (judged.used, judged.passive))
        return Accuracy(accuracy(codes, list(range(judged.latent_dim))), used, passive)

    return of_kinds([e.mean for e in encoded]), of_kinds(sampled)


# claims ---------------------------------------------------------------------------------------

PAPER = "Bonheme & Grzes 2023"
number_settled = settled("number of active latents", lambda r: r.measured.curve.active, tolerance=0.0)


def must_last(
    curves: Callable[[Results, RegimeSettings], Sequence[Sequence[float]]],
    reason: Callable[[int], str | None],
    *,
    limit: float = 0.0,
) -> Callable[[Results, RegimeSettings], str | None]:
    """A condition: what refutes a claim was there after every epoch of the last third, so that it is no accident.

    One of the curves must stay above the limit; `reason` says, given their number, why the claim is undecided if none
    does, or None. A regime in which latents stay between kinds never settles, but its contradictions last.
    """

    def condition(results: Results, settings: RegimeSettings) -> str | None:
        found = curves(results, settings)
        late = [curve[-settings.late_epochs :] for curve in found]
        why = reason(len(found))
        if why is None or any(len(values) >= FEWEST_LATE and min(values) > limit for values in late):
            return None
        return TOO_SHORT if settings.late_epochs < FEWEST_LATE else why

    return condition


def _statement_claim(name: str, model: str) -> Spec:
    """The distance of every member that has latents of the kind that the statement is about."""
    _, tolerance_name, sentence = STATEMENTS[name]
    tolerance: float = getattr(Tolerances(), tolerance_name)

    def intervals(results: Results, _: object) -> list[Interval]:
        rows = [(r.cell, r.measured.statements[name].distance) for r in results if r.cell.model == model]
        return [Interval(f"{c.title}, seed {c.seed}:", d.value, d.low, d.high) for c, d in rows if d is not None]

    def contradicting(results: Results, _: object) -> list[tuple[float, ...]]:
        found = [(m.statements[name].distance, m.curve.distances.get(name, ())) for m in of_model(results, model)]
        return [curve for distance, curve in found if distance is not None and distance.low > tolerance]

    def short_lived(members: int) -> str | None:
        contradict = f"{members} members contradict" if members > 1 else "1 member contradicts"
        return f"{contradict} the statement at the end, but not after every late epoch." if members else None

    return ClaimSpec(
        sentence=f"{MODELS[model]}: {sentence[0].lower()}{sentence[1:]}",
        source=f"{PAPER}, {name}",
        measure=intervals,
        criterion=IntervalsBelow("distance of the worst latent from the statement", tolerance),
        note=(lambda results, _: passive_variance_note(results, model)) if name == "Proposition 3 (i)" else "",
        requires=(
            lambda results, settings: None if intervals(results, settings) else "No member has latents of this kind.",
            must_last(contradicting, short_lived, limit=tolerance),
        ),
    )


def passive_variance_note(results: Results, model: str) -> str:
    """How wide the posteriors of passive latents would be if they were optimal for the decoder."""
    found, optimal = (
        [ratio for own in of_passive(of_model(results, model), values) for ratio in own]
        for values in (lambda own: own.variance_ratio, lambda own: own.optimal_variance_ratio)
    )
    if not found:
        return ""
    return (
        f"Posterior variances of passive latents are {show(median(found))} of the prior's in the median. Optimal for "
        f"the decoder would be {show(median(optimal))}: below 1 where the decoder still responds to them."
    )


def boundary_note(results: Results, _: object) -> str:
    boundary, total = sum(r.measured.boundary for r in results), sum(r.cell.latents for r in results)
    return f"{boundary} of {total} latents are close to a boundary: other thresholds would change their kind."


@dataclass(frozen=True)
class Pair:
    """Members of one model with fewer and with more latents, or with a lower and a higher β."""

    before: Results
    after: Results

    @property
    def gain(self) -> float:
        """Active latents (median over seeds) of the second less those of the first."""
        return median(active_counts(self.after)) - median(active_counts(self.before))

    def gains_by_epoch(self) -> list[float]:
        """The same along training."""
        curves = [zip(*(r.measured.curve.active for r in own), strict=False) for own in (self.before, self.after)]
        return [median(second) - median(first) for first, second in zip(*curves, strict=False)]


Pairs = Callable[[Results, RegimeSettings], list[Pair]]


def pairs_of(results: Results, settings: Sequence[tuple[tuple[int, float], tuple[int, float]]]) -> list[Pair]:
    """VAE and iVAE with each pair of (latents, β).

    Only where every model with the first has latents that it does not use: one that uses all may need more.
    """
    pairs = [
        Pair(select(results, model, *first), select(results, model, *second))
        for first, second in settings
        for model in COMPARED
    ]
    return [p for p in pairs if p.before and p.after and all(r.measured.count("passive") for r in p.before)]


def pairs_by_latents(results: Results, settings: RegimeSettings) -> list[Pair]:
    """All pairs of a narrower and a wider model."""
    beta, sizes = settings.betas[0], sorted(set(settings.latents))
    return pairs_of(results, [((few, beta), (many, beta)) for few in sizes for many in sizes if few < many])


def pairs_by_beta(results: Results, settings: RegimeSettings) -> list[Pair]:
    lowest, *others = sorted(set(settings.betas))
    latents = settings.latents[0]
    return pairs_of(results, [((latents, lowest), (latents, higher)) for higher in others])


def active_note(results: Results, settings: RegimeSettings) -> str:
    """Active latents by the number of latents, for VAE and iVAE, and which model of a pair is not at its optimum."""

    def counts(model: str) -> str:
        sizes = [(n, select(results, model, n, settings.betas[0])) for n in sorted(set(settings.latents))]
        return ", ".join(f"{median(active_counts(own)):g} of {n}" for n, own in sizes if own)

    active = "Active latents: " + "; ".join(f"{MODELS[model]} {counts(model)}" for model in COMPARED) + "."
    gaining = [pair for pair in pairs_by_latents(results, settings) if pair.gain > 0]
    return " ".join([active, *filter(None, map(optimum_note, gaining))])


def optimum_note(pair: Pair) -> str:
    """Which of the two is not at its optimum, by the ELBO of the wider model with as many latents and with all."""
    few, many = pair.before[0].cell, pair.after[0].cell
    elbos = [[r.measured.truncation.elbo for r in members] for members in (pair.before, pair.after)]
    if not all(curve for group in elbos for curve in group):
        return ""
    own, cut = (median([curve[few.latents] for curve in group]) for group in elbos)
    full = median([curve[-1] for curve in elbos[1]])
    if cut > own:
        return (
            f"{many.title}, cut to its {few.latents} most used latents, has an ELBO of {show(cut)} nats against "
            f"{show(own)} of {few.title}: the narrower model ended in a worse optimum than {few.latents} latents allow."
        )
    compared = f"{many.title} has an ELBO of {show(full)} nats against {show(own)} of {few.title}"
    return f"{compared}: its further active latents {'raise' if full > own else 'do not raise'} the ELBO."


def _gain_claim(
    sentence: str, source: str, pairs: Pairs, where: str, note: str | Callable[[Results, RegimeSettings], str] = ""
) -> Spec:
    return ClaimSpec(
        sentence=sentence,
        source=source,
        measure=lambda results, settings: [pair.gain for pair in pairs(results, settings)],
        criterion=Bound(f"gain of active latents {where}", at_most(0.0), statistic="largest", over="pairs of models"),
        note=note,
        requires=(
            must_last(
                lambda results, settings: [p.gains_by_epoch() for p in pairs(results, settings) if p.gain > 0],
                lambda _: "No pair of models differs in the number of active latents after every late epoch.",
            ),
        ),
    )


def _count_claims(settings: RegimeSettings) -> list[Spec]:
    claims = [
        ClaimSpec(
            sentence="No latent is mixed on this data.",
            source=f"{PAPER}, appendix B",
            measure=lambda results, _: [float(r.measured.count("mixed")) for r in results],
            criterion=Bound("number of mixed latents", at_most(0.0), statistic="largest"),
            published=PUBLISHED["mixed_latents"],
            note=boundary_note,
            requires=(
                must_last(
                    lambda results, _: [r.measured.curve.mixed for r in results],
                    lambda _: "No member has mixed latents after every late epoch.",
                ),
            ),
        ),
        _gain_claim(
            "Models with more latents do not have more active latents.",
            f"{PAPER}, Theorem 1",
            pairs_by_latents,
            "in a wider model",
            active_note,
        ),
    ]
    if len(settings.betas) > 1:
        claims.append(
            _gain_claim(
                "Models with a higher β do not have more active latents.",
                "Beyond the paper",
                pairs_by_beta,
                "at a higher β",
            )
        )
    return claims


def leak_note(results: Results, _: object) -> str:
    """What classifiers read from passive latents alone."""
    asked = (("means of VAEs", "vae", "mean codes"), ("means of iVAEs", "ivae", "mean codes"))
    found = {
        words: [v for m in of_model(results, model) if (v := m.accuracies[codes].passive) is not None]
        for words, model, codes in (*asked, ("samples of iVAEs", "ivae", "sampled codes"))
    }
    if not all(found.values()):
        return ""
    listed = ", ".join(f"{show(median(values))} on {words}" for words, values in found.items())
    return (
        f"On passive latents alone the accuracy is {listed} (chance is 0.25). Mean and variance of an iVAE's passive "
        "latents follow p(z | factors), so a classifier can read the factors from them."
    )


def _dropping(
    model: str, codes: str, words: str, source: str, note: str | Callable[[Results, object], str] = ""
) -> Spec:
    """Accuracy on all latents less that on used latents, of members that have both used and passive latents."""

    def accuracy_lost(results: Results, _: object) -> list[float]:
        own = [m.accuracies[codes] for m in of_model(results, model) if m.count("passive")]
        return [a.all_latents - a.used for a in own if a.used is not None]

    return ClaimSpec(
        sentence=f"Dropping passive latents does not hurt a classifier on {words}.",
        source=source,
        measure=accuracy_lost,
        criterion=Bound("loss of accuracy", at_most(0.01), statistic="largest"),
        note=note,
    )


def _use_claims() -> list[Spec]:
    return [
        _dropping(
            "vae",
            "mean codes",
            "the mean codes of a VAE",
            "Bonheme & Grzes 2021, cited by the paper",
            "Decision trees ignore scale: they can read changes of a mean that are far below the noise of its latent.",
        ),
        _dropping("ivae", "mean codes", "the mean codes of an iVAE", "Beyond the paper", leak_note),
        _dropping("vae", "sampled codes", "the sampled codes of a VAE", "Beyond the paper"),
        ClaimSpec(
            sentence="The decoder ignores passive latents.",
            source="Beyond the paper: passive latents, seen from the decoder",
            measure=lambda results, _: [
                max(abs(e) for e in own) for own in of_passive([r.measured for r in results], lambda own: own.effect)
            ],
            criterion=Bound(
                "effect of a passive latent drawn from its prior, as a share of the data's variance,",
                at_most(0.01),
                statistic="largest",
            ),
            note="The effect is the absolute change of the squared error: a decoder that improves is not ignoring it.",
            requires=(number_settled,),
        ),
        ClaimSpec(
            sentence="A rule on the posterior variance alone misjudges the passive latents of an iVAE.",
            source="Beyond the paper; the authors' code has such a rule",
            measure=lambda results, _: [
                sum(kind != "passive" for kind in own) / len(own)
                for own in of_passive(of_model(results, "ivae"), lambda own: own.baseline_rules[VARIANCE_RULE])
            ],
            criterion=Bound(f"share of passive latents that '{VARIANCE_RULE}' does not call passive", above(0.5)),
            requires=(number_settled,),
        ),
        ClaimSpec(
            sentence="The prior variance of an iVAE's passive latents stays close to zero.",
            source=f"{PAPER}, appendix B, on Fig. 1",
            measure=lambda results, _: [
                median(own) for own in of_passive(of_model(results, "ivae"), lambda own: own.prior_variance)
            ],
            criterion=Bound("prior variance of passive latents", at_most(0.2)),
            published=PUBLISHED["prior_variance"],
            requires=(number_settled,),
        ),
    ]


# tables ---------------------------------------------------------------------------------------


def figure_members(results: Results, settings: RegimeSettings) -> list[RegimeResult]:
    """One member of each model, with the first number of latents and the first β: its first finished seed."""
    groups = [select(results, model, settings.latents[0], settings.betas[0]) for model in MODELS]
    return [min(group, key=lambda r: r.cell.seed) for group in groups if group]


def _tables(results: Results, settings: RegimeSettings) -> list[ReportTable]:
    members, accuracies, statements = [], [], []
    for r in results:
        measured, head = r.measured, {"model": r.cell.title, "seed": r.cell.seed}
        members.append(
            {
                **head,
                **{kind: measured.count(kind) for kind in ("active", "passive", "mixed")},
                "close to a boundary": measured.boundary,
                "in use": measured.truncation.used,
                "sufficient by ELBO": measured.truncation.sufficient,
                "ELBO": r.elbo,
                "collapse": measured.collapse,
            }
        )
        own = measured.accuracies.items()
        kinds = (("all", "all_latents"), ("used", "used"), ("passive", "passive"))
        accuracies.append(head | {f"{codes}: {kind}": getattr(a, name) for codes, a in own for kind, name in kinds})
        found = {
            name.replace("Proposition", "P").replace("Theorem", "T"): measured.statements[name] for name in STATEMENTS
        }
        statements.append(
            head
            | {
                n: s.verdict if s.distance is None else f"{show(s.distance.value)} {s.verdict}"
                for n, s in found.items()
            }
        )
    latents = [
        {
            "model": MODELS[r.cell.model],
            "latent": k,
            "kind": latent.kind[k],
            "KL": latent.kl[k],
            "σ²/σ†²": latent.variance_ratio[k],
            "σ†²": latent.prior_variance[k],
            "effect": latent.effect[k],
            **{name: verdicts[k] for name, verdicts in latent.baseline_rules.items()},
        }
        for r in figure_members(results, settings)
        for latent in [r.measured.per_latent]
        for k in sorted(range(r.cell.latents), key=lambda k: -latent.kl[k])
    ]
    classifiers = "Accuracy of classifiers of shape and scale (chance is 0.25), on mean codes and on sampled codes"
    return [
        ReportTable("Every member", members),
        ReportTable(classifiers, accuracies),
        ReportTable("Every statement: distance of the worst latent, and verdict", statements),
        ReportTable("Every latent of the models in the figures", latents),
    ]


# figures --------------------------------------------------------------------------------------


def _figures(results: Results, settings: RegimeSettings) -> list[ReportFigure]:
    captions = {
        "latents": (
            "Every latent of every member: its KL against the ratio of posterior and prior variance. A polarised model "
            "has two groups with little between them. Right: the posterior variance by itself, where the passive "
            "latents of an iVAE have the small values that active latents of a VAE have."
        ),
        "passive": (
            "One passive latent of each model (Figs. 1 and 4 of the paper): its means, its posterior and prior "
            "variances, and samples from its posterior and prior."
        ),
        "active": (
            "One active latent of each model (Figs. 2 and 3 of the paper): its posterior variance is far below that of "
            "the prior, and its samples are distributed like its means."
        ),
        "counts": (
            "Number of active latents over the number of latents and over β: medians over seeds, with a band where "
            "seeds differ."
        ),
        "truncation": (
            "What every latent adds, most used ones first, without retraining: squared error at the mean code, and "
            "ELBO of the truncated code. Dotted: the number of latents in use. If the prior mean is learned from the "
            "factors, even a code without latents reconstructs, because the prior already knows the image."
        ),
    }
    drawn, members = (
        {"latents": _latent_map(results), "counts": _counts(results, settings)},
        figure_members(results, settings),
    )
    if members:
        drawn["passive"] = _histogram_figure(members, "passive", lambda m: m.passive_histograms)
        drawn["active"] = _histogram_figure(members, "active", lambda m: m.active_histograms)
        drawn["truncation"] = _truncation(members)
    return [ReportFigure(f"regime_{name}", drawn[name], captions[name]) for name in captions if name in drawn]


def _latent_map(results: Results) -> Figure:
    """All latents of every model, and the iVAE's again by their variances alone."""
    figure, axes = figures.row_of_panels(len(MODELS) + 1, width=3.9, height=3.8)
    smallest = 1e-4  # nats; smaller values are drawn here
    colours = {"active": "#d1592b", "passive": "#1f5fa8", "mixed": "#2c8a5b"}
    panels = [*((*model, "σ²/σ†²") for model in MODELS.items()), ("ivae", "iVAE, not relative to its prior", "σ²")]
    for axis, (model, title, x) in zip(axes, panels, strict=True):
        latents = [m.per_latent for m in of_model(results, model)]
        for kind, colour in colours.items():
            across, up = [], []
            for own in latents:
                scales = own.prior_variance if x == "σ²" else (1.0,) * len(own.kind)
                across += own.of_kind(kind, [r * s for r, s in zip(own.variance_ratio, scales, strict=True)])
                up += [max(value, smallest) for value in own.of_kind(kind, own.kl)]
            axis.plot(across, up, "o", color=colour, markersize=5, alpha=0.6, label=kind)
        figures.format_axis(axis, title=title, x=x, y="KL in nats", log="xy", legend=False)
        axis.set_ylim(smallest / 2, 10)
        if x != "σ²":
            axis.set_xlim(1e-3, 3)
    figures.shared_legend(figure, axes[0])
    return figure


def _histogram_figure(
    members: Results, kind: str, pick: Callable[[RegimeMeasurement], LatentHistograms | None]
) -> Figure:
    """A row per model, a column per panel."""
    figure, axes = figures.grid_of_panels(len(members), len(PANELS), width=4.0, height=2.5)
    for row, result in enumerate(members):
        found = pick(result.measured)
        own = axes[row * len(PANELS) : (row + 1) * len(PANELS)]
        for axis, panel in zip(own, PANELS, strict=True):
            histogram = None if found is None else found[panel]
            title = MODELS[result.cell.model] if panel == "means" else ""
            axis.set_yticks([])
            axis.xaxis.set_major_locator(MaxNLocator(5))
            if histogram is None:
                axis.text(0.5, 0.5, f"no {kind} latent", ha="center", transform=axis.transAxes)
            else:
                hidden = {"mean"} if (kind, panel) == ("passive", "samples") else set()
                _draw_histogram(axis, histogram.edges, {n: c for n, c in histogram.counts.items() if n not in hidden})
            figures.format_axis(axis, title=title, x="", y="", log="", legend=histogram is not None)
    return figure


def _draw_histogram(axis: Axes, edges: Sequence[float], counts: Mapping[str, Sequence[float]]) -> None:
    labels = {
        "mean": "μ",
        "variance": "posterior variance σ²",
        "prior_variance": "prior variance σ†²",
        "sample": "z from the posterior",
        "prior_sample": "z† from the prior",
    }
    for (name, own), colour in zip(counts.items(), figures.COLOURS, strict=False):
        with mpl.rc_context({"lines.linewidth": 1.4}):
            axis.stairs(own, edges, label=labels[name], color=colour, fill=True, alpha=0.35)
            axis.stairs(own, edges, color=colour, linewidth=1.2)


def _counts(results: Results, settings: RegimeSettings) -> Figure:
    figure, axes = figures.row_of_panels(2, width=4.6)
    latents, beta = settings.latents[0], settings.betas[0]
    widths = {float(n): (n, beta) for n in sorted(settings.latents)}
    betas = {b: (latents, b) for b in sorted(settings.betas)}
    highest = max([5, *(r.measured.count("active") for r in results if r.cell.model in COMPARED)])
    for axis, settings_at, label in ((axes[0], widths, "number of latents"), (axes[1], betas, "β")):
        for index, model in enumerate(COMPARED):
            values = [active_counts(select(results, model, *at)) for at in settings_at.values()]
            shifted = [x * (1 + 0.01 * (2 * index - 1)) for x in settings_at]
            figures.plot_median_and_range(axis, shifted, values, label=MODELS[model], dashed=bool(index))
        figures.format_axis(axis, title="Active latents", x=label, y="active", log="")
        axis.set_ylim(0, highest + 1)
        axis.set_xticks(list(settings_at))
        axis.legend(loc="lower right")
    return figure


def _truncation(members: Sequence[RegimeResult]) -> Figure:
    figure, axes = figures.row_of_panels(2, width=4.6)
    for index, (result, colour) in enumerate(zip(members, figures.COLOURS, strict=False)):
        found, label = result.measured.truncation, MODELS[result.cell.model]
        for axis, values in zip(axes, (found.error, found.elbo), strict=True):
            axis.plot(np.arange(len(values)), values, "-o", markersize=4, color=colour, label=label)
            axis.axvline(found.used + 0.06 * (index - 1), color=colour, linestyle=":", linewidth=1.2)
    figures.format_axis(axes[0], title="Reconstruction", x="latents kept", y="squared error per image", log="")
    figures.format_axis(axes[1], title="ELBO", x="latents kept", y="nats", log="")
    return figure


EXPERIMENT = PolarisedRegimeExperiment()
