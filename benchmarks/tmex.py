"""How often does T-MEX reject pairs of latent and factor that are not related? It should be 5 % at a level of 5 %.

python -m benchmarks.tmex docs/figures/tmex.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from tests.metrics.planted import FACTORS, PROCESSES

from vaescope import metrics

DATA_SETS = 20
SAMPLES = (100, 300)
LEVEL = 0.05
RELATED = np.eye(FACTORS, dtype=bool)


def _uniform(samples: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, size=(samples, FACTORS))


def _non_linear(samples: int, seed: int) -> np.ndarray:
    """The last two factors are a sine and a square of others, plus noise."""
    rng = np.random.default_rng(seed)
    v, noise = rng.normal(size=(samples, 3)), 0.5 * rng.normal(size=(samples, 2))
    return np.column_stack([v, np.sin(2 * v[:, 0]) + noise[:, 0], np.square(v[:, 1]) + noise[:, 1]])


FACTORS_OF = {name: PROCESSES[name] for name in ("independent", "correlated")} | {
    "uniform": _uniform,
    "non-linear functions of each other": _non_linear,
}
ENCODERS = {
    "noisy": lambda v, rng: v + 0.5 * rng.normal(size=v.shape),
    "tanh": lambda v, rng: np.tanh(1.5 * v) + 0.1 * rng.normal(size=v.shape),
    "cube": lambda v, rng: v**3 + 0.3 * rng.normal(size=v.shape),
}


def rejected(process: str, encoder: str, samples: int) -> float:
    """Share of tests of unrelated pairs with p < 0.05."""
    shares = []
    for seed in range(DATA_SETS):
        v, rng = FACTORS_OF[process](samples, seed), np.random.default_rng(900 + seed)
        p_values = metrics.tmex(ENCODERS[encoder](v, rng), v, structure=RELATED).p_values
        shares.append((p_values[~RELATED] < LEVEL).mean())
    return round(float(np.mean(shares)), 3)


def main() -> None:
    result = {
        f"{samples} samples, factors: {process}": {encoder: rejected(process, encoder, samples) for encoder in ENCODERS}
        for samples in SAMPLES
        for process in FACTORS_OF
    }
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
