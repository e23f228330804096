"""Flows trained on the IMA-regularised likelihood beside VAEs, on the same mixings (Reizinger et al. 2022, L_IMA)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from vaescope import metrics, theory
from vaescope.data.mixings import Mixing, Moebius
from vaescope.models import Member
from vaescope.papers.claims import ClaimSpec
from vaescope.papers.embrace_the_gap import IMA_FLOW
from vaescope.papers.embrace_the_gap import ima_flow_results as report
from vaescope.papers.embrace_the_gap.ima_flow_results import (
    CONTRASTS,
    FLOW,
    VAE_METHOD,
    FlowCell,
    FlowMeasurement,
    FlowResult,
    Likelihood,
)
from vaescope.papers.embrace_the_gap.moebius import BOX, DIM, MoebiusExperiment
from vaescope.papers.embrace_the_gap.moebius_linear_map import PRECISION, mixing_of_contrast
from vaescope.papers.experiment import Context, ReportFigure, ReportTable
from vaescope.papers.results import Diverged, Result
from vaescope.papers.trained import FactorData, TrainedSettings
from vaescope.theory.ima_flow import IMAFlow
from vaescope.theory.ima_training import FlowSettings, FlowSpec, fit_ima_flows
from vaescope.training import MemberSpec, Progress
from vaescope.training.loop import EpochMetrics

WATCHED = 20  # times at which the recovery of a flow is recorded, evenly over training
WATCHED_ROWS = 1_000


@dataclass(frozen=True)
class ImaFlowSettings(TrainedSettings):
    """Training of the VAEs, as in moebius-linear-map, and of the flows."""

    strengths: tuple[float, ...] = (0.0, 0.01, 0.1, 1.0, 10.0)
    """λ of the flows."""
    flow_steps: int = 12_000
    flow_batch: int = 256


class ImaFlowExperiment(MoebiusExperiment[ImaFlowSettings, FlowCell, FlowMeasurement]):
    info = IMA_FLOW
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
        learning_rate=3e-3,
        decay="cosine",
        precision_start=1e2,
        precision_hold=1_500,
        precision_warmup=6_000,
        strengths=(0.0, 0.1, 1.0, 10.0),
        flow_steps=3_000,
        flow_batch=128,
    )
    laptop = ImaFlowSettings(
        seeds=5,
        samples=30_000,
        epochs=100,
        patience=100,
        learning_rate=3e-3,
        decay="cosine",
        precision_start=1e2,
        precision_hold=4_000,
        precision_warmup=16_000,
    )
    paper = ImaFlowSettings(seeds=20, samples=60_000, epochs=100, patience=30, flow_steps=30_000)
    cell_type = FlowCell
    measured_type = FlowMeasurement

    def cells(self, settings: ImaFlowSettings) -> list[FlowCell]:
        seeds = range(settings.seeds)
        members = [FlowCell(VAE_METHOD, contrast, 1.0, seed) for contrast in CONTRASTS for seed in seeds]
        flows = [
            FlowCell(FLOW, contrast, strength, seed)
            for contrast in CONTRASTS
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
            own = data[member.seed]
            mean, _ = member.encode(own.observations.test[:WATCHED_ROWS])
            return {"mcc": _mcc(mean, own.test_factors[:WATCHED_ROWS])}

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
        steps = [int(step) for step in np.linspace(0, settings.flow_steps, min(WATCHED, settings.flow_steps) + 1)[1:]]

        def watch(step: int, flows: Sequence[IMAFlow]) -> None:
            for cell, flow, curve in zip(cells, flows, curves, strict=True):
                own = data[cell.seed]
                x = own.observations.test[:WATCHED_ROWS].float()
                curve.append(_mcc(flow.encode(x), own.test_factors[:WATCHED_ROWS]))
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

    def claims(self, settings: ImaFlowSettings) -> Sequence[ClaimSpec[FlowResult, ImaFlowSettings, Any]]:
        return report.CLAIMS

    def figures(self, results: Sequence[FlowResult], settings: ImaFlowSettings) -> list[ReportFigure]:
        return [report.strengths_figure(results), report.speed_figure(results)]

    def tables(self, results: Sequence[FlowResult], settings: ImaFlowSettings) -> list[ReportTable]:
        return [report.table(results)]


def late_gain(history: Sequence[float]) -> float:
    """How much the objective rose from the fourth to the last fifth of training, in nats."""
    fifth = max(1, len(history) // 5)
    return float(np.mean(history[-fifth:]) - np.mean(history[-2 * fifth : -fifth] or history[:1]))


def _mcc(codes: torch.Tensor, sources: torch.Tensor) -> float:
    return metrics.mcc(codes, sources).score if bool(codes.isfinite().all()) else float("nan")


EXPERIMENT = ImaFlowExperiment()
