"""Do the real x look like simulated ones? If not, a certificate on simulated x does not transfer to them.

A classifier two-sample test (Lopez-Paz & Oquab 2017): gradient-boosted trees learn to tell real from simulated x, and
are scored on samples that they were not trained on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold

from vaescope.encoded import EncodedSample
from vaescope.skipped import Skipped

FEWEST = 50  # real samples
LARGEST = 1000  # samples of each kind
COMPONENTS = 30  # principal components of x
FOLDS = 3
ALIKE = 0.6  # AUC up to which a certificate transfers
STANDARD_ERRORS = 2.0


@dataclass(frozen=True)
class Distinguishability:
    """How well a classifier tells real from simulated samples by some of their features."""

    features: str
    auc: float
    """Of held-out samples: 0.5 if they are alike, 1 if they never look the same."""
    stderr: float

    @property
    def alike(self) -> bool | None:
        """True, False, or None if there are too few samples to say."""
        if self.auc + STANDARD_ERRORS * self.stderr <= ALIKE:
            return True
        return False if self.auc - STANDARD_ERRORS * self.stderr > ALIKE else None


@dataclass(frozen=True)
class Transfer:
    """Real against simulated x: by x itself, by the codes, and by the reconstruction error."""

    tests: tuple[Distinguishability, ...]

    @property
    def transfers(self) -> bool | None:
        """Whether real x look like simulated ones in every respect; None if there are too few samples to say."""
        verdicts = [test.alike for test in self.tests]
        return False if False in verdicts else None if None in verdicts else True

    @property
    def different(self) -> list[Distinguishability]:
        """What tells them apart, the clearest first."""
        return sorted((t for t in self.tests if t.alike is False), key=lambda t: -t.auc)


def compare_with_real(real: EncodedSample, simulated: EncodedSample) -> Transfer:
    """Train a classifier on each kind of features."""
    count = min(len(real), len(simulated), LARGEST)
    if count < FEWEST:
        raise Skipped(f"real and simulated x are compared from {FEWEST} real samples on, got {len(real)}")
    pair = real.random_subset(count), simulated.random_subset(count)
    kinds = {"x": _components(*pair), "codes": tuple(_codes(s) for s in pair)}
    if real.model.log_likelihood is None and real.decoded.shape == real.observations.shape:
        kinds["reconstruction error"] = tuple(_errors(s) for s in pair)
    return Transfer(tuple(_distinguish(name, a, b) for name, (a, b) in kinds.items()))


def _components(real: EncodedSample, simulated: EncodedSample) -> tuple[np.ndarray, np.ndarray]:
    """Principal components of both together."""
    both = np.concatenate([real.observations.numpy(), simulated.observations.numpy()])
    count = min(COMPONENTS, both.shape[1], len(both) - 1)
    found = PCA(count, svd_solver="auto", random_state=0).fit_transform(both) if both.shape[1] > count else both
    return found[: len(real)], found[len(real) :]


def _codes(sample: EncodedSample) -> np.ndarray:
    """Posterior means and log-variances."""
    log_variance = sample.variance.double().clamp(min=1e-300).log()
    return torch.cat([sample.mean.double(), log_variance], dim=1).numpy()


def _errors(sample: EncodedSample) -> np.ndarray:
    """Squared error of the reconstruction, a column."""
    return (sample.observations - sample.decoded.double()).square().sum(1, keepdim=True).numpy()


def _distinguish(name: str, real: Float[np.ndarray, "N p"], simulated: Float[np.ndarray, "N p"]) -> Distinguishability:
    features, labels = np.concatenate([real, simulated]), np.repeat([1, 0], [len(real), len(simulated)])
    values = []
    for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(features, labels):
        trees = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=8, min_samples_leaf=10, random_state=0)
        scores = trees.fit(features[train], labels[train]).predict_proba(features[test])[:, 1]
        values.append(roc_auc_score(labels[test], scores))
    return Distinguishability(name, float(np.mean(values)), auc_error(float(np.mean(values)), len(real)))


def auc_error(auc: float, count: int) -> float:
    """Standard error of an AUC of `count` samples of each kind (Hanley & McNeil 1982).

    >>> round(auc_error(0.5, 300), 3)
    0.024
    """
    q1, q2 = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    variance = auc * (1 - auc) + (count - 1) * (q1 + q2 - 2 * auc**2)
    return math.sqrt(max(variance, 0.0)) / count
