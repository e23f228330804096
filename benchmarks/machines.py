"""Members per hour on a Ray cluster of 1, 2 and 4 node processes of this machine, and a model of it for more.

Every node has one core. Nodes beyond the cores of the machine share them, so that they cannot gain anything here; what
is measured with them is that they do not lose anything either.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # every node on 127.0.0.1

import numpy as np
import ray
from ray.cluster_utils import Cluster

from vaescope.jobs import Task
from vaescope.jobs.ray import run_on_ray
from vaescope.sweeps import Sweep, sweep
from vaescope.training import Progress

NODES = (1, 2, 4)
STACKS = 8
MANY = 100
EMPTY = 40


def the_sweep(folder: Path) -> Sweep:
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(4000, 10)).astype("float32"))
    common = {"data": str(folder / "x.npy"), "epochs": 25, "patience": 25, "compile": "never", "seeds": 8}
    return Sweep(common, {"latent_dim": list(range(2, 2 + STACKS))})


def on_nodes(what: Sweep, folder: Path, nodes: int) -> tuple[float, float]:
    """Seconds of the whole sweep, and of a task that does nothing; workers are warm."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(nodes):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        ray.get([ray.remote(_warm).remote(k) for k in range(2 * nodes)])
        begin = time.perf_counter()
        sweep(what, folder, run=run_on_ray)
        spent = time.perf_counter() - begin
        begin = time.perf_counter()
        empty = [Task(str(k), _nothing, k, folder) for k in range(EMPTY)]
        assert len(list(run_on_ray(empty))) == EMPTY
        return spent, nodes * (time.perf_counter() - begin) / EMPTY
    finally:
        ray.shutdown()
        cluster.shutdown()


def _nothing(argument: Any, out: Path, monitor: Progress) -> None:
    """A task without work."""


def _warm(k: int) -> int:
    import vaescope.sweeps

    return len(vaescope.sweeps.__all__) + k


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        what = the_sweep(folder)
        members = what.members
        print(f"{members} members in {len(what.stacks)} stacks")
        stack = overhead = 0.0
        for nodes in NODES:
            spent, idle = on_nodes(what, folder / f"nodes{nodes}", nodes)
            print(f"{nodes} nodes: {spent:.1f} s, {3600 * members / spent:.0f} members per hour")
            if nodes == 1:
                overhead, stack = idle, spent / len(what.stacks) - idle
        print(f"a stack takes {stack:.2f} s on one core, a task {overhead:.3f} s beside it")
        for stacks in (MANY, 10 * MANY):
            rounds = -(-stacks // MANY)
            model = rounds * (stack + overhead)
            ideal = stacks * stack / MANY
            per_hour = 3600 * stacks * members / len(what.stacks) / model
            print(
                f"model, {MANY} nodes and {stacks} such stacks: {rounds} rounds of {stack + overhead:.1f} s = "
                f"{model:.0f} s, {per_hour:.0f} members per hour, {ideal / model:.0%} of what cores could do"
            )


if __name__ == "__main__":
    main()
