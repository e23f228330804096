"""Seconds and memory of `vs.leakage` and `vs.check` on 10,000 x 2,000 counts: `python -m benchmarks.counts`."""

from __future__ import annotations

import resource
import time

import torch
from torch import Tensor

import vaescope as vs


def main() -> None:
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(0)
    weights, offset = 0.3 * torch.randn(10, 2000, generator=generator), torch.randn(2000, generator=generator)
    encoder = torch.nn.Sequential(torch.nn.Linear(2000, 128), torch.nn.ReLU(), torch.nn.Linear(128, 20))

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        found = encoder(torch.log1p(x))
        return found[:, :10], found[:, 10:].exp()

    def rate(z: Tensor) -> Tensor:
        return torch.exp(offset.to(z) + z @ weights.to(z))

    model = vs.adapters.from_callables(
        encode=encode,
        decode=rate,
        latent_dim=10,
        networks=[encoder],
        log_likelihood=lambda x, z: torch.distributions.Poisson(rate(z), validate_args=False).log_prob(x).sum(1),
        sample_observations=lambda z, generator: torch.poisson(rate(z), generator=generator),
    )
    batch = torch.randint(0, 3, (10_000,), generator=generator)
    z = torch.randn(10_000, 10, generator=generator) + 0.3 * batch[:, None]
    x = torch.poisson(rate(z), generator=generator)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("leakage", "check"):
        started = time.perf_counter()
        _ = (
            vs.leakage(model, x, nuisance=batch, progress=None)
            if name == "leakage"
            else vs.check(model, x, progress=None)
        )
        above = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20
        print(f"{name}: {time.perf_counter() - started:.1f} s, at most {above:.2f} GB more than the data")


if __name__ == "__main__":
    main()
