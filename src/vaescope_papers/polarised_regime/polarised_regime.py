"""The polarised regime of VAEs and iVAEs on images (Bonheme & Grzes 2023, Figs. 1 to 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

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
from vaescope.regime.verify import STATEMENTS, Verification
from vaescope.report import figures
from vaescope.theory import jacobian
from vaescope.training import MemberSpec
from vaescope.training.loop import EpochMetrics
from vaescope_papers.claims import show
from vaescope_papers.experiment import ReportFigure, ReportTable
from vaescope_papers.polarised_regime import EXPERIMENTS
from vaescope_papers.polarised_regime.judged import (
    COMPARED,
    MODELS,
    PANELS,
    PUBLISHED,
    THRESHOLDS,
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
    Results,
    Spec,
    StatementRow,
    Truncation,
    active_counts,
    judged_statements,
    of_model,
    select,
)
from vaescope_papers.results import DIVERGED
from vaescope_papers.trained import FactorData, TrainedExperiment, TrainingStack, train_stack

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
        "five factors of an image; the variance of their prior p(z | factors) is learned, and its mean is fixed at 0, "
        "as in the paper, or learned. Histograms show one active and one passive latent of each model. Every statement "
        "of the paper is measured as the distance of the worst latent, relative to the prior, and judged over seeds; "
        "the members of one seed share their images and count as one unit. What counts as active is a choice: latents "
        "are also labelled by thresholds from 0.01 to 0.3 nats, and as printed, by σ ≪ 1. The quick and laptop "
        "profiles have images of 32 x 32 pixels, with the log-likelihood weighted by 4 so that it counts as much "
        "against the KL as at 64 x 64, and about 1,100 and 30,000 steps at a learning rate of 1e-3, which decays; the "
        "laptop profile adds 15,000 steps from 1e-4 on, along which the statements are measured after every epoch. The "
        "paper has 300,000 steps at 1e-4. Under a rate that decays every curve flattens, so whether a member has "
        "converged is not known: such runs decide neither a statement that their members agree with nor one that they "
        "contradict. Steps of the proofs need no training: counter-examples to them are the last claims. The authors "
        "publish no results beyond their figures, each of one latent of one iVAE."
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
        """The regime after every epoch: verdicts about it must last."""

        def measure(epoch: int, member: Member) -> dict[str, float]:
            x, auxiliary = member.split_auxiliary(data[member.seed].observations.test[:1000])
            found = _verified(encode(member, x, auxiliary), resamples=20)  # only the distance is needed
            distances = {name: found[name].distance if found[name].latents else 0.0 for name in STATEMENTS}
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
                variance=_floats(encoded.variance.mean(0)),
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
                {name: recorded[name] for name in STATEMENTS if name in recorded},
            ),
        )

    def claims(self, settings: RegimeSettings) -> Sequence[Spec]:
        return judged_statements(settings)

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
    distances = (
        "Every statement: distance of the worst latent of each member, and whether its 95 % interval over images is "
        "within the tolerance (holds) or beyond it (fails)"
    )
    return [
        ReportTable("Every member", members),
        ReportTable("Latents in use by the threshold of what counts as used", _by_threshold(results)),
        ReportTable(classifiers, accuracies),
        ReportTable(distances, statements),
        ReportTable("Every latent of the models in the figures", latents),
    ]


def _by_threshold(results: Results) -> list[dict[str, object]]:
    """For every member: how many latents are above each threshold, and the widest of them."""
    rows = []
    for r in results:
        own = r.measured.per_latent
        row: dict[str, object] = {"model": r.cell.title, "seed": r.cell.seed}
        for threshold in THRESHOLDS:
            used = [k for k in range(r.cell.latents) if own.kl[k] > threshold]
            ratio, variance = (
                max((values[k] for k in used), default=math.nan)
                for values in (own.variance_ratio, own.absolute_variance)
            )
            row[f"above {threshold:g} nats: latents; largest σ²/σ†²; largest σ²"] = (
                f"{len(used)}; {show(ratio)}; {show(variance)}"
            )
        rows.append(row)
    return rows


# figures --------------------------------------------------------------------------------------


def _figures(results: Results, settings: RegimeSettings) -> list[ReportFigure]:
    captions = {
        "latents": (
            "Every latent of every member: its KL against the ratio of posterior and prior variance. A polarised model "
            "would have two groups with little between them. Right: the posterior variance by itself. Colours are "
            "labels with a threshold of 0.05 nats, drawn as a line."
        ),
        "passive": (
            "One passive latent of each model (Figs. 1 and 4 of the paper), the one with the lowest KL: its means, its "
            "posterior and prior variances, and samples from its posterior and prior."
        ),
        "active": (
            "One active latent of each model (Figs. 2 and 3 of the paper), the one with the highest KL: its means, its "
            "posterior and prior variances, and samples from its posterior and prior."
        ),
        "counts": (
            f"Number of active latents, labelled at 0.05 nats, over {_varied(settings)}: medians over seeds, with a "
            "band where seeds differ."
        ),
        "truncation": (
            "What every latent adds, most used ones first, without retraining: squared error at the mean code, and "
            "ELBO of the truncated code. Dotted: the number of latents in use at 0.05 nats. A code without latents is "
            "the prior's mean, which may be learned from the factors of the image."
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
        latents = [r.measured.per_latent for r in of_model(results, model)]
        for kind, colour in colours.items():
            across, up = [], []
            for own in latents:
                scales = own.prior_variance if x == "σ²" else (1.0,) * len(own.kind)
                across += own.of_kind(kind, [r * s for r, s in zip(own.variance_ratio, scales, strict=True)])
                up += [max(value, smallest) for value in own.of_kind(kind, own.kl)]
            axis.plot(across, up, "o", color=colour, markersize=5, alpha=0.6, label=kind)
        axis.axhline(0.05, color="#aab3bb", linewidth=0.9)
        axis.set_ylim(smallest / 2, 10)
        if x != "σ²":
            axis.set_xlim(1e-4, 3)
        figures.format_axis(axis, title=title, x=x, y="KL in nats", log="xy", legend=False)
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


def _varied(settings: RegimeSettings) -> str:
    return "the number of latents" if len(settings.betas) == 1 else "the number of latents and over β"


def _counts(results: Results, settings: RegimeSettings) -> Figure:
    latents, beta = settings.latents[0], settings.betas[0]
    panels = {
        "number of latents": {float(n): (n, beta) for n in sorted(settings.latents)},
        "β": {b: (latents, b) for b in sorted(settings.betas)},
    }
    shown = {label: own for label, own in panels.items() if label != "β" or len(own) > 1}
    figure, axes = figures.row_of_panels(len(shown), width=4.6 if len(shown) > 1 else 7.5)
    highest = max([5, *(r.measured.count("active") for r in results if r.cell.model in COMPARED)])
    for axis, (label, settings_at) in zip(axes, shown.items(), strict=True):
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
