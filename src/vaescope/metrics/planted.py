"""Synthetic codes with a known relation to their factors, on which every metric is tested.

>>> v = continuous(200)
>>> {name: make(v).shape[1] for name, make in CODES.items()}["ten latents"]
10
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

PLANTED_FACTORS = 3


def continuous(samples: int = 1000, seed: int = 0) -> np.ndarray:
    """Independent uniform factors."""
    return np.random.default_rng(seed).uniform(-1, 1, (samples, PLANTED_FACTORS))


def classes(samples: int = 1000, seed: int = 0) -> np.ndarray:
    """Independent factors with six ordered classes."""
    return np.random.default_rng(seed).integers(0, 6, (samples, PLANTED_FACTORS)).astype(float)


def _independent(v: np.ndarray, columns: int) -> np.ndarray:
    """Latents that are independent of the factors."""
    return np.random.default_rng(1).normal(size=(len(v), columns))


def _rotated(v: np.ndarray) -> np.ndarray:
    """The first two factors rotated by 45°, the third unchanged."""
    c = np.sqrt(0.5)
    rotation = np.array([[c, c, 0], [-c, c, 0], [0, 0, 1]])
    return (v - v.mean(0)) @ rotation


def _sign_and_magnitude(v: np.ndarray) -> np.ndarray:
    """The first factor in two latents: its sign and its magnitude."""
    first = v[:, 0] - v[:, 0].mean()
    return np.column_stack([np.sign(first), np.abs(first), v[:, 1:]])


CODES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "identity": lambda v: v.copy(),
    "permuted and rescaled": lambda v: v[:, [2, 0, 1]] * [-5.0, 0.01, 300.0] + [1.0, -40.0, 0.0],
    "monotone": lambda v: np.exp(2 * (v - v.mean(0)) / v.std(0)),
    "duplicated": lambda v: np.hstack([v, v]),
    "rotated": _rotated,
    "split": _sign_and_magnitude,
    "constant latent": lambda v: np.column_stack([v, np.full(len(v), 7.0)]),
    "ten latents": lambda v: np.hstack([v, 0.3 * _independent(v, 7)]),
    "too few latents": lambda v: v[:, :2],
    "null": lambda v: _independent(v, PLANTED_FACTORS),
}
