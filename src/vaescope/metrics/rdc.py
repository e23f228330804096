"""Randomised dependence coefficient: correlation after the best non-linear transform of both columns."""

from __future__ import annotations

import numpy as np

from vaescope.metrics.features import copula_features

RIDGE = 1e-3  # regularisation of the canonical correlations, so that maps generalise


def canonical_maps(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the first pair of canonical variables of two sets of standardised features."""
    whitening = [_inverse_root(part.T @ part / len(part)) for part in (x, y)]
    left, _, right = np.linalg.svd(whitening[0] @ (x.T @ y / len(x)) @ whitening[1])
    return whitening[0] @ left[:, 0], whitening[1] @ right[0]


def _inverse_root(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    return (vectors / np.sqrt(np.clip(values, 0, None) + RIDGE)) @ vectors.T


def held_out_rdc(codes: np.ndarray, factors: np.ndarray, fit: slice, test: slice) -> np.ndarray:
    """RDC (d, k) on `test` of the maps found on `fit`: no positive bias of independent columns.

    >>> v = np.random.default_rng(0).uniform(-1, 1, (600, 2))
    >>> found = held_out_rdc(np.column_stack([v[:, 0] ** 2, v[:, 1]]), v, slice(300), slice(300, None))
    >>> (found > 0.8).tolist()
    [[True, False], [False, True]]
    """
    x = [copula_features(column, seed=0) for column in codes.T]
    y = [copula_features(column, seed=1) for column in factors.T]
    return np.array([[_held_out(a, b, fit, test) for b in y] for a in x])


def _held_out(x: np.ndarray, y: np.ndarray, fit: slice, test: slice) -> float:
    a, b = canonical_maps(x[fit], y[fit])
    u, v = x[test] @ a, y[test] @ b
    if u.std() == 0 or v.std() == 0:
        return 0.0
    return float(np.clip(np.corrcoef(u, v)[0, 1], 0.0, 1.0))
