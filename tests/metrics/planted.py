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


FACTORS = 5
CORRELATION = 0.7
NOISE = 0.05  # of redundant factors
MANY = 10  # latents of overcomplete encoders


def _independent_grid(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(samples, FACTORS))


def _correlated(samples: int, seed: int = 0) -> np.ndarray:
    """Every pair of factors has the same correlation."""
    common = np.random.default_rng(seed + 1000).normal(size=(samples, 1))
    return np.sqrt(CORRELATION) * common + np.sqrt(1 - CORRELATION) * _independent_grid(samples, seed)


def _copied(samples: int, seed: int = 0) -> np.ndarray:
    """The last factor is a noisy copy of the first."""
    v = _independent_grid(samples, seed)
    v[:, -1] = v[:, 0] + NOISE * v[:, -1]
    return v


def _combined(samples: int, seed: int = 0) -> np.ndarray:
    """The last factor is a noisy combination of the first two."""
    v = _independent_grid(samples, seed)
    v[:, -1] = np.sqrt(0.5) * (v[:, 0] + v[:, 1]) + NOISE * v[:, -1]
    return v


PROCESSES: dict[str, Callable[..., np.ndarray]] = {
    "independent": _independent_grid,
    "correlated": _correlated,
    "copied": _copied,
    "combined": _combined,
}


def _rescaled(v: np.ndarray) -> np.ndarray:
    return v[:, [3, 0, 4, 2, 1]] * [2.0, -0.5, 3.0, -1.0, 0.2]


def _dense(columns: int, seed: int, condition: float = 3.0) -> np.ndarray:
    """A matrix (factors, columns) of full rank with a given condition number."""
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(FACTORS, FACTORS)))[0]
    right = np.linalg.qr(rng.normal(size=(columns, FACTORS)))[0]
    return (left * np.linspace(condition, 1.0, FACTORS)) @ right.T


def _codes_per_factor(v: np.ndarray) -> np.ndarray:
    """Two monotone codes of every factor."""
    return np.hstack([np.tanh(v), v + 0.3 * v**3])


def _sines(v: np.ndarray) -> np.ndarray:
    """Sine and cosine of every factor: neither alone determines it."""
    return np.hstack([np.sin(1.5 * v), np.cos(1.5 * v)])


ENCODERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "rescaled": _rescaled,
    "bent": lambda v: np.tanh(_rescaled(v)) + 0.1 * _rescaled(v),
    "mixed": lambda v: v @ _dense(FACTORS, seed=3),
    "dropped": lambda v: _rescaled(v)[:, :3],
    "repeated": lambda v: np.hstack([_rescaled(v), -2.0 * _rescaled(v)]),
    "several codes": _codes_per_factor,
    "mixed, overcomplete": lambda v: v @ _dense(MANY, seed=4),
    "sine and cosine": _sines,
    "Gaussian noise": lambda v: np.random.default_rng(5).normal(size=v.shape),
    "uniform noise": lambda v: np.random.default_rng(6).uniform(size=v.shape),
}
