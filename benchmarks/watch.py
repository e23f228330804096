"""`vs.Watch`: planted faults that it names, false alarms on healthy runs, and its overhead.

`python -m benchmarks.watch [faults|overhead]`. Numbers go to docs/figures/watch.json, which the docs quote.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from tests.watch.faults import NAMES, SCORED, _watch
from tests.watch.score import outcomes
from tests.zoo.networks import ConvVAE, ExampleVAE

RESULTS = Path(__file__).parents[1] / "docs/figures/watch.json"
SEEDS = range(20, 40)  # 0 to 19 have been looked at while rules were written
CASES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[int, ...], int]] = {
    "MLP 64-128-6": (lambda: ExampleVAE(64, 6), (64,), 20_000),
    "MLP 784-512-20": (lambda: ExampleVAE(784, 20, hidden=512), (784,), 6000),
    "conv 3x8x8": (lambda: ConvVAE((3, 8, 8), 16, width=32), (3, 8, 8), 10_000),
}
"""A network, the shape of a sample, and steps of 64 samples."""


def faults() -> dict[str, object]:
    """How often each planted fault is the first that is named, in time; and healthy runs without a finding."""
    found: dict[str, object] = {"seeds": [SEEDS[0], SEEDS[-1]]}
    for fault in NAMES:
        runs = outcomes(fault, SCORED, SEEDS)
        shares = [run.first.step / run.lost for run in runs if run.first is not None]
        found[fault] = {
            "right": sum(run.right for run in runs),
            "runs": len(runs),
            "share of the run, median": statistics.median(shares) if shares else None,
            "wrong": [str(run) for run in runs if not run.right],
        }
        print(fault, found[fault], flush=True)
    return found


def overhead() -> dict[str, object]:
    """Time inside `update` over that of training, at the default interval, measured from outside."""
    return {name: _share(*case) for name, case in CASES.items()}


def _share(build: Callable[[], torch.nn.Module], shape: tuple[int, ...], steps: int) -> dict[str, float]:
    torch.manual_seed(0)
    network, x = build(), torch.rand(2000, *shape)
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    watch = _watch(network, x[:1500], x[1500:], 1.0, None)
    inside, begin = np.zeros(2), _clocks()
    for step in range(steps):
        batch = x[torch.randint(1500, (64,))]
        optimiser.zero_grad()
        loss = network.loss(batch) / 64
        loss.backward()
        optimiser.step()
        loss = loss.detach()
        before = _clocks()
        watch.update(step, loss=loss)
        inside += _clocks() - before
    seconds, cpu = inside / (_clocks() - begin - inside)
    return {"steps": steps, "rows": len(watch.rows), "overhead": float(seconds), "overhead, CPU": float(cpu)}


def _clocks() -> np.ndarray:
    """Seconds on the wall and of the CPU; on a busy machine a long step is interrupted more often than a short call."""
    return np.array([time.perf_counter(), time.process_time()])


def main() -> None:
    parts = {"faults": faults, "overhead": overhead}
    for part in sys.argv[1:] or parts:
        result = parts[part]()
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(stored | {part: result}, indent=1, ensure_ascii=False) + "\n")
        print(part, json.dumps(result, indent=1, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
