"""The codes of all data together, compared with the prior: do samples from the prior look like data?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import cKDTree
from scipy.stats import rankdata

from vaescope import randomness
from vaescope.encoded import EncodedSample
from vaescope.skipped import Skipped

NEIGHBOURS = 10
FEWEST = 40  # samples
LATENTS = 32  # in use, those with the highest KL


@dataclass(frozen=True)
class Aggregate:
    """The aggregate posterior, the mixture of q(z|x) over x, against the prior."""

    auc: float
    """Of telling codes from prior samples by their neighbours: 0.5 if they are alike, 1 if they never mix."""
    stderr: float
    """Of the AUC."""
    gain: float
    """Nats per sample that a Gaussian with the mean and covariance of the codes would save as the prior."""

    def to_data(self) -> dict[str, object]:
        return {"auc": self.auc, "stderr": self.stderr, "gain": self.gain}


def measure_aggregate(sample: EncodedSample, used: list[int]) -> Aggregate:
    """Draws of z ~ q(z|x), one per sample, against as many draws from the prior."""
    if not used:
        raise Skipped("no latent is in use")
    if len(sample) < FEWEST:
        raise Skipped(f"codes are compared with the prior from {FEWEST} samples on")
    latents, generator = used[:LATENTS], randomness.generator(0, "aggregate")
    noise = torch.randn(2, *sample.mean.shape, generator=generator, dtype=torch.float64)
    codes = sample.mean.double() + sample.variance.double().sqrt() * noise[0]
    standard = (codes - sample.prior_mean) / sample.prior_variance.double().sqrt()
    drawn = standard[:, latents].numpy()
    prior = noise[1][:, latents].numpy() if sample.model.prior_density is None else _prior_codes(sample, latents)
    auc = separability(drawn, prior)
    return Aggregate(auc, math.sqrt(max(auc * (1 - auc), 0.0) / len(drawn)), gaussian_gain(drawn))


def _prior_codes(sample: EncodedSample, latents: list[int]) -> np.ndarray:
    """Draws from a prior that is given by functions, in the units of its mean and variance."""
    drawn = sample.draw_prior("aggregate prior").double()
    standard = (drawn - sample.prior_mean) / sample.prior_variance.double().sqrt()
    return standard[:, latents].numpy()


def separability(a: np.ndarray, b: np.ndarray) -> float:
    """Area under the curve of telling a from b by the share of a among the nearest neighbours.

    >>> rng = np.random.default_rng(0)
    >>> separability(rng.normal(size=(100, 2)), rng.normal(size=(100, 2)) + 20)
    1.0
    """
    points, labels = np.concatenate([a, b]), np.repeat([1.0, 0.0], [len(a), len(b)])
    neighbours = cKDTree(points).query(points, k=NEIGHBOURS + 1)[1][:, 1:]
    ranks = rankdata(labels[neighbours].mean(1))
    return float((ranks[labels == 1].mean() - (len(a) + 1) / 2) / len(b))


def gaussian_gain(codes: np.ndarray) -> float:
    """KL[N(m, S) || N(0, I)], m and S the mean and covariance of the codes.

    >>> round(gaussian_gain(np.random.default_rng(0).normal(size=(100_000, 2))), 3)
    0.0
    """
    m, S = codes.mean(0), np.atleast_2d(np.cov(codes, rowvar=False))
    value = 0.5 * (np.trace(S) + m @ m - len(m) - np.linalg.slogdet(S + 1e-12 * np.eye(len(m)))[1])
    return float(max(0.0, value))
