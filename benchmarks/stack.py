"""Model-steps per second: a stack of 100 against other training loops and against its own matrix products.

One model-step is one optimisation step of one model: batch size 64, three observed and three latent dimensions, two
hidden layers of 30 units, Adam. Contestants take turns for several rounds, so that other load slows all of them; the
best round of each counts. The stack keeps freed memory, as it does in training (`vaescope.training.compilation`);
its rivals run with the C library's own settings, and the former layout in both ways.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from benchmarks import contestants
from benchmarks.contestants import BATCH, DIM, HIDDEN, MEMBERS, SAMPLES
from benchmarks.timing import ROUNDS, best_rates, timed
from vaescope.data.dataset import ArrayRows
from vaescope.models import VAE
from vaescope.objectives import beta_elbo
from vaescope.training.batches import Batches
from vaescope.training.compilation import compile_stacked, keep_freed_memory
from vaescope.training.step import adam_scales, make_step


class StackEpoch:
    """An epoch of the training loop: shuffling, noise, compiled step."""

    def __init__(self) -> None:
        model = VAE.mlp(DIM, DIM, hidden=(HIDDEN, HIDDEN))
        seeds = list(range(MEMBERS))
        data = torch.randn(1, SAMPLES, DIM)
        self.params = model.init(seeds)
        self.moments = tuple({name: torch.zeros_like(p) for name, p in self.params.items()} for _ in range(2))
        self.count = 0
        self.ones = torch.ones(MEMBERS)
        self.batches = Batches(ArrayRows(data), members=[(s, 0) for s in seeds], batch_size=BATCH, latent_dim=DIM)
        self.step = compile_stacked(make_step(model, beta_elbo))
        self()

    def __call__(self) -> int:
        for x, noise in self.batches.epoch():
            self.count += 1
            scales = adam_scales(self.count, 1e-3, x.device)
            self.step(self.params, self.moments, scales, x, noise, self.ones, self.ones)
        return self.batches.steps * MEMBERS


def time_by_kind(epoch: StackEpoch) -> Table:
    """Shares of an epoch's time by kind of operation, from the profiler."""
    with profile(activities=[ProfilerActivity.CPU]) as record:
        epoch()
    kinds = {
        "matrix products": 0.0,
        "random numbers and shuffling": 0.0,
        "gathering batches": 0.0,
        "compiled kernels": 0.0,
    }
    total = 0.0
    for event in record.key_averages():
        seconds = event.self_cpu_time_total
        total += seconds
        name = event.key
        if "bmm" in name:
            kinds["matrix products"] += seconds
        elif name in ("aten::randn", "aten::normal_", "aten::randperm"):
            kinds["random numbers and shuffling"] += seconds
        elif name in ("aten::index", "aten::stack", "aten::cat", "aten::copy_"):
            kinds["gathering batches"] += seconds
        elif "Compiled" in name or "Torch-Compiled" in name or name.startswith(("cpp_fused", "graph")):
            kinds["compiled kernels"] += seconds
    kinds["other: allocation, dispatch, guards"] = total - sum(kinds.values())
    table = Table("operation", "share of an epoch", box=None)
    for kind, seconds in kinds.items():
        table.add_row(kind, f"{100 * seconds / total:.0f} %")
    return table


def main() -> None:
    logging.disable(logging.WARNING)
    stack, pythae, former = StackEpoch(), contestants.PythaeTrainer(), contestants.BatchMajorStack()
    rivals = {
        "former layout, keeping freed memory": _keeping_memory(_timed(former)),
        "former layout (batch-major), compiled": _timed(former),
        "torch.func.vmap over modules, compiled": _timed(contestants.ModuleVmap()),
        "JAX vmap + scan": _timed(contestants.JaxVmap()),
        "one-model PyTorch loop": _timed(contestants.PlainLoop()),
        "pythae's trainer": pythae.timed_epoch,
        "matrix products alone, batch innermost": _timed(contestants.MatrixProducts(batch_innermost=True)),
        "matrix products alone, batch-major": _timed(contestants.MatrixProducts(batch_innermost=False)),
    }
    speed = best_rates({f"stack of {MEMBERS}": _keeping_memory(_timed(stack)), **rivals})
    own = next(iter(speed.values()))
    table = Table("what", "model-steps/s", "ms per model-step", "speed of the stack", box=None)
    for name, value in speed.items():
        table.add_row(name, f"{value:,.0f}", f"{1e3 / value:.4f}", f"{own / value:.2f}x")
    console = Console(width=110)
    console.print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, best of {ROUNDS} rounds")
    console.print(table)
    console.print(
        f"time of the stack / time in the former layout: {speed['former layout (batch-major), compiled'] / own:.2f}, "
        f"{speed['former layout, keeping freed memory'] / own:.2f} if that keeps freed memory too"
    )
    console.print(time_by_kind(stack))


def _timed(epoch: Callable[[], int]) -> Callable[[], tuple[float, int]]:
    return lambda: timed(epoch)


def _keeping_memory(one_round: Callable[[], tuple[float, int]]) -> Callable[[], tuple[float, int]]:
    def kept() -> tuple[float, int]:
        with keep_freed_memory():
            return one_round()

    return kept


if __name__ == "__main__":
    main()
