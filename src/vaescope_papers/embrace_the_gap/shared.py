"""Shared by the experiments of this paper: sources and mixings, cells over the precision, recovery, and line plots."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from vaescope import metrics, theory
from vaescope.core import randomness
from vaescope.data.dataset import split
from vaescope.data.mixings import Mixing
from vaescope.distributions import Prior, Uniform
from vaescope.models import VAE, Member
from vaescope.report import figures
from vaescope.training import MemberSpec
from vaescope_papers.experiment import ReportTable
from vaescope_papers.results import Result, grouped
from vaescope_papers.statistics import median
from vaescope_papers.trained import C, FactorData, M, S, TrainedExperiment, TrainedSettings

DIM = 3
BOX = Uniform(-0.5, 0.5)
Measured = TypeVar("Measured")


# data and recovery of the sources -------------------------------------------------------------


def mixed_sources(
    mixing: Callable[[Tensor], Tensor], prior: Prior, *, samples: int, seed: int, dim: int = DIM
) -> FactorData:
    """Sources drawn from the prior, mixed and split."""
    sources = prior.sample(samples, dim, generator=randomness.generator(seed, "sources"))
    parts = split(mixing(sources))
    return FactorData(parts, sources[-len(parts.test) :])


def linear_ica(x: np.ndarray) -> np.ndarray:
    """The best linear unmixing of these rows that FastICA finds."""
    with warnings.catch_warnings():  # without convergence, its last estimate is the baseline
        warnings.simplefilter("ignore", ConvergenceWarning)
        return FastICA(whiten="unit-variance", random_state=0, max_iter=2000, tol=1e-3).fit_transform(x)


@dataclass(frozen=True)
class Recovery:
    """How well a member recovers the sources: by posterior means, by posterior samples, and by linear ICA."""

    mcc_mean: float
    mcc_sampled: float
    mcc_sampled_in_batches: float
    """The mean MCC of batches of 64 samples, which is not below 0.15 even for independent codes (d = 3)."""
    r2_mean: float
    r2_sampled: float
    mcc_linear_ica: float
    """Of linear ICA on the observations: a baseline without a VAE."""
    ima_contrast: float
    """Of the trained decoder, at the posterior means."""
    mixing_contrast: float
    """Of the true mixing, at the sources."""
    reconstruction_mse: float
    active: int
    """Number of latents of which two posterior samples of the same observation have a correlation of at least 0.5."""


def measure_recovery(member: Member, data: FactorData, mixing: Mixing, *, batch: int = 64) -> Recovery:
    """Compare the test sources with posterior means, posterior samples and linear ICA."""
    x, z = data.observations.test, data.test_factors
    mean, _ = member.encode(x)
    sampled = member.sample(x, randomness.generator(member.seed, "measure"))
    size = min(batch, len(z))
    batches = [pair for pair in zip(sampled.split(size), z.split(size), strict=True) if len(pair[0]) == size]
    return Recovery(
        mcc_mean=metrics.mcc(mean, z).score,
        mcc_sampled=metrics.mcc(sampled, z).score,
        mcc_sampled_in_batches=float(np.mean([metrics.mcc(*pair).score for pair in batches])),
        r2_mean=metrics.linear_r2(mean, z).score,
        r2_sampled=metrics.linear_r2(sampled, z).score,
        mcc_linear_ica=metrics.mcc(linear_ica(x.numpy()), z).score,
        ima_contrast=float(theory.ima_contrast(member.decode, mean).mean()),
        mixing_contrast=float(theory.ima_contrast(mixing, z).mean()),
        reconstruction_mse=float((x - member.decode(mean)).square().mean()),
        active=count_active(sampled, member.sample(x, randomness.generator(member.seed, "measure again"))),
    )


def count_active(first: Float[Tensor, "N d"], second: Float[Tensor, "N d"], *, signal: float = 0.5) -> int:
    """Latents with at least this share of signal in their variance, from two posterior samples of every observation.

    Their correlation is the share of signal in the variance of a latent: 1 for a deterministic one, 0 for a passive
    one, whatever the prior.

    >>> import torch
    >>> signal, noise = torch.randn(2, 1000, 2, generator=torch.Generator().manual_seed(0))
    >>> count_active(signal, torch.stack([signal[:, 0], noise[:, 1]], dim=1))
    1
    """
    a, b = (sample - sample.mean(0) for sample in (first.double(), second.double()))
    correlation = (a * b).sum(0) / (a.square().sum(0) * b.square().sum(0)).sqrt()
    return int((correlation >= signal).sum())


class MoebiusExperiment(TrainedExperiment[S, C, M]):
    """VAEs whose prior is the uniform distribution of the sources (Reizinger et al. 2022, §4.3)."""

    @abstractmethod
    def mixing(self, cell: C) -> Mixing:
        """The mixing that generates the observations of a cell."""

    def model(self, cell: C, settings: S) -> VAE:
        return VAE.mlp(DIM, DIM, hidden=(10 * DIM, 10 * DIM), prior=BOX)

    def data(self, cell: C, settings: S) -> FactorData:
        return mixed_sources(self.mixing(cell), BOX, samples=settings.samples, seed=cell.seed)


# experiments over the precision ---------------------------------------------------------------


@dataclass(frozen=True)
class PrecisionCell:
    """One decoder precision γ² and one seed."""

    precision: float
    seed: int


@dataclass(frozen=True)
class PrecisionSettings(TrainedSettings):
    precisions: tuple[float, ...] = (1e1, 1e2, 1e3, 1e4, 1e5)


P = TypeVar("P", bound=PrecisionSettings)


class PrecisionExperiment(TrainedExperiment[P, PrecisionCell, M]):
    """Members that differ in the decoder precision γ² and in the seed."""

    cell_type = PrecisionCell

    def cells(self, settings: P) -> list[PrecisionCell]:
        return [PrecisionCell(precision, seed) for precision in settings.precisions for seed in range(settings.seeds)]

    def member(self, cell: PrecisionCell, data_index: int, settings: P) -> MemberSpec:
        return MemberSpec(cell.seed, precision=cell.precision, data=data_index)


def by_precision(
    results: Sequence[Result[PrecisionCell, Measured]],
) -> dict[float, list[Result[PrecisionCell, Measured]]]:
    """Results by γ², in ascending order."""
    return grouped(sorted(results, key=lambda r: r.cell.precision), lambda r: r.cell.precision)


def values_by_precision(
    results: Sequence[Result[PrecisionCell, Measured]], value: Callable[[Measured], float]
) -> dict[float, list[float]]:
    """One measured value of every member, by γ²."""
    return {p: [value(r.measured) for r in group] for p, group in by_precision(results).items()}


def medians_by_precision(
    results: Sequence[Result[PrecisionCell, Measured]],
    columns: Mapping[str, Callable[[Measured], float] | Mapping[float, float]],
) -> ReportTable:
    """Medians of measured values over seeds, next to the authors' medians, which are given by γ²."""
    rows = [
        {"γ²": f"{precision:g}"}
        | {
            name: own.get(precision) if isinstance(own, Mapping) else median([own(r.measured) for r in group])
            for name, own in columns.items()
        }
        for precision, group in by_precision(results).items()
    ]
    return ReportTable("Medians over seeds, next to the authors'", rows)


def plot_over_precision(
    axis: Axes,
    results: Sequence[Result[PrecisionCell, Measured]],
    curves: Mapping[str, Callable[[Measured], float]],
    *,
    title: str,
    y: str,
    dashed: Collection[str] = (),
    published: Mapping[float, float] | None = None,
    power: float | None = None,
    log: str = "xy",
) -> None:
    """Medians over seeds as lines, ranges as bands, and the authors' medians as crosses at the γ² that were trained.

    Args:
        axis: of the panel.
        results: of all members.
        curves: measured values by label.
        title: of the panel.
        y: label of the y axis, with units.
        dashed: labels of the dashed lines.
        published: the authors' medians, by γ².
        power: of γ² by which the first curve should rise or fall, drawn as a dotted line.
        log: which axes are logarithmic.
    """
    for index, (label, value) in enumerate(curves.items()):
        values = values_by_precision(results, value)
        figures.plot_median_and_range(axis, list(values), list(values.values()), label=label, dashed=label in dashed)
        if power is not None and index == 0:
            figures.reference_slope(axis, list(values), [median(own) for own in values.values()], power=power)
    known = {precision: value for precision, value in (published or {}).items() if precision in by_precision(results)}
    figures.plot_published(axis, list(known), list(known.values()), label="authors' median")
    figures.format_axis(axis, title=title, x="decoder precision γ²", y=y, log=log)


# comparisons of methods on two mixings --------------------------------------------------------


def strips_figure(
    panels: Sequence[tuple[str, str, str, Callable[[Measured], float]]],
    groups: Mapping[str, Mapping[str, Sequence[Measured]]],
    *,
    x: str,
) -> Figure:
    """A dot per member and a bar at the median, for every method (column) and mixing (colour).

    Args:
        panels: title, unit, logarithmic axes and value of every panel; values that are not finite are left out.
        groups: the members of every mixing and method; every mixing has the same methods.
        x: label of the x axis.
    """
    drawn, axes = figures.row_of_panels(len(panels))
    for axis, (title, unit, log, value) in zip(axes, panels, strict=True):
        for index, (mixing, methods) in enumerate(groups.items()):
            columns = [[v for m in own if np.isfinite(v := value(m))] for own in methods.values()]
            figures.plot_strips(axis, list(methods), columns, label=mixing, offset=0.16 * (2 * index - 1), index=index)
        figures.format_axis(axis, title=title, x=x, y=unit, log=log, legend=False)
    figures.shared_legend(drawn, axes[0])
    return drawn
