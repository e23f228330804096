"""`start="geometry"` beside random weights: validation ELBO, and MCC where the sources are known.

Random weights are also trained for as many steps as a start takes in all its trials, so that the difference is not that
of a longer training. Prints a table; numbers go to docs/figures/starts.json, which the docs quote. Names of data as
arguments measure these alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from tests.zoo.datasets import load
from torch import Tensor

import vaescope as vs
from vaescope.core import randomness
from vaescope.data.mixings import Compose, LinearMap, Mixing, Moebius
from vaescope.distributions import Uniform
from vaescope.training import NoProgress

RESULTS = Path(__file__).parents[1] / "docs/figures/starts.json"
SEEDS = 3
EPOCHS = 60
TRIALS = 5
"""Of a start for data that are not images: random weights, two embeddings, and the best of them with and without
unmixing; each takes half of the epochs."""
TABLES = {"digits": 5, "wine": 4, "cancer": 5, "diabetes": 4, "swiss": 2, "scurve": 2, "torus": 3, "blobs": 2}
"""Data sets of the zoo, with the number of latents."""
MIXINGS = 5


def mixed(seed: int) -> tuple[Tensor, Tensor]:
    """A Möbius transform of uniform sources and a linear map of contrast 1, and the sources."""
    mixing: Mixing = Compose(Moebius(3, seed=seed), LinearMap(3, contrast=1.0, seed=seed))
    z = Uniform(-0.5, 0.5).sample(5000, 3, generator=randomness.generator(seed, "sources"))
    return mixing(z).float(), z


def cases() -> Mapping[str, Callable[[], tuple[Tensor, int, str, Tensor | None]]]:
    """Data, latents, prior, and sources if there are any, by name."""

    def table(name: str) -> tuple[Tensor, int, str, None]:
        return load(name).train.flatten(1)[:4000], TABLES[name], "normal", None

    def mixing(seed: int) -> tuple[Tensor, int, str, Tensor]:
        x, z = mixed(seed)
        return x, 3, "uniform(low=-0.5, high=0.5)", z

    tables = {name: (lambda name=name: table(name)) for name in TABLES}
    return tables | {f"Möbius and linear map {seed}": (lambda seed=seed: mixing(seed)) for seed in range(MIXINGS)}


def measure(name: str) -> dict[str, object]:
    x, latents, prior, z = cases()[name]()
    options = {"latent_dim": latents, "prior": prior, "seeds": SEEDS, "decay": "cosine", "compile": "never"}
    row: dict[str, object] = {"data": name, "samples": len(x)}
    longer = EPOCHS + TRIALS * EPOCHS // 2
    for key, start, epochs in (
        ("random", "random", EPOCHS),
        ("random, longer", "random", longer),
        ("geometry", "geometry", EPOCHS),
    ):
        begin = time.process_time()
        fit = vs.fit(x, start=start, epochs=epochs, patience=epochs, progress=NoProgress(), **options)
        scores = [] if z is None else [round(vs.metrics.mcc(m.encode(x)[0], z).score, 4) for m in fit.members]
        elbos = [round(member.best_elbo, 4) for member in fit.members]
        row[key] = {"seconds": round(time.process_time() - begin, 1), "ELBO": elbos, "MCC": scores}
    return row


def main(names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    rows = {row["data"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    for name in names or cases():
        rows[name] = measure(name)
        print(json.dumps(rows[name], ensure_ascii=False), flush=True)
        ordered = [rows[own] for own in cases() if own in rows]
        RESULTS.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
