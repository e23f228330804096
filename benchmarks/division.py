"""Convolutional members: one process with all threads, or as many processes with one thread each?

Prints steps per second over all processes, the best of a few rounds in turn, because other load only slows a round.
"""

from __future__ import annotations

import multiprocessing
import time
import warnings
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import torch

from benchmarks import images
from vaescope.training.compilation import has_bfloat16, keep_freed_memory

SHAPES = (1, 32, 32), (3, 64, 64)
ROUNDS, SECONDS, WARM_UP = 3, 4.0, 5


def count_steps(shape: tuple[int, int, int], threads: int, ready: Barrier, rates: Queue[float]) -> None:
    """Train in this process for some seconds, at the same time as the others."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    images.IMAGE = shape
    with keep_freed_memory():
        step = images.member_step(bfloat16=has_bfloat16(torch.device("cpu")))
        for _ in range(WARM_UP):
            step()
        ready.wait()
        begin, steps = time.perf_counter(), 0
        while time.perf_counter() - begin < SECONDS:
            step()
            steps += 1
        rates.put(steps / (time.perf_counter() - begin))


def steps_per_second(shape: tuple[int, int, int], processes: int, threads: int) -> float:
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(processes), context.Queue()
    workers = [context.Process(target=count_steps, args=(shape, threads, ready, rates)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    total = sum(rates.get() for _ in workers)
    for worker in workers:
        worker.join()
    return float(total)


def main() -> None:
    cores = torch.get_num_threads()
    for shape in SHAPES:
        together, divided = 0.0, 0.0
        for _ in range(ROUNDS):
            together = max(together, steps_per_second(shape, 1, cores))
            divided = max(divided, steps_per_second(shape, cores, 1))
        print(
            f"{' x '.join(map(str, shape))}: {together:.1f} steps/s in one process of {cores} threads, "
            f"{divided:.1f} in {cores} processes of one: factor {divided / together:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
