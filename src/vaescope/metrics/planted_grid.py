"""Factors of four kinds under ten encoders, a grid on which the limits of every metric show.

The processes and encoders are those that Joshi et al. 2026 describe: independent, correlated and redundant factors;
encoders that rescale, bend, mix, drop, repeat or ignore them.

>>> {name: encode(PROCESSES["independent"](100)).shape[1] for name, encode in ENCODERS.items()}["mixed, overcomplete"]
10
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

FACTORS = 5
CORRELATION = 0.7
NOISE = 0.05  # of redundant factors
MANY = 10  # latents of overcomplete encoders


def _independent(samples: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(samples, FACTORS))


def _correlated(samples: int, seed: int = 0) -> np.ndarray:
    """Every pair of factors has the same correlation."""
    common = np.random.default_rng(seed + 1000).normal(size=(samples, 1))
    return np.sqrt(CORRELATION) * common + np.sqrt(1 - CORRELATION) * _independent(samples, seed)


def _copied(samples: int, seed: int = 0) -> np.ndarray:
    """The last factor is a noisy copy of the first."""
    v = _independent(samples, seed)
    v[:, -1] = v[:, 0] + NOISE * v[:, -1]
    return v


def _combined(samples: int, seed: int = 0) -> np.ndarray:
    """The last factor is a noisy combination of the first two."""
    v = _independent(samples, seed)
    v[:, -1] = np.sqrt(0.5) * (v[:, 0] + v[:, 1]) + NOISE * v[:, -1]
    return v


PROCESSES: dict[str, Callable[..., np.ndarray]] = {
    "independent": _independent,
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
