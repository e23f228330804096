"""Ten curved data sets of known dimension (2 to 8), all in 20 columns, with a little noise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Array = np.ndarray
Generator = np.random.Generator
COLUMNS, NOISE = 20, 0.05


def tanh_network(dim: int, width: int) -> Callable[[int, Generator], Array]:
    """Two random layers of tanh, then a linear map."""

    def draw(samples: int, rng: Generator) -> Array:
        h = rng.normal(size=(samples, dim))
        for _ in range(2):
            h = np.tanh(
                1.5 * h @ rng.normal(size=(h.shape[1], width)) / h.shape[1] ** 0.5 + 0.3 * rng.normal(size=width)
            )
        return h @ rng.normal(size=(width, width)) / width**0.5

    return draw


def swiss_roll(samples: int, rng: Generator) -> Array:
    turn, height = 1.5 * np.pi * (1 + 2 * rng.random(samples)), 10 * rng.random(samples)
    return np.c_[turn * np.cos(turn), height, turn * np.sin(turn)]


def s_curve(samples: int, rng: Generator) -> Array:
    turn = 3 * np.pi * (rng.random(samples) - 0.5)
    return np.c_[np.sin(turn), 2 * rng.random(samples), np.sign(turn) * (np.cos(turn) - 1)]


def sphere(samples: int, rng: Generator) -> Array:
    points = rng.normal(size=(samples, 3))
    return points / np.linalg.norm(points, axis=1, keepdims=True) @ rng.normal(size=(3, 8))


def blob(samples: int, rng: Generator) -> Array:
    """An 8 x 8 image of a spot with a position and a width."""
    place, grid = rng.random((samples, 3, 1, 1)), np.linspace(0, 1, 8)
    columns, rows = np.meshgrid(grid, grid)
    distance = (columns - 0.2 - 0.6 * place[:, 0]) ** 2 + (rows - 0.2 - 0.6 * place[:, 1]) ** 2
    return np.exp(-distance / (2 * (0.12 + 0.15 * place[:, 2]) ** 2)).reshape(samples, -1)


def quadratic(samples: int, rng: Generator) -> Array:
    z = rng.normal(size=(samples, 4))
    products = np.stack([z[:, i] * z[:, j] for i in range(4) for j in range(i, 4)], 1)
    return np.c_[z, 0.5 * products] @ rng.normal(size=(14, 16))


def sines(samples: int, rng: Generator) -> Array:
    z = rng.uniform(-1, 1, size=(samples, 5))
    return np.sin(1.2 * z @ rng.normal(size=(5, 20)) + rng.uniform(0, 6, 20))


def helices(samples: int, rng: Generator) -> Array:
    z = rng.uniform(-1, 1, size=(samples, 6))
    return np.c_[np.cos(2 * z), np.sin(2 * z), z] @ rng.normal(size=(18, 18))


def exponentials(samples: int, rng: Generator) -> Array:
    return np.exp(0.75 * rng.normal(size=(samples, 7)) @ rng.normal(size=(7, 20)) / 7**0.5)


CURVES: dict[str, tuple[int, Callable[[int, Generator], Array]]] = {
    "swiss roll": (2, swiss_roll),
    "s-curve": (2, s_curve),
    "sphere": (2, sphere),
    "tanh network, 3": (3, tanh_network(3, 12)),
    "moving spot": (3, blob),
    "quadratic": (4, quadratic),
    "sines": (5, sines),
    "helices": (6, helices),
    "exponentials": (7, exponentials),
    "tanh network, 8": (8, tanh_network(8, 24)),
}


def curve(name: str, samples: int, seed: int = 0) -> Array:
    """Rows (N, 20) of mean square about 1: embedded by a random rotation, or projected to principal axes."""
    rng = np.random.default_rng(seed)
    x = CURVES[name][1](samples, rng)
    x = x - x.mean(0)
    if x.shape[1] > COLUMNS:
        x = x @ np.linalg.svd(x, full_matrices=False)[2][:COLUMNS].T
    else:
        x = x @ np.linalg.qr(rng.normal(size=(COLUMNS, COLUMNS)))[0][: x.shape[1]]
    x = x / (x**2).mean() ** 0.5
    return x + NOISE * rng.normal(size=x.shape)
