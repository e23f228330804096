"""Random features of columns: non-linear regression and dependence by linear algebra alone."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.stats import rankdata

from vaescope.metrics.inputs import standardise

FOURIER = 60  # random features of a regression, at most
SAMPLES_PER_FEATURE = 40
FOLDS = 5
RIDGE = 1e-3  # relative to the number of samples
COPULA = 20  # random projections of RDC
COPULA_SCALE = 6.0  # standard deviation of their weights times the number of inputs


@cache
def _weights(inputs: int, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(inputs, count)), rng.uniform(0, 2 * np.pi, count)


def regression_features(columns: np.ndarray, count: int = FOURIER) -> np.ndarray:
    """A constant, the standardised columns, and random Fourier features of a Gaussian kernel of unit width."""
    scaled = standardise(columns)
    frequencies, phases = _weights(scaled.shape[1], count)
    waves = np.cos(scaled @ frequencies / np.sqrt(scaled.shape[1]) + phases)
    return np.column_stack([np.ones(len(scaled)), scaled, waves])


def residuals(targets: np.ndarray, given: np.ndarray) -> np.ndarray:
    """Targets (N, t) minus their prediction from other columns (N, g), each part predicted from the others.

    The number of features grows with that of samples: errors of two regressions in many features have products that a
    test of independence would take for dependence.

    >>> v = np.random.default_rng(0).normal(size=(2000, 2))  # enough for 50 features
    >>> bool(residuals(np.sin(v[:, :1]) + 2 * v[:, 1:], v).std() < 0.05)
    True
    """
    targets = standardise(targets)
    if given.shape[1] == 0:
        return targets
    features = regression_features(given, int(np.clip(len(targets) // SAMPLES_PER_FEATURE, 8, FOURIER)))
    found = np.empty_like(targets)
    for test in np.array_split(np.arange(len(targets)), FOLDS):
        fit = np.setdiff1d(np.arange(len(targets)), test, assume_unique=True)
        found[test] = targets[test] - features[test] @ ridge(features[fit], targets[fit])
    return found


def ridge(features: np.ndarray, targets: np.ndarray, strength: float = RIDGE) -> np.ndarray:
    """Weights of ridge regression."""
    gram = features.T @ features + strength * len(features) * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ targets)


def copula_features(column: np.ndarray, seed: int) -> np.ndarray:
    """Sines of random projections of a column's ranks (Lopez-Paz, Hennig & Schölkopf 2013), standardised."""
    ranks = rankdata(column) / len(column)
    weights, _ = _weights(2, COPULA, seed)
    return standardise(np.sin(np.column_stack([ranks, np.ones_like(ranks)]) @ weights * COPULA_SCALE / 2))
