"""Flows trained on the IMA-regularised likelihood beside VAEs, on the same mixings (Reizinger et al. 2022, L_IMA)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vaescope import metrics, theory
from vaescope.data.mixings import Mixing, Moebius
from vaescope.models import Member
from vaescope.report import figures
from vaescope.training import MemberSpec, Progress
from vaescope.training.loop import EpochMetrics
from vaescope_papers.claims import ClaimSpec, ClaimSpecs, members_converged
from vaescope_papers.criteria import Bound, PairedDifference, Pairs, RankCorrelation, at_least, at_most
from vaescope_papers.embrace_the_gap import EXPERIMENTS, PAPER
from vaescope_papers.embrace_the_gap.flows import FlowSettings, FlowSpec, IMAFlow, fit_ima_flows
from vaescope_papers.embrace_the_gap.moebius_linear_map import PRECISION, mixing_of_contrast
from vaescope_papers.embrace_the_gap.shared import BOX, DIM, MoebiusExperiment, strips_figure
from vaescope_papers.experiment import Context, ReportFigure, ReportTable
from vaescope_papers.results import Diverged, Result, grouped, paired_differences
from vaescope_papers.statistics import median
from vaescope_papers.trained import FactorData, TrainedSettings

VAE_METHOD, FLOW = "vae", "flow"
MIXINGS = {0.0: "Möbius", 1.0: "Möbius and linear map"}  # by c_IMA: in the IMA class, and outside it


@dataclass(frozen=True)
class ImaFlowSettings(TrainedSettings):
    """Training of the VAEs, as in moebius-linear-map, and of the flows."""

    strengths: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0, 10.0)
    """λ of the flows."""
    flow_steps: int = 12_000
    flow_batch: int = 256


@dataclass(frozen=True)
class FlowCell:
    method: str
    """vae or flow."""
    contrast: float
    """c_IMA of the mixing."""
    strength: float
    """λ; 1 for a VAE, by Theorem 1."""
    seed: int


@dataclass(frozen=True)
class Likelihood:
    """What only a flow has."""

    log_likelihood: float
    """Of the test part, in nats per observation."""
    below_truth: float
    """The exact log-likelihood minus that of the flow, a KL divergence: negative only if the map is not injective."""
    folded: float
    """Share of test points at which the determinant has the rarer sign; 0 for an invertible map."""
    late_gain: float
    """Rise of the objective from the fourth to the last fifth of training."""


@dataclass(frozen=True)
class FlowMeasurement:
    """What is measured of a VAE or a flow."""

    mcc: float
    r2: float
    ima_contrast: float
    """Of the decoder: that of the VAE, or the inverse of the flow."""
    mixing_contrast: float
    rows_seen: tuple[float, ...]
    """Training rows after which recovery was recorded, repetitions included."""
    mcc_curve: tuple[float, ...]
    likelihood: Likelihood | None = None

    @property
    def rows_to_recover(self) -> float:
        """Rows after which the MCC stays above 95 % of its final value."""
        low = [rows for rows, mcc in zip(self.rows_seen, self.mcc_curve, strict=True) if not mcc >= 0.95 * self.mcc]
        later = [rows for rows in self.rows_seen if not low or rows > low[-1]]
        return later[0] if later else float("nan")


FlowResult = Result[FlowCell, FlowMeasurement]
Results = Sequence[FlowResult]
Value = Callable[[FlowMeasurement], float]


# claims ---------------------------------------------------------------------------------------


def _members(results: Results, method: str, strength: float, contrast: float) -> list[FlowResult]:
    """The members of one method, λ and mixing."""
    wanted = method, strength, contrast
    return [r for r in results if (r.cell.method, r.cell.strength, r.cell.contrast) == wanted]


def mcc_lead(other: tuple[str, float]) -> Callable[[Results, object], list[float]]:
    """MCC of flows with λ = 1 minus that of another method and λ, for every seed of the Möbius mixing."""
    return lambda results, _: paired_differences(
        _members(results, FLOW, 1.0, 0.0), _members(results, *other, 0.0), lambda m: m.mcc, lambda c: c.seed
    )


def likelihood_cost(contrast: float) -> Callable[[Results, object], list[float]]:
    """Log-likelihood with λ = 0 minus that with λ = 1, for every seed whose two flows are invertible.

    The likelihood of a map that folds is no density and can exceed the true one.
    """

    def measure(results: Results, _: object) -> list[float]:
        invertible = [r for r in results if _of_likelihood(lambda k: k.folded)(r.measured) == 0]
        free, regularised = (_members(invertible, FLOW, strength, contrast) for strength in (0.0, 1.0))
        return paired_differences(free, regularised, _of_likelihood(lambda k: k.log_likelihood), lambda c: c.seed)

    return measure


def _of_likelihood(value: Callable[[Likelihood], float]) -> Value:
    """A value that only flows have; NaN for a VAE."""
    return lambda m: float("nan") if m.likelihood is None else value(m.likelihood)


def flows_of(results: Results) -> list[FlowResult]:
    return [r for r in results if r.cell.method == FLOW]


def shortfall(result: FlowResult) -> float:
    """How many nats the objective of a flow is below that of the true unmixing; NaN for a VAE.

    The optimum is at least as high, so that this is a lower bound on how far training is from it.
    """
    m = result.measured
    if m.likelihood is None:
        return math.nan
    return m.likelihood.below_truth + result.cell.strength * (m.ima_contrast - m.mixing_contrast)


def flows_converged(*strengths: float, contrast: float) -> Callable[[Results, object], str | None]:
    """A condition for claims about optima: four fifths of the flows with these λ are near the true unmixing or above.

    Their step size decays, so that a flat objective at the end says nothing.
    """
    near = members_converged(shortfall=shortfall)

    def condition(results: Results, settings: object) -> str | None:
        return near([r for s in strengths for r in _members(results, FLOW, s, contrast)], settings)

    return condition


def folded_note(results: Results, _: object) -> str:
    """How many flows are left out of claims about likelihoods."""
    known = sorted((r for r in results if r.measured.likelihood is not None), key=lambda r: r.cell.strength)
    counts = {
        strength: (sum(_of_likelihood(lambda k: k.folded)(r.measured) > 0 for r in own), len(own))
        for strength, own in grouped(known, lambda r: r.cell.strength).items()
    }
    listed = ", ".join(f"{count} of {size} with λ = {s:g}" for s, (count, size) in counts.items() if count)
    return f"Flows that fold somewhere have no density and are left out: {listed}." if listed else ""


def below_truth_note(results: Results, _: object) -> str:
    """Whether the objective or its optimisation keeps flows with λ = 1 from the sources."""
    own = [r.measured for r in _members(results, FLOW, 1.0, 0.0)]
    lost = [m.likelihood.below_truth + m.ima_contrast - m.mixing_contrast for m in own if m.likelihood is not None]
    if not lost:
        return ""
    below = f"{min(lost):.2f} to {max(lost):.2f} nats below that of the true unmixing"
    reason = ": training, not the objective, keeps them from the sources" if min(lost) > 0 else ""
    return f"The objective of the flows is {below}{reason}."


def strengths_and_contrasts(results: Results, _: object) -> Pairs:
    flows = flows_of(results)
    return Pairs(
        [r.cell.strength for r in flows],
        [r.measured.ima_contrast for r in flows],
        units=[(r.cell.contrast, r.cell.seed) for r in flows],
    )


def best_strength_note(results: Results, _: object) -> str:
    """At which λ the sources are recovered best."""
    parts = []
    for contrast, name in MIXINGS.items():
        groups = grouped([r for r in flows_of(results) if r.cell.contrast == contrast], lambda r: r.cell.strength)
        if groups:
            scores = {strength: median([r.measured.mcc for r in own]) for strength, own in groups.items()}
            best = max(scores, key=lambda strength: scores[strength])
            parts.append(f"{name}: λ = {best:g} with a median MCC of {scores[best]:.2f}")
    return f"Best recovery by a flow: {'; '.join(parts)}." if parts else ""


# table and figures ----------------------------------------------------------------------------


def label(cell: FlowCell) -> str:
    return "VAE, γ² = 1e5" if cell.method == VAE_METHOD else f"flow, λ = {cell.strength:g}"


def methods_table(results: Results) -> ReportTable:
    rows = []
    for (contrast, name), own in grouped(results, lambda r: (r.cell.contrast, label(r.cell))).items():
        measured = [r.measured for r in own]
        known = [m.likelihood for m in measured if m.likelihood is not None]
        rows.append(
            {
                "mixing": MIXINGS[contrast],
                "method": name,
                "members": len(measured),
                "MCC": median([m.mcc for m in measured]),
                "linear R²": median([m.r2 for m in measured]),
                "c_IMA learned": median([m.ima_contrast for m in measured]),
                "rows to recover": median([m.rows_to_recover for m in measured]),
                "nats below the true log p": median([k.below_truth for k in known]) if known else "–",
                "folded": max(k.folded for k in known) if known else "–",
            }
        )
    caption = "Medians over seeds; rows until the MCC stays above 95 % of its final value, repetitions included"
    return ReportTable(caption, rows)


def strengths_figure(results: Results) -> ReportFigure:
    panels: tuple[tuple[str, str, str, Value], ...] = (
        ("Recovery of the sources", "MCC", "", lambda m: m.mcc),
        ("IMA contrast of the decoder", "nats", "y", lambda m: m.ima_contrast),
        ("Distance from the true density", "nats below log p", "", _of_likelihood(lambda k: k.below_truth)),
    )
    ordered = sorted(results, key=lambda r: (r.cell.method == VAE_METHOD, r.cell.strength))
    methods = {(r.cell.method, r.cell.strength): f"{r.cell.strength:g}" for r in ordered}
    groups = {
        mixing: {
            "VAE" if method == VAE_METHOD else strength: [
                r.measured for r in _members(results, method, value, contrast)
            ]
            for (method, value), strength in methods.items()
        }
        for contrast, mixing in MIXINGS.items()
    }
    drawn = strips_figure(panels, groups, x="λ of a flow, and the VAE")
    caption = (
        "Every dot is a seed, every bar a median. Left: recovery of the sources. Middle: contrast of the learned "
        "decoder. Right: KL divergence of the density of a flow from the true one; below zero the map folds and has no "
        "density. A VAE has no exact density."
    )
    return ReportFigure("ima_flow", drawn, caption)


def speed_figure(results: Results) -> ReportFigure:
    drawn, axes = figures.row_of_panels(len(MIXINGS), width=5.2)
    for axis, (contrast, mixing) in zip(axes, MIXINGS.items(), strict=True):
        groups = grouped([r for r in results if r.cell.contrast == contrast], lambda r: label(r.cell))
        for name, own in groups.items():
            rows = own[0].measured.rows_seen
            curves = [r.measured.mcc_curve for r in own if r.measured.rows_seen == rows]
            if rows:
                axis.plot(rows, np.median(np.array(curves), axis=0), linewidth=1.5, label=name)
        figures.format_axis(
            axis, title=mixing, x="training rows seen", y="MCC, median over seeds", log="x", legend=bool(groups)
        )
        axis.set_ylim(0, 1.02)
    return ReportFigure(
        "ima_flow_speed", drawn, "Recovery over training. Rows are counted with repetitions; a VAE raises γ² meanwhile."
    )


# experiment -----------------------------------------------------------------------------------


def late_gain(history: Sequence[float]) -> float:
    """How much the objective rose from the fourth to the last fifth of training, in nats."""
    fifth = max(1, len(history) // 5)
    return float(np.mean(history[-fifth:]) - np.mean(history[-2 * fifth : -fifth] or history[:1]))


def _watched(data: FactorData) -> tuple[torch.Tensor, torch.Tensor]:
    """The test rows by which recovery is recorded during training, and their sources."""
    return data.observations.test[:1000], data.test_factors[:1000]


def _mcc(codes: torch.Tensor, sources: torch.Tensor) -> float:
    return metrics.mcc(codes, sources).score if bool(codes.isfinite().all()) else float("nan")


class ImaFlowExperiment(MoebiusExperiment[ImaFlowSettings, FlowCell, FlowMeasurement]):
    info = EXPERIMENTS["ima-flow"]
    about = (
        "A near-deterministic VAE maximises log p(x) − c_IMA implicitly. Here a flow maximises log p(x) − λ c_IMA "
        "explicitly: an unmixing network whose Jacobian, and with it the likelihood and the contrast of its inverse, "
        "are exact at every step. Both are trained on the same draws of a Möbius transform, which is in the IMA class, "
        "and of a Möbius transform with a linear map behind it, together with a c_IMA of one nat. Does explicit "
        "regularisation recover what the VAE recovers, how fast, and at which λ? λ = 0 is maximum likelihood; λ = 1 is "
        "what Theorem 1 says the VAE does."
    )
    quick = ImaFlowSettings(
        seeds=2,
        samples=12_000,
        epochs=120,
        patience=120,
        strengths=(0.0, 0.1, 1.0, 10.0),
        flow_steps=3_000,
        flow_batch=128,
    ).annealed(3e-3, hold=1_500, warmup=6_000)
    laptop = ImaFlowSettings(seeds=5, samples=30_000, epochs=100, patience=100).annealed(
        3e-3, hold=4_000, warmup=16_000
    )
    paper = ImaFlowSettings(seeds=20, samples=60_000, epochs=100, patience=30, flow_steps=30_000)
    cell_type = FlowCell
    measured_type = FlowMeasurement
    claim_specs: ClaimSpecs[FlowResult, object] = (
        ClaimSpec(
            sentence="The sources of a mixing in the IMA class are recovered better with λ = 1 than by maximum "
            "likelihood.",
            source=f"{PAPER}, Theorem 1 and L_IMA; beyond the paper",
            measure=mcc_lead((FLOW, 0.0)),
            criterion=PairedDifference("MCC", "λ = 1", "λ = 0", 0.05, statistic="mean", over="mixings"),
            note=best_strength_note,
            requires=(flows_converged(0.0, 1.0, contrast=0.0),),
            robust_over=(0.0, 0.05, 0.1),
        ),
        ClaimSpec(
            sentence="At λ = 1 explicit regularisation recovers what the VAE recovers.",
            source=f"{PAPER}, Theorem 1 and L_IMA; beyond the paper",
            measure=mcc_lead((VAE_METHOD, 1.0)),
            criterion=Bound("MCC of the flow minus that of the VAE", at_least(-0.05), "mean", over="mixings"),
            note=below_truth_note,
            requires=(flows_converged(1.0, contrast=0.0),),
            robust_over=(-0.1, -0.05, 0.0),
        ),
        ClaimSpec(
            sentence="The larger λ, the more nearly orthogonal are the columns of the trained decoder.",
            source=f"{PAPER}, Theorem 1 and L_IMA; beyond the paper",
            measure=strengths_and_contrasts,
            criterion=RankCorrelation(sign=-1, over="mixings", within=True),
        ),
        ClaimSpec(
            sentence="For a mixing in the IMA class regularisation with λ = 1 costs no likelihood.",
            source=f"{PAPER}, Theorem 1 and L_IMA; beyond the paper: the truth has c_IMA = 0",
            measure=likelihood_cost(0.0),
            criterion=Bound(
                "nats of log-likelihood below λ = 0", at_most(0.1), "mean", over="mixings with invertible flows"
            ),
            note=folded_note,
            requires=(flows_converged(0.0, 1.0, contrast=0.0),),
            robust_over=(0.05, 0.1, 0.2),
        ),
        ClaimSpec(
            sentence="For a mixing outside the IMA class it does.",
            source=f"{PAPER}, Theorem 1 and L_IMA; beyond the paper",
            measure=likelihood_cost(1.0),
            criterion=PairedDifference("log-likelihood of invertible flows", "λ = 0", "λ = 1", 0.02, over="mixings"),
            note=folded_note,
            requires=(flows_converged(0.0, 1.0, contrast=1.0),),
            robust_over=(0.0, 0.02, 0.05),
        ),
    )

    def cells(self, settings: ImaFlowSettings) -> list[FlowCell]:
        seeds = range(settings.seeds)
        members = [FlowCell(VAE_METHOD, contrast, 1.0, seed) for contrast in MIXINGS for seed in seeds]
        flows = [
            FlowCell(FLOW, contrast, strength, seed)
            for contrast in MIXINGS
            for strength in settings.strengths
            for seed in seeds
        ]
        return members + flows

    def stack_key(self, cell: FlowCell) -> float:
        return cell.contrast

    def data_key(self, cell: FlowCell) -> tuple[float, int]:
        return cell.contrast, cell.seed

    def member(self, cell: FlowCell, data_index: int, settings: ImaFlowSettings) -> MemberSpec:
        return MemberSpec(cell.seed, precision=PRECISION, data=data_index)

    def mixing(self, cell: FlowCell) -> Mixing:
        if cell.contrast == 0:
            return Moebius(DIM, seed=cell.seed, low=BOX.low, high=BOX.high)
        return mixing_of_contrast(cell.contrast, cell.seed)[0]

    def solve(
        self, cells: Sequence[FlowCell], settings: ImaFlowSettings, context: Context
    ) -> Iterator[Sequence[FlowResult | Diverged[FlowCell]]]:
        yield from super().solve([cell for cell in cells if cell.method == VAE_METHOD], settings, context)
        flows = [cell for cell in cells if cell.method == FLOW]
        for contrast in dict.fromkeys(cell.contrast for cell in flows):
            own = [cell for cell in flows if cell.contrast == contrast]
            context.progress.message(f"Training {len(own)} flows for {settings.flow_steps} steps.")
            yield self._flows(own, settings, context.progress)

    def epoch_metrics(self, data: Mapping[int, FactorData], settings: ImaFlowSettings) -> EpochMetrics:
        """Recovery after every epoch; NaN for a member that has just diverged."""

        def measure(epoch: int, member: Member) -> dict[str, float]:
            x, z = _watched(data[member.seed])
            return {"mcc": _mcc(member.encode(x)[0], z)}

        return measure

    def measure(self, cell: FlowCell, member: Member, data: FactorData, settings: ImaFlowSettings) -> FlowMeasurement:
        x, z = data.observations.test, data.test_factors
        mean, _ = member.encode(x)
        curve = tuple(member.history.get("mcc", ()))
        rows = len(data.observations.train)
        return FlowMeasurement(
            mcc=_mcc(mean, z),
            r2=metrics.linear_r2(mean, z).score,
            ima_contrast=float(theory.ima_contrast(member.decode, mean).mean()),
            mixing_contrast=float(theory.ima_contrast(self.mixing(cell), z).mean()),
            rows_seen=tuple(float(rows * (epoch + 1)) for epoch in range(len(curve))),
            mcc_curve=curve,
        )

    def _flows(self, cells: Sequence[FlowCell], settings: ImaFlowSettings, progress: Progress) -> list[FlowResult]:
        seeds = list(dict.fromkeys(cell.seed for cell in cells))
        data = {cell.seed: self.data(cell, settings) for cell in cells}
        curves: list[list[float]] = [[] for _ in cells]
        # recovery is recorded 20 times, evenly over training
        steps = [int(step) for step in np.linspace(0, settings.flow_steps, min(20, settings.flow_steps) + 1)[1:]]

        def watch(step: int, flows: Sequence[IMAFlow]) -> None:
            for cell, flow, curve in zip(cells, flows, curves, strict=True):
                x, z = _watched(data[cell.seed])
                curve.append(_mcc(flow.encode(x.float()), z))
            progress.epoch(steps.index(step) + 1, training=len(cells), finished=0, diverged=0, elbo=math.nan)

        progress.begin(len(cells), len(steps))
        flows = fit_ima_flows(
            torch.stack([data[seed].observations.train for seed in seeds]).float(),
            [FlowSpec(cell.seed, cell.strength, seeds.index(cell.seed)) for cell in cells],
            prior=BOX,
            settings=FlowSettings(settings.flow_steps, settings.flow_batch),
            watch=watch,
            watch_at=steps,
        )
        rows_seen = tuple(float(step * settings.flow_batch) for step in steps)
        return [
            Result(cell, self._measure_flow(cell, flow, data[cell.seed], rows_seen, tuple(curve)))
            for cell, flow, curve in zip(cells, flows, curves, strict=True)
        ]

    def _measure_flow(
        self, cell: FlowCell, flow: IMAFlow, data: FactorData, rows_seen: tuple[float, ...], curve: tuple[float, ...]
    ) -> FlowMeasurement:
        x, z = data.observations.test.float(), data.test_factors
        codes, terms, mixing = flow.encode(x), flow.terms(x), self.mixing(cell)
        exact = theory.log_marginal(mixing, data.observations.test, precision=1.0, prior=BOX, method="flow").value
        return FlowMeasurement(
            mcc=_mcc(codes, z),
            r2=metrics.linear_r2(codes, z).score,
            ima_contrast=float(terms.contrast.mean()),
            mixing_contrast=float(theory.ima_contrast(mixing, z).mean()),
            rows_seen=rows_seen,
            mcc_curve=curve,
            likelihood=Likelihood(
                log_likelihood=float(terms.log_likelihood.mean()),
                below_truth=float(exact.mean() - terms.log_likelihood.mean()),
                folded=flow.folded(x),
                late_gain=late_gain(flow.history),
            ),
        )

    def figures(self, results: Results, settings: ImaFlowSettings) -> list[ReportFigure]:
        return [strengths_figure(results), speed_figure(results)]

    def tables(self, results: Results, settings: ImaFlowSettings) -> list[ReportTable]:
        return [methods_table(results)]


EXPERIMENT = ImaFlowExperiment()
