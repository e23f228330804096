"""How the time of a stack grows with members, width, latents and samples: `docs/figures/scaling.svg` and a table."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.timing import best_seconds
from vaescope.data.dataset import ArrayRows
from vaescope.models import VAE
from vaescope.objectives import beta_elbo
from vaescope.training.batches import Batches
from vaescope.training.compilation import compile_stacked
from vaescope.training.step import adam_scales, make_step

BATCH = 64
FIGURES = Path(__file__).parent.parent / "docs" / "figures"


@dataclass(frozen=True)
class Size:
    """One stack; everything else is as in `benchmarks.stack`."""

    members: int = 50
    width: int = 30
    latents: int = 3
    samples: int = 1280


VALUES = {
    "members": (1, 3, 10, 30, 100, 300),
    "width": (10, 30, 100, 300),
    "latents": (2, 8, 32),
    "samples": (640, 2560, 10240),
}


def seconds_per_epoch(size: Size) -> float:
    """Seconds of one epoch of training, compiled, without compilation."""
    model = VAE.mlp(size.latents, size.latents, hidden=(size.width, size.width))
    seeds = list(range(size.members))
    params = model.init(seeds)
    moments = tuple({name: torch.zeros_like(p) for name, p in params.items()} for _ in range(2))
    data = ArrayRows(torch.randn(1, size.samples, size.latents))
    batches = Batches(data, members=[(s, 0) for s in seeds], batch_size=BATCH, latent_dim=size.latents)
    step, ones = compile_stacked(make_step(model, beta_elbo)), torch.ones(size.members)
    scales = adam_scales(1, 1e-3, torch.device("cpu"))

    def epoch() -> None:
        for x, noise in batches.epoch():
            step(params, moments, scales, x, noise, ones, ones)

    epoch()
    return best_seconds(epoch)


def slope(values: tuple[int, ...], seconds: list[float]) -> float:
    """Growth between the two largest values: 1 is proportional."""
    return math.log(seconds[-1] / seconds[-2]) / math.log(values[-1] / values[-2])


def main() -> None:
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    console = Console(width=110)
    found = {
        name: [seconds_per_epoch(replace(Size(), **{name: value})) for value in values]
        for name, values in VALUES.items()
    }
    figure = Figure(figsize=(10, 2.6), layout="constrained")
    axes = figure.subplots(1, len(VALUES), sharey=True)
    for axis, (name, values) in zip(axes, VALUES.items(), strict=True):
        axis.loglog(values, found[name], "o-")
        axis.set_xlabel(name)
        axis.grid(alpha=0.3, which="both")
        console.print(f"{name}: {dict(zip(values, found[name], strict=True))}, slope {slope(values, found[name]):.2f}")
    axes[0].set_ylabel("seconds per epoch")
    figure.savefig(FIGURES / "scaling.svg", metadata={"Date": None})
    (FIGURES / "scaling.json").write_text(json.dumps({"values": VALUES, "seconds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
