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
    features, found = _features_of(given), np.empty_like(targets)
    for test, fit in _folds(len(targets)):
        found[test] = targets[test] - features[test] @ ridge(features[fit], targets[fit])
    return found


def _features_of(given: np.ndarray) -> np.ndarray:
    return regression_features(given, int(np.clip(len(given) // SAMPLES_PER_FEATURE, 8, FOURIER)))


def _folds(samples: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows of every part, and all others."""
    rows = np.arange(samples)
    return [(test, np.setdiff1d(rows, test, assume_unique=True)) for test in np.array_split(rows, FOLDS)]


def shared_error_inflation(given: np.ndarray) -> float:
    r"""Variance of Σ r s over residuals of two independent targets, relative to Σ Var(r) Var(s): 1 with many samples.

    .. math:: \frac{\|M M^\top\|_F^2}{\sum_i (M M^\top)_{ii}^2}

    `residuals` are linear in the targets, r = M y. Samples share the errors of the fitted weights, so that products of
    residuals are correlated and their sum varies more than their spread says. Exact for noise of the same variance
    everywhere. Rows of M M' of the parts f and g are Φ_f B Φ_g', so that only matrices over features are needed.

    Args:
        given: (N, g) what the targets were predicted from.

    >>> v = np.random.default_rng(0).normal(size=(3000, 2))
    >>> [round(shared_error_inflation(v[:n]), 2) for n in (100, 3000)]
    [1.29, 1.02]
    """
    if given.shape[1] == 0:
        return 1.0
    features, folds = _features_of(given), _folds(len(given))
    own = [features[test].T @ features[test] for test, _ in folds]
    total = np.sum(own, axis=0)
    inverse = [_regularised_inverse(total - gram, len(fit)) for gram, (_, fit) in zip(own, folds, strict=True)]
    squared = diagonal = 0.0
    for f, (test, _) in enumerate(folds):
        B = inverse[f] @ (total - own[f]) @ inverse[f]
        squared += len(test) + 2 * np.trace(B @ own[f]) + _squared_norm(B, own[f], own[f])
        diagonal += np.square(1 + np.einsum("ij,jk,ik->i", features[test], B, features[test])).sum()
        for g in range(f):
            B = inverse[f] @ (total - own[f] - own[g]) @ inverse[g] - inverse[f] - inverse[g]
            squared += 2 * _squared_norm(B, own[f], own[g])
    return float(squared / diagonal)


def _squared_norm(B: np.ndarray, left: np.ndarray, right: np.ndarray) -> float:
    """Squared norm of Φ_f B Φ_g', from the Gram matrices of both parts."""
    return float(np.trace(B @ right @ B.T @ left))


def _regularised_inverse(gram: np.ndarray, samples: int, strength: float = RIDGE) -> np.ndarray:
    return np.linalg.inv(gram + strength * samples * np.eye(len(gram)))


def ridge(features: np.ndarray, targets: np.ndarray, strength: float = RIDGE) -> np.ndarray:
    """Weights of ridge regression."""
    gram = features.T @ features + strength * len(features) * np.eye(features.shape[1])
    return np.linalg.solve(gram, features.T @ targets)


def copula_features(column: np.ndarray, seed: int) -> np.ndarray:
    """Sines of random projections of a column's ranks (Lopez-Paz, Hennig & Schölkopf 2013), standardised."""
    ranks = rankdata(column) / len(column)
    weights, _ = _weights(2, COPULA, seed)
    return standardise(np.sin(np.column_stack([ranks, np.ones_like(ranks)]) @ weights * COPULA_SCALE / 2))
