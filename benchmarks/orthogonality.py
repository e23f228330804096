"""Speed of local fits of an image-sized decoder: linear and non-linear, at 256 points."""

from __future__ import annotations

import torch
from rich.console import Console
from torch import nn

from benchmarks.timing import best_seconds
from vaescope.orthogonality import local_fit

POINTS, DRAWS, OUTPUTS, LATENTS = 256, 1000, 4096, 10


def main() -> None:
    console = Console(width=110)
    torch.manual_seed(0)
    decoder = nn.Sequential(nn.Linear(LATENTS, 64), nn.Tanh(), nn.Linear(64, OUTPUTS), nn.Sigmoid())
    mean, variance = torch.randn(POINTS, LATENTS), torch.full((POINTS, LATENTS), 0.5)
    found = local_fit(decoder, mean[:4], variance[:4], draws=DRAWS)
    seconds = best_seconds(lambda: local_fit(decoder, mean, variance, draws=DRAWS), rounds=1)
    console.print(f"{POINTS} points x {DRAWS} draws x {OUTPUTS} outputs, {LATENTS} latents: {seconds:.1f} s")
    share = found.nonlinear_error / found.linear_error
    console.print(f"held-out error of the non-linear fit over the linear one: {float(share.mean()):.3f}")


if __name__ == "__main__":
    main()
