"""Milliseconds per model-step that a user of `vs.fit` gets, beside the training step alone.

100 members, three observed and three latent dimensions, two hidden layers of 30 units, batch size 64, 8,000 rows: the
time of 45 epochs minus that of 5, per training step and member. It includes validation after every epoch and everything
else that `vs.fit` does, but neither compilation nor preparation. The step alone is that of `benchmarks.stack`. Both are
measured in turn, so that other load slows both; the best round of each counts.
"""

from __future__ import annotations

import logging
import time

import torch
from rich.console import Console

import vaescope as vs
from benchmarks.contestants import BATCH, DIM, HIDDEN, MEMBERS
from benchmarks.stack import StackEpoch
from benchmarks.timing import timed
from vaescope.training import NoProgress
from vaescope.training.compilation import keep_freed_memory

ROWS, SHORT, LONG = 8000, 5, 45
ROUNDS = 3
STEP_EPOCHS = 20  # of the step alone, per round


def fit_seconds(x: torch.Tensor, epochs: int) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    fit = vs.fit(
        x,
        latent_dim=DIM,
        hidden=(HIDDEN, HIDDEN),
        precision=1.0,
        seeds=MEMBERS,
        epochs=epochs,
        patience=LONG,
        batch_size=BATCH,
        compile="always",
        progress=NoProgress(),
    )
    assert all(member.training.epochs == epochs for member in fit.members)
    return time.perf_counter() - start


def main() -> None:
    logging.disable(logging.WARNING)
    x = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))
    model_steps = (LONG - SHORT) * (int(0.8 * ROWS) // BATCH) * MEMBERS
    stack = StackEpoch()
    console = Console(width=110)
    console.print(f"first call, which compiles: {fit_seconds(x, 1):.1f} s; second: {fit_seconds(x, 1):.1f} s")
    fits, steps = [], []
    for _ in range(ROUNDS):
        fits.append((fit_seconds(x, LONG) - fit_seconds(x, SHORT)) / model_steps)
        with keep_freed_memory():
            seconds, units = timed(lambda: sum(stack() for _ in range(STEP_EPOCHS)))
        steps.append(seconds / units)
    console.print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, best of {ROUNDS} rounds")
    console.print(f"vs.fit: {1e3 * min(fits):.4f} ms per model-step; the step alone: {1e3 * min(steps):.4f} ms")
    ratios = ", ".join(f"{ours / alone:.2f}" for ours, alone in zip(fits, steps, strict=True))
    console.print(f"ratio: {min(fits) / min(steps):.2f}; of the rounds: {ratios}")


if __name__ == "__main__":
    main()
