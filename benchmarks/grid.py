"""CPU seconds of a grid search: scikit-learn's loop over VAEs beside the stacks of `vs.sklearn.VAESearchCV`.

2,000 rows of 10 columns, 4 latents, two hidden layers of 64 units, batch size 64, 30 epochs: 5 precisions times 4
values of β times 3 folds are 60 VAEs, and one more for the best setting. Both searches in turn; the best of the rounds
counts. Processor time of one thread, which other load on the machine changes little. The difference of their scores is
printed too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vaescope.sklearn import VAE, VAESearchCV

ROUNDS = 2
GRID = {"vae__precision": [1.0, 3.0, 10.0, 30.0, 100.0], "vae__beta": [0.5, 1.0, 2.0, 4.0]}


def search_seconds(search: Callable[..., GridSearchCV], x: np.ndarray) -> tuple[float, GridSearchCV]:
    """CPU seconds of one search, and the search."""
    pipeline = make_pipeline(StandardScaler(), VAE(latent_dim=4, epochs=30, patience=30))
    start = time.process_time()
    found = search(pipeline, GRID, cv=3).fit(x)
    return time.process_time() - start, found


def main() -> None:
    logging.disable(logging.WARNING)
    rng = np.random.default_rng(0)
    x = np.tanh(rng.normal(size=(2000, 3)) @ rng.normal(size=(3, 10))) + 0.1 * rng.normal(size=(2000, 10))
    console = Console(width=110)
    loops, stacks = [], []
    for _ in range(ROUNDS):
        seconds, loop = search_seconds(GridSearchCV, x)
        loops.append(seconds)
        seconds, stack = search_seconds(VAESearchCV, x)
        stacks.append(seconds)
    difference = np.abs(loop.cv_results_["mean_test_score"] - stack.cv_results_["mean_test_score"]).max()
    console.print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, best of {ROUNDS} rounds, 61 VAEs")
    console.print(f"GridSearchCV: {min(loops):.1f} s; VAESearchCV: {min(stacks):.1f} s")
    ratios = ", ".join(f"{a / b:.1f}" for a, b in zip(loops, stacks, strict=True))
    console.print(f"ratio: {min(loops) / min(stacks):.1f}; of the rounds: {ratios}")
    console.print(f"largest difference of a mean score: {difference:.2g} nats")


if __name__ == "__main__":
    main()
