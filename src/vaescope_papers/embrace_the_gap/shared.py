"""Shared by the Möbius experiments: uniform sources in a box, a small VAE, and how recovery is measured."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from vaescope import metrics, theory
from vaescope.core import randomness
from vaescope.data.dataset import split
from vaescope.data.mixings import Mixing
from vaescope.distributions import Uniform
from vaescope.models import VAE, Member
from vaescope_papers.results import Result, grouped
from vaescope_papers.statistics import median
from vaescope_papers.trained import C, FactorData, M, S, TrainedExperiment


def linear_ica(x: np.ndarray) -> np.ndarray:
    """The best linear unmixing of these rows that FastICA finds."""
    with warnings.catch_warnings():  # without convergence, its last estimate is the baseline
        warnings.simplefilter("ignore", ConvergenceWarning)
        return FastICA(whiten="unit-variance", random_state=0, max_iter=2000, tol=1e-3).fit_transform(x)


DIM = 3
BOX = Uniform(-0.5, 0.5)
BATCH = 64
SIGNAL = 0.5  # share of the variance of an active latent that is signal, at least


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


def uniform_mixture(mixing: Mixing, *, seed: int, samples: int) -> FactorData:
    """Sources uniform in the box, mixed and split."""
    sources = BOX.sample(samples, DIM, generator=randomness.generator(seed, "sources"))
    parts = split(mixing(sources))
    return FactorData(parts, sources[-len(parts.test) :])


class MoebiusExperiment(TrainedExperiment[S, C, M]):
    """VAEs whose prior is the uniform distribution of the sources (Reizinger et al. 2022, §4.3)."""

    @abstractmethod
    def mixing(self, cell: C) -> Mixing:
        """The mixing that generates the observations of a cell."""

    def model(self, cell: C, settings: S) -> VAE:
        return VAE.mlp(DIM, DIM, hidden=(10 * DIM, 10 * DIM), prior=BOX)

    def data(self, cell: C, settings: S) -> FactorData:
        return uniform_mixture(self.mixing(cell), seed=cell.seed, samples=settings.samples)


def measure_recovery(member: Member, data: FactorData, mixing: Mixing) -> Recovery:
    """Compare the test sources with posterior means, posterior samples and linear ICA."""
    x, z = data.observations.test, data.test_factors
    mean, _ = member.encode(x)
    sampled = member.sample(x, randomness.generator(member.seed, "measure"))
    return Recovery(
        mcc_mean=metrics.mcc(mean, z).score,
        mcc_sampled=metrics.mcc(sampled, z).score,
        mcc_sampled_in_batches=_mcc_in_batches(sampled, z),
        r2_mean=metrics.linear_r2(mean, z).score,
        r2_sampled=metrics.linear_r2(sampled, z).score,
        mcc_linear_ica=metrics.mcc(linear_ica(x.numpy()), z).score,
        ima_contrast=float(theory.ima_contrast(member.decode, mean).mean()),
        mixing_contrast=float(theory.ima_contrast(mixing, z).mean()),
        reconstruction_mse=float((x - member.decode(mean)).square().mean()),
        active=count_active(sampled, member.sample(x, randomness.generator(member.seed, "measure again"))),
    )


def count_active(first: Float[Tensor, "N d"], second: Float[Tensor, "N d"]) -> int:
    """Latents whose variance is mostly signal, from two posterior samples of every observation.

    Their correlation is the share of signal in the variance of a latent: 1 for a deterministic one, 0 for a passive
    one, whatever the prior.

    >>> import torch
    >>> signal, noise = torch.randn(2, 1000, 2, generator=torch.Generator().manual_seed(0))
    >>> count_active(signal, torch.stack([signal[:, 0], noise[:, 1]], dim=1))
    1
    """
    a, b = (sample - sample.mean(0) for sample in (first.double(), second.double()))
    correlation = (a * b).sum(0) / (a.square().sum(0) * b.square().sum(0)).sqrt()
    return int((correlation >= SIGNAL).sum())


def _mcc_in_batches(codes: Tensor, sources: Tensor) -> float:
    """The mean MCC of full batches, as a training loop logs it."""
    size = min(BATCH, len(codes))
    batches = zip(codes.split(size), sources.split(size), strict=True)
    return float(np.mean([metrics.mcc(c, s).score for c, s in batches if len(c) == size]))


Measured = TypeVar("Measured")


@dataclass(frozen=True)
class PrecisionCell:
    """One decoder precision γ² and one seed."""

    precision: float
    seed: int


def precision_cells(precisions: Sequence[float], seeds: int) -> list[PrecisionCell]:
    """Every precision with every seed."""
    return [PrecisionCell(precision, seed) for precision in precisions for seed in range(seeds)]


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


def median_of(results: Sequence[Result[PrecisionCell, Measured]], value: Callable[[Measured], float]) -> float:
    """The median over members of one measured value."""
    return median([value(r.measured) for r in results])
