"""Every member's own stream of shuffled batches and noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness

GATHERED = 2**24  # numbers gathered at once: images go a few batches at a time
STEPS_PER_DRAW = 64  # one call to a member's generator serves this many steps; part of its stream


class Batches:
    """Batches for a stack. A member's stream depends on its seed, its data and the batch size alone."""

    def __init__(
        self,
        data: Float[Tensor, "D N n"],
        *,
        members: Sequence[tuple[int, int]],
        batch_size: int,
        latent_dim: int,
    ) -> None:
        """`members` gives each member's (seed, data set)."""
        self.data = data
        self.latent_dim = latent_dim
        self.batch_size = min(batch_size, data.shape[1])
        self.steps = data.shape[1] // self.batch_size
        self._generators = [randomness.generator(seed, "batches") for seed, _ in members]
        self._data_of = torch.tensor([data_set for _, data_set in members], device=data.device)
        numbers = len(members) * self.batch_size * data.shape[2]
        self._together = max(1, min(STEPS_PER_DRAW, GATHERED // numbers))

    @property
    def generators(self) -> list[torch.Generator]:
        """Every member's random stream."""
        return self._generators

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these members."""
        self._generators = [self._generators[row] for row in rows]
        self._data_of = self._data_of[list(rows)]

    def epoch(self) -> Iterator[tuple[Float[Tensor, "E B n"], Float[Tensor, "E B d"]]]:
        """One pass over every member's data in an order of its own; a last partial batch is left out."""
        samples, device = self.data.shape[1], self.data.device
        orders = torch.stack([torch.randperm(samples, generator=g) for g in self._generators])
        for first in range(0, self.steps, STEPS_PER_DRAW):
            steps = min(STEPS_PER_DRAW, self.steps - first)
            window = orders[:, first * self.batch_size : (first + steps) * self.batch_size].to(device)
            rows = window.unflatten(1, (steps, self.batch_size)).transpose(0, 1)
            shape = (steps, self.batch_size, self.latent_dim)
            noise = torch.stack([torch.randn(shape, generator=g) for g in self._generators], dim=1).to(device)
            for part, its_noise in zip(rows.split(self._together), noise.split(self._together), strict=True):
                x = self.data[self._data_of[None, :, None], part].contiguous()  # one layout: compiled once
                yield from zip(x, its_noise, strict=True)
