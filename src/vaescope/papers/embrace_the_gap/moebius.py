"""What both Möbius experiments share: uniform sources in a box, a small VAE, and how recovery is measured."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any

import numpy as np
from sklearn.decomposition import FastICA
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from vaescope import metrics, randomness, theory
from vaescope.data.arrays import split
from vaescope.data.mixings import Mixing
from vaescope.distributions import Uniform
from vaescope.models import VAE, Member
from vaescope.papers.trained import SyntheticData, TrainedExperiment
from vaescope.runs import Cell
from vaescope.runs.files import Row

DIM = 3
BOX = Uniform(-0.5, 0.5)
BATCH = 64


def mixed_uniform(mixing: Mixing, *, seed: int, samples: int) -> SyntheticData:
    """Sources uniform in the box, mixed and split."""
    sources = BOX.sample(samples, DIM, generator=randomness.generator(seed, "sources"))
    parts = split(mixing(sources))
    return SyntheticData(parts, sources[-len(parts.test) :])


class MoebiusExperiment(TrainedExperiment):
    """A VAE with the sources' own uniform prior on data of one mixing per cell (Reizinger et al. 2022, §4.3)."""

    @abstractmethod
    def mixing(self, cell: Cell) -> Mixing:
        """The mixing behind a cell's observations."""

    def model(self, cell: Cell, settings: Any) -> VAE:
        return VAE.mlp(DIM, DIM, hidden=(10 * DIM, 10 * DIM), prior=BOX)

    def data(self, cell: Cell, settings: Any) -> SyntheticData:
        return mixed_uniform(self.mixing(cell), seed=cell["seed"], samples=settings.samples)

    def measure(self, cell: Cell, member: Member, data: SyntheticData, settings: Any) -> Row:
        """Recovery by the mean encoding and by a draw from the posterior, and by linear ICA for comparison."""
        x, z = data.observations.test, data.test_sources
        mean, _ = member.encode(x)
        sampled = member.sample(x, randomness.generator(member.seed, "measure"))
        return {
            "mcc_mean": metrics.mcc(mean, z).score,
            "mcc_sampled": metrics.mcc(sampled, z).score,
            "mcc_sampled_in_batches": _mcc_in_batches(sampled, z),
            "r2_mean": metrics.linear_r2(mean, z).score,
            "r2_sampled": metrics.linear_r2(sampled, z).score,
            "mcc_linear_ica": metrics.mcc(_linear_ica(x.numpy()), z).score,
            "ima_contrast": float(theory.ima_contrast(member.decode, mean).mean()),
            "mixing_contrast": float(theory.ima_contrast(self.mixing(cell), z).mean()),
            "reconstruction_mse": float((x - member.decode(mean)).square().mean()),
        }


def _mcc_in_batches(codes: Tensor, sources: Tensor) -> float:
    """The mean MCC of batches of 64, as a training loop logs it: never below its chance level of 0.15 (d = 3)."""
    size = min(BATCH, len(codes))
    batches = zip(codes.split(size), sources.split(size), strict=True)
    return float(np.mean([metrics.mcc(c, s).score for c, s in batches if len(c) == size]))


def _linear_ica(x: np.ndarray) -> np.ndarray:
    """The best linear unmixing: what needs no VAE."""
    with warnings.catch_warnings():  # a baseline is its best attempt
        warnings.simplefilter("ignore", ConvergenceWarning)
        return FastICA(whiten="unit-variance", random_state=0, max_iter=2000, tol=1e-3).fit_transform(x)
