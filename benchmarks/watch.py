"""Overhead of `vs.Watch` at its default interval: training time with a watch over that without, same steps."""

from __future__ import annotations

import time

import torch
from tests.watch.faults import _watch
from tests.zoo.networks import ConvVAE, ExampleVAE

import vaescope as vs

CASES = {
    "MLP 64-128-6, batch 64": (lambda: ExampleVAE(64, 6), (64,), 6000),
    "MLP 784-512-20, batch 128": (lambda: ExampleVAE(784, 20, hidden=512), (784,), 1500),
    "conv 3x32x32, batch 64": (lambda: ConvVAE((3, 32, 32), 16, width=32), (3, 32, 32), 250),
}


def train(build, shape: tuple[int, ...], steps: int, *, watched: bool) -> tuple[float, vs.Watch | None]:
    torch.manual_seed(0)
    network, x = build(), torch.rand(2000, *shape)
    optimiser = torch.optim.Adam(network.parameters(), 1e-3)
    watch = _watch(network, x[:1500], x[1500:], 1.0, None) if watched else None
    begin = time.process_time()
    for step in range(steps):
        batch = x[torch.randint(1500, (64,))]
        optimiser.zero_grad()
        loss = network.loss(batch) / 64
        loss.backward()
        optimiser.step()
        if watch is not None:
            watch.update(step, loss=loss.detach())
    return time.process_time() - begin, watch


def main() -> None:
    print("| model | steps | rows | a row / a step | overhead |\n|---|---|---|---|---|")
    for name, (build, shape, steps) in CASES.items():
        plain, _ = train(build, shape, steps, watched=False)
        _, watch = train(build, shape, steps, watched=True)
        assert watch is not None
        spent = watch.overhead
        ratio = spent * plain / (len(watch.rows) * (plain / steps))
        print(f"| {name} | {steps} | {len(watch.rows)} | {ratio:.1f} | {spent:.1%} |", flush=True)


if __name__ == "__main__":
    main()
