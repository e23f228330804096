"""Run a sweep in a child that is killed (SIGKILL) again and again, until it is finished; many times over.

    python killed.py FOLDER KILLS SEED

The child is forked from a process that has imported everything, so that kills hit the work and not the imports.
Prints, as JSON, how many kills landed, how many sweeps they landed in, and whatever differs from an undisturbed one.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

from vaescope.jobs import Outcome
from vaescope.runs.files import read_rows
from vaescope.sweeps import Sweep, sweep
from vaescope.training import NoProgress

LONGEST = 0.7  # seconds before a kill


def here(tasks):
    return [Outcome(task.name, task.work(task.argument, task.out, NoProgress())) for task in tasks]


def described(folder):
    """Everything that a sweep leaves, byte by byte where that is possible."""
    found = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.safetensors"))}
    for table in sorted(folder.rglob("*.parquet")):
        found[str(table.relative_to(folder))] = repr(sorted(map(repr, read_rows(table)))).encode()
    found["other"] = repr(sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())).encode()
    return found


def main(folder, kills, seed):
    torch.set_num_threads(1)
    folder.mkdir(parents=True)
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(400, 6)).astype("float32"))
    what = Sweep(
        {"data": str(folder / "x.npy"), "epochs": 25, "patience": 4, "learning_rate": 0.01, "seeds": 2},
        {"latent_dim": [2, 3], "beta": [1.0, 3.0], "precision": [5.0, 50.0]},
    )
    sweep(what, folder / "reference", run=here, checkpoint_seconds=0.0)
    reference = described(folder / "reference")
    chance, landed, rounds, wrong = random.Random(seed), 0, 0, []
    while landed < kills:
        rounds += 1
        out = folder / f"round{rounds}"
        while True:
            child = os.fork()
            if child == 0:
                try:
                    sweep(what, out, run=here, checkpoint_seconds=0.0)
                    os._exit(0)
                except BaseException as error:  # say it: a forked child has no test around it
                    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    os._exit(1)
            end = time.monotonic() + (chance.random() * LONGEST if landed < kills else 1e9)
            done = 0
            while not done and time.monotonic() < end:
                done, how = os.waitpid(child, os.WNOHANG)
                time.sleep(0.001)
            if not done:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                landed += 1
                continue
            if how != 0:
                wrong.append(f"round {rounds}: a child failed")
            break
        found = described(out)
        wrong += [
            f"round {rounds}: {name}"
            for name in reference.keys() | found.keys()
            if reference.get(name) != found.get(name)
        ]
    print(json.dumps({"kills": landed, "sweeps": rounds, "members": what.members, "wrong": wrong, "seed": seed}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
