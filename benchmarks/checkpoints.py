"""Cost of checkpoints: the share of training time that a stack spends writing them, at the default interval."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from vaescope.models import VAE
from vaescope.runs.store import CheckpointFile
from vaescope.settings import CHECKPOINT_SECONDS
from vaescope.training import MemberSpec, NoProgress, TrainSettings, train

SECONDS = 150.0  # of training: two checkpoints


class TimedCheckpointFile(CheckpointFile):
    """Measures the duration of every write."""

    def __init__(self, path: Path, interval_seconds: float) -> None:
        super().__init__(path, interval_seconds)
        self.durations: list[float] = []
        self.bytes = 0

    def save(self, tensors: Mapping[str, Tensor], text: str) -> None:
        begin = time.perf_counter()
        super().save(tensors, text)
        self.durations.append(time.perf_counter() - begin)
        self.bytes = self.path.stat().st_size


class StopAfter(NoProgress):
    """Interrupts training after some seconds, between two epochs."""

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
        store = TimedCheckpointFile(Path(folder) / "checkpoint", CHECKPOINT_SECONDS)
        begin = time.perf_counter()
        with contextlib.suppress(KeyboardInterrupt):
            train(model, x, x[:, :500], specs, settings, progress=StopAfter(SECONDS), checkpoints=store)
        total = time.perf_counter() - begin
    if not store.durations:
        raise SystemExit(f"no checkpoint was written in {total:.0f} s: SECONDS must exceed the checkpoint interval.")
    share = sum(store.durations) / total
    print(f"{len(specs)} members, checkpoint of {store.bytes / 2**20:.0f} MB, {total:.0f} s at the default interval")
    print(f"{len(store.durations)} writes of at most {max(store.durations):.2f} s: {share:.2%} of the time (bar 3 %)")


if __name__ == "__main__":
    main()
