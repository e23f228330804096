"""What checkpoints cost: the time that a stack spends on writing its state, as a share of the run that it is part of.

One run, at the default interval; the state is also written after every epoch, to see what one write takes.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import torch

from vaescope.models import VAE
from vaescope.runs.store import CHECKPOINT_SECONDS, CheckpointFile
from vaescope.training import MemberSpec, NoProgress, TrainSettings, train

SECONDS = 150.0  # of training, about: two writes and the last one


class Timed(CheckpointFile):
    """Notes how long every write took."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__(path, seconds)
        self.spent: list[float] = []
        self.bytes = 0

    def save(self, tensors, text):  # type: ignore[no-untyped-def]
        begin = time.perf_counter()
        super().save(tensors, text)
        self.spent.append(time.perf_counter() - begin)
        self.bytes = self.path.stat().st_size


class Until(NoProgress):
    """Ends a run after some time, between two epochs."""

    def __init__(self, seconds: float) -> None:
        self.end = time.perf_counter() + seconds

    def epoch(self, done: int, *, training: int, finished: int, diverged: int, elbo: float) -> None:
        if time.perf_counter() > self.end:
            raise KeyboardInterrupt


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 8000, 20, generator=generator)
    model = VAE.mlp(20, 10, hidden=(256, 256))
    specs = [MemberSpec(seed, precision=10.0) for seed in range(24)]
    settings = TrainSettings(epochs=10_000, patience=10_000)
    with tempfile.TemporaryDirectory() as folder:
        keeper = Timed(Path(folder) / "state", CHECKPOINT_SECONDS)
        begin = time.perf_counter()
        with contextlib.suppress(KeyboardInterrupt):
            train(model, x, x[:, :500], specs, settings, progress=Until(SECONDS), checkpoints=keeper)
        whole = time.perf_counter() - begin
    share = sum(keeper.spent) / whole
    print(f"{len(specs)} members, state of {keeper.bytes / 2**20:.0f} MB, {whole:.0f} s at the default interval")
    print(f"{len(keeper.spent)} writes of {max(keeper.spent):.2f} s at most: {share:.2%} of the time (bar 3 %)")


if __name__ == "__main__":
    main()
