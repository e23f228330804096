"""Self-consistency of trained VAEs (Reizinger et al. 2022, §4.1, Fig. 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from vaescope import metrics, theory
from vaescope.core import randomness
from vaescope.data.mixings import OrthogonalMLP
from vaescope.distributions import Normal
from vaescope.models import VAE, Member
from vaescope.report import figures
from vaescope_papers.claims import ClaimSpec, ClaimSpecs, PublishedRuns, Statement
from vaescope_papers.criteria import Bound, PairedDifference, at_least, at_most, within
from vaescope_papers.embrace_the_gap import EXPERIMENTS, PAPER
from vaescope_papers.embrace_the_gap.shared import (
    DIM,
    PrecisionCell,
    PrecisionExperiment,
    PrecisionSettings,
    by_precision,
    medians_by_precision,
    mixed_sources,
    plot_over_precision,
    values_by_precision,
)
from vaescope_papers.experiment import ReportFigure, ReportTable
from vaescope_papers.results import Result, grouped, paired_differences
from vaescope_papers.statistics import Comparison, column, compare_precisions, median, published, slope
from vaescope_papers.trained import FactorData

EXACT_PRECISIONS = (1e2, 1e3, 1e4, 1e5, 1e6)


@dataclass(frozen=True)
class SelfConsistencySettings(PrecisionSettings):
    """The paper profile has the published settings."""

    exact_points: int = 50
    """Test points at which everything is also solved exactly."""


@dataclass(frozen=True)
class Limits:
    """Distances from the limits γ → ∞ of one decoder, per precision of `EXACT_PRECISIONS`."""

    gap_error: tuple[float, ...]
    variance_error: tuple[float, ...]
    variance: tuple[float, ...]


@dataclass(frozen=True)
class SelfConsistencyMeasurement:
    """What is measured of one member; tuples have an entry per latent."""

    posterior_variance: tuple[float, ...]
    predicted_variance: tuple[float, ...]
    """By Eq. 12, from the decoder alone."""
    reconstruction_mse: float
    ima_contrast: float
    mcc_mean: float
    mcc_sampled: float
    exact_variance: tuple[float, ...]
    """Of the exact projection of the trained decoder."""
    exact_converged: float
    exact_reconstruction_mse: float
    elbo_star: float
    log_marginal: float
    family_gap: float
    amortisation_gap: float
    local_contrast: float
    limits: Limits | None = None
    """Of members at the highest precision."""


SelfConsistencyResult = Result[PrecisionCell, SelfConsistencyMeasurement]
Results = Sequence[SelfConsistencyResult]
Value = Callable[[SelfConsistencyMeasurement], float]


# measurements ---------------------------------------------------------------------------------


def _per_latent(values: Tensor) -> tuple[float, ...]:
    """The mean over samples of every latent."""
    return tuple(float(values[:, k].mean()) for k in range(DIM))


def _limits(member: Member, z: Tensor) -> Limits:
    """Fix the decoder and vary γ²: the distance of gap and variance from their limits, on the decoder's image."""
    x, contrast = member.decode(z), theory.ima_contrast(member.decode, z)
    count = len(EXACT_PRECISIONS)
    every_x, start = (values.repeat(count, 1) for values in (x, z))  # all γ² in one call
    precision = torch.tensor(EXACT_PRECISIONS, dtype=x.dtype).repeat_interleave(len(x))
    best = theory.project(member.decode, every_x, precision=precision, start=start)
    likelihood = theory.log_marginal(member.decode, every_x, precision=precision, start=best.mean).value
    predicted = torch.cat([theory.optimal_variance(member.decode, z, precision=p) for p in EXACT_PRECISIONS])

    def means(values: Tensor) -> tuple[float, ...]:
        """Means over the converged points of each γ²."""
        groups = zip(values.chunk(count), best.converged.chunk(count), strict=True)
        return tuple(float(own[kept].mean()) for own, kept in groups)

    return Limits(
        gap_error=means((likelihood - best.elbo - contrast.repeat(count)).abs()),
        variance_error=means((best.variance / predicted - 1).abs()),
        variance=tuple(math.exp(value) for value in means(best.variance.log())),
    )


# published values -----------------------------------------------------------------------------


def authors_medians() -> dict[str, dict[float, float]]:
    """The published medians of every panel, by γ²."""
    table = published("embrace_the_gap")["self-consistency"]
    return {name: column(table, name) for name in ("posterior_variance", "predicted_variance", "reconstruction_mse")}


def authors_eq12_differences() -> dict[float, float]:
    """|σ² / Eq. 12 − 1|, the median over latents of a run, medians over the authors' runs, by γ²."""
    return column(published("embrace_the_gap")["self-consistency"], "eq12_difference")


def authors_slope(name: str) -> PublishedRuns:
    """The slope of the authors' medians from γ² = 1e2 on."""
    medians = {p: value for p, value in authors_medians()[name].items() if p >= 1e2}
    return PublishedRuns((slope(medians.keys(), medians.values()),), "slope of the medians of 20 runs at each γ²")


# claims ---------------------------------------------------------------------------------------


def geometric_mean(variances: Sequence[float]) -> float:
    """Over latents, so that no latent dominates."""
    return float(np.exp(np.mean(np.log(variances))))


def trained_error(measured: SelfConsistencyMeasurement) -> float:
    return measured.reconstruction_mse


def exact_error(measured: SelfConsistencyMeasurement) -> float:
    return measured.exact_reconstruction_mse


def near_deterministic(results: Results) -> list[SelfConsistencyResult]:
    """The members that claims about the limit are about."""
    return [r for r in results if r.cell.precision >= 1e2]


def precision_slopes(value: Value) -> Callable[[Results, object], list[float]]:
    """The slope of the logarithm of a measured value on log γ², from γ² = 1e2 on, of every seed."""

    def slopes(results: Results, _: object) -> list[float]:
        return [
            slope([r.cell.precision for r in own], [value(r.measured) for r in own])
            for own in grouped(near_deterministic(results), lambda r: r.cell.seed).values()
            if len(own) > 1
        ]

    return slopes


def eq12_differences(results: Results, _: object) -> list[float]:
    """For every seed the largest relative difference of both sides of Eq. 12 over γ²: medians over latents."""

    def difference(measured: SelfConsistencyMeasurement) -> float:
        pairs = zip(measured.posterior_variance, measured.predicted_variance, strict=True)
        return median([abs(found / predicted - 1) for found, predicted in pairs])

    groups = grouped(near_deterministic(results), lambda r: r.cell.seed).values()
    return [max(difference(r.measured) for r in own) for own in groups]


def flatter_slopes(results: Results, _: object) -> list[float]:
    """The slope of the error of the trained encoder minus that of the exact projection, for every seed."""
    trained, exact = (precision_slopes(value)(results, None) for value in (trained_error, exact_error))
    return [own - other for own, other in zip(trained, exact, strict=True)]


def rate_note(results: Results, _: object) -> str:
    """Slopes between successive γ²: whether the error is a power of γ² at all."""

    def steps(medians: Mapping[float, float]) -> str:
        pairs = pairwise(sorted(medians.items()))
        return ", ".join(f"{slope((p, q), (a, b)):.2f}" for (p, a), (q, b) in pairs if p >= 1e2)

    ours = {p: median(errors) for p, errors in values_by_precision(results, trained_error).items()}
    theirs = authors_medians()["reconstruction_mse"]
    return (
        f"Between successive γ² from 1e2 on the slopes of the medians are {steps(ours)} here and {steps(theirs)} in "
        "the published medians: the trained error is no power of γ², and -1 describes an average of a curve that bends."
    )


def exact_limits(results: Results) -> list[Limits]:
    """Of the members at the highest precision."""
    return [r.measured.limits for r in results if r.measured.limits is not None]


def limit_slopes(pick: Callable[[Limits], Sequence[float]]) -> Callable[[Results, object], list[float]]:
    """The slope in γ² of a distance from its limit, for every member at the highest precision."""
    return lambda results, _: [slope(EXACT_PRECISIONS[1:], pick(limits)[1:]) for limits in exact_limits(results)]


def amortisation_rises(results: Results, _: object) -> list[float]:
    """The amortisation gap at the highest γ² minus that at the lowest, for every seed."""
    ends = by_precision(results)
    if len(ends) < 2:
        return []
    return paired_differences(ends[max(ends)], ends[min(ends)], lambda m: m.amortisation_gap, lambda c: c.seed)


# comparisons, tables and figures --------------------------------------------------------------


def self_consistency_figure(results: Results) -> Figure:
    figure, axes = figures.row_of_panels(3)
    variance = "σ² (geometric mean over latents)"
    panels: Sequence[tuple[str, str, Mapping[str, Value], float | None]] = (
        (
            "Posterior variance",
            variance,
            {
                "trained encoder": lambda m: geometric_mean(m.posterior_variance),
                "exact projection": lambda m: geometric_mean(m.exact_variance),
            },
            -1.0,
        ),
        (
            "Both sides of Eq. 12",
            variance,
            {
                "trained encoder σ²": lambda m: geometric_mean(m.posterior_variance),
                "Eq. 12, from the decoder": lambda m: geometric_mean(m.predicted_variance),
            },
            None,
        ),
        (
            "Self-consistency",
            "mean squared x − f(μ(x))",
            {
                "trained encoder": lambda m: m.reconstruction_mse,
                "exact projection": lambda m: m.exact_reconstruction_mse,
            },
            None,
        ),
    )
    for axis, (title, y, curves, power), medians in zip(axes, panels, authors_medians().values(), strict=True):
        dashed = list(curves)[1:]
        plot_over_precision(axis, results, curves, dashed=dashed, title=title, y=y, published=medians, power=power)
    return figure


def gap_figure(results: Results) -> Figure:
    figure, axes = figures.row_of_panels(2, width=5.6)
    plot_over_precision(
        axes[0],
        results,
        {"family: log p − ELBO*": lambda m: m.family_gap, "amortisation: ELBO* − ELBO": lambda m: m.amortisation_gap},
        title="Parts of the gap",
        y="nats per observation",
    )
    limits = exact_limits(results)
    if limits:
        gaps = list(zip(*(own.gap_error for own in limits), strict=True))
        variances = list(zip(*(own.variance_error for own in limits), strict=True))
        figures.plot_median_and_range(axes[1], EXACT_PRECISIONS, gaps, label="|gap − c_IMA|")
        figures.plot_median_and_range(axes[1], EXACT_PRECISIONS, variances, label="|σ² / Eq. 12 − 1|")
        figures.reference_slope(axes[1], EXACT_PRECISIONS, [median(values) for values in gaps], power=-1.0)
    title, x = "Rates, solved exactly", "decoder precision γ²"
    figures.format_axis(axes[1], title=title, x=x, y="distance from the limit", legend=bool(limits))
    return figure


# experiment -----------------------------------------------------------------------------------


class SelfConsistency(PrecisionExperiment[SelfConsistencySettings, SelfConsistencyMeasurement]):
    info = EXPERIMENTS["self-consistency"]
    about = (
        "VAEs are trained on data from a three-layer orthogonal mixing outside the IMA class, at five decoder "
        "precisions γ². As γ² grows the decoder becomes deterministic. Prop. 1 says that the encoder then inverts it: "
        "posterior variances vanish like 1/γ², they take the values that Eq. 12 predicts from the decoder's Jacobian "
        "alone, and decoding the mean encoding returns the observation."
    )
    quick = SelfConsistencySettings(seeds=4, samples=20_000, epochs=100, patience=100).annealed(
        2e-3, hold=2_000, warmup=8_000
    )
    laptop = replace(quick, seeds=5, samples=30_000, epochs=80, patience=80, exact_points=30).annealed(
        2e-3, hold=3_000, warmup=10_000
    )
    paper = SelfConsistencySettings(seeds=20, samples=60_000, epochs=250, patience=30)
    measured_type = SelfConsistencyMeasurement
    claim_specs: ClaimSpecs[SelfConsistencyResult, object] = (
        ClaimSpec(
            sentence="Variances of trained encoders fall like 1/γ²: the slope of log σ² on log γ² is -1 (γ² from 1e2).",
            source=f"{PAPER}, Prop. 1 and Fig. 2 left",
            measure=precision_slopes(lambda m: geometric_mean(m.posterior_variance)),
            criterion=Bound("slope", within(-1, 0.1), statistic="mean", over="seeds"),
            published_runs=authors_slope("posterior_variance"),
            scale="the sample sizes and epochs of this page",
            family="Fig. 2",
            robust_over=(0.05, 0.1, 0.15, 0.2),
        ),
        ClaimSpec(
            sentence="Variances of trained encoders equal those that Eq. 12 predicts from the decoder (γ² from 1e2).",
            source=f"{PAPER}, Eq. 12 and Fig. 2 middle",
            measure=eq12_differences,
            criterion=Bound(
                "relative difference at the worst γ², median over latents,",
                at_most(0.1),
                statistic="mean",
                over="seeds",
            ),
            published_runs=PublishedRuns(
                tuple(value for p, value in authors_eq12_differences().items() if p >= 1e2),
                "medians of 20 runs at each γ² from 1e2",
            ),
            scale="the sample sizes and epochs of this page",
            family="Fig. 2",
            robust_over=(0.05, 0.1, 0.15, 0.2),
        ),
        ClaimSpec(
            sentence="Mean encodings of trained encoders converge at the rate 1/γ: their squared error has a slope of "
            "-1 in γ² (γ² from 1e2).",
            source=f"{PAPER}, §4.1 and Fig. 2 right",
            measure=precision_slopes(trained_error),
            criterion=Bound("slope", within(-1, 0.15), statistic="mean", over="seeds"),
            published_runs=authors_slope("reconstruction_mse"),
            scale="the sample sizes and epochs of this page",
            note=rate_note,
            family="Fig. 2",
            robust_over=(0.05, 0.1, 0.15, 0.3, 0.5),
        ),
        ClaimSpec(
            sentence="The best mean encodings converge at the rate 1/γ², faster than Prop. 1 says: the squared error "
            "of the exact projection has a slope of -2 in γ² (γ² from 1e2).",
            source=f"{PAPER}, Prop. 4; computed here for the trained decoders",
            measure=precision_slopes(exact_error),
            criterion=Bound("slope", within(-2, 0.05), over="seeds", exact=True),
            kind=Statement.MATHEMATICAL,
            robust_over=(0.02, 0.05, 0.1),
        ),
        ClaimSpec(
            sentence="The trained encoders converge more slowly than the best encoders of the same decoders.",
            source="Beyond the paper: slopes of trained and exact errors, γ² from 1e2",
            measure=flatter_slopes,
            criterion=PairedDifference(
                "slope of the squared error",
                "the trained encoder",
                "the exact projection",
                statistic="mean",
                over="seeds",
            ),
        ),
        *(
            ClaimSpec(
                sentence=sentence,
                source=f"{PAPER}, {source}; computed here, not trained",
                measure=limit_slopes(pick),
                criterion=Bound("slope, γ² from 1e3 to 1e6,", within(-1, 0.05), over="seeds", exact=True),
                kind=Statement.MATHEMATICAL,
                robust_over=(0.01, 0.05, 0.1),
            )
            for sentence, source, pick in (
                (
                    "Exact posterior variances of the trained decoder vanish like 1/γ².",
                    "Prop. 1",
                    lambda limits: limits.variance,
                ),
                (
                    "The exact gap log p(x) − ELBO* of the trained decoder converges to c_IMA like 1/γ².",
                    "Eq. 13",
                    lambda limits: limits.gap_error,
                ),
                (
                    "Exact variances converge to those of Eq. 12 like 1/γ².",
                    "Eq. 12",
                    lambda limits: limits.variance_error,
                ),
            )
        ),
        ClaimSpec(
            sentence="The gap log p − ELBO splits into two non-negative parts: family and amortisation.",
            source="log p − ELBO = (log p − ELBO*) + (ELBO* − ELBO); beyond the paper",
            measure=lambda results, _: [
                part for r in results for part in (r.measured.family_gap, r.measured.amortisation_gap)
            ],
            criterion=Bound("part in nats", at_least(-1e-6), statistic="smallest", exact=True),
            kind=Statement.MATHEMATICAL,
        ),
        ClaimSpec(
            sentence="The trained encoder loses more as γ² grows.",
            source="Beyond the paper: the amortisation gap of the trained decoder, computed exactly",
            measure=amortisation_rises,
            criterion=PairedDifference(
                "amortisation gap", "the highest γ²", "the lowest γ²", statistic="mean", over="seeds"
            ),
        ),
    )

    def model(self, cell: PrecisionCell, settings: SelfConsistencySettings) -> VAE:
        return VAE.mlp(DIM, DIM, hidden=(10 * DIM, 10 * DIM))

    def data(self, cell: PrecisionCell, settings: SelfConsistencySettings) -> FactorData:
        mixing = OrthogonalMLP(DIM, layers=3, seed=cell.seed)
        return mixed_sources(mixing, Normal(), samples=settings.samples, seed=cell.seed)

    def measure(
        self, cell: PrecisionCell, member: Member, data: FactorData, settings: SelfConsistencySettings
    ) -> SelfConsistencyMeasurement:
        x = data.observations.test
        mean, variance = member.encode(x)
        predicted = theory.optimal_variance(member.decode, mean, precision=cell.precision)
        sampled = member.sample(x, randomness.generator(member.seed, "measure"))
        few = x[: settings.exact_points]
        exact = theory.gap(member.decode, few, member.posterior(few), precision=cell.precision)
        best, kept = exact.projection, exact.converged
        error = (few - member.decode(best.mean)).square()
        highest = cell.precision == max(settings.precisions)
        return SelfConsistencyMeasurement(
            posterior_variance=_per_latent(variance),
            predicted_variance=_per_latent(predicted),
            reconstruction_mse=float((x - member.decode(mean)).square().mean()),
            ima_contrast=float(theory.ima_contrast(member.decode, mean).mean()),
            mcc_mean=metrics.mcc(mean, data.test_factors).score,
            mcc_sampled=metrics.mcc(sampled, data.test_factors).score,
            exact_variance=_per_latent(best.variance[kept]),
            exact_converged=float(kept.double().mean()),
            exact_reconstruction_mse=float(error[kept].mean()),
            elbo_star=float(exact.elbo_star[kept].mean()),
            log_marginal=float(exact.log_marginal[kept].mean()),
            family_gap=float(exact.family[kept].mean()),
            amortisation_gap=float(exact.amortization[kept].mean()),
            local_contrast=float(exact.contrast[kept].mean()),
            limits=_limits(member, mean[: settings.exact_points]) if highest else None,
        )

    def comparisons(self, results: Results, settings: SelfConsistencySettings) -> list[Comparison]:
        authors = authors_medians()
        panels: Mapping[str, tuple[str, str, Value, str]] = {
            "posterior_variance": (
                "Fig. 2 left",
                "posterior variance σ₀²",
                lambda m: m.posterior_variance[0],
                "Levels differ by a factor of four to five at small γ²: σ²γ² is one over the squared column norm of "
                "the decoder, so it depends on the scale of the observations, which the paper does not state. The "
                "factor shrinks to two at the largest γ², because the published medians fall a little more slowly than "
                "1/γ² (a slope of -0.92) and ours do not; the published values do not show why.",
            ),
            "predicted_variance": (
                "Fig. 2 centre",
                "right-hand side of Eq. 12",
                lambda m: m.predicted_variance[0],
                "As for the variances. Both sides of Eq. 12 agree in our values and in theirs.",
            ),
            "reconstruction_mse": (
                "Fig. 2 right",
                "squared distance of x and f(μ(x))",
                lambda m: m.reconstruction_mse,
                "Both fall monotonically, ours from above theirs to below. The error depends on the scale of the "
                "observations and, at large γ², on how long the encoder was trained: it is far above the error of the "
                "exact projection of the same decoders, which the page of the experiment shows next to it.",
            ),
        }
        return [
            Comparison(
                figure, quantity, compare_precisions(values_by_precision(results, value), authors[name]), difference
            )
            for name, (figure, quantity, value, difference) in panels.items()
        ]

    def tables(self, results: Results, settings: SelfConsistencySettings) -> list[ReportTable]:
        authors = authors_medians()
        columns: Mapping[str, Value | Mapping[float, float]] = {
            "σ₀²": lambda m: m.posterior_variance[0],
            "authors' σ₀²": authors["posterior_variance"],
            "Eq. 12": lambda m: m.predicted_variance[0],
            "authors' Eq. 12": authors["predicted_variance"],
            "MSE": lambda m: m.reconstruction_mse,
            "authors' MSE": authors["reconstruction_mse"],
            "exact MSE": lambda m: m.exact_reconstruction_mse,
            "c_IMA": lambda m: m.ima_contrast,
            "family gap": lambda m: m.family_gap,
            "amortisation": lambda m: m.amortisation_gap,
            "MCC mean": lambda m: m.mcc_mean,
            "MCC sampled": lambda m: m.mcc_sampled,
        }
        return [medians_by_precision(results, columns)]

    def figures(self, results: Results, settings: SelfConsistencySettings) -> list[ReportFigure]:
        caption = (
            "Left: posterior variances fall like 1/γ². Middle: they agree with Eq. 12, computed from the decoder "
            "alone. Right: decoding the mean encoding returns the observation; the exact projection shows what a "
            "perfect encoder of the same decoder would reach. Lines are medians over seeds, bands the range over "
            "seeds, crosses the authors' medians. Their variances are lower: σ²γ² is 1 / squared column norm of the "
            "decoder, so levels depend on the scale of the observations, which is not published; slopes are "
            "comparable, levels are not."
        )
        gap_caption = (
            "Left: the gap between the ELBO and log p(x), split into what no diagonal Gaussian can avoid (family) and "
            "what this encoder loses on top (amortisation), both exact for the trained decoder. Right: the decoder "
            "trained at the highest γ², with γ² varied afterwards and everything solved exactly: the family gap "
            "converges to c_IMA and the variances to Eq. 12, at rate 1/γ²."
        )
        return [
            ReportFigure("self_consistency", self_consistency_figure(results), caption),
            ReportFigure("the_gap", gap_figure(results), gap_caption),
        ]


EXPERIMENT = SelfConsistency()
