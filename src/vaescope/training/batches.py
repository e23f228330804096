"""Shuffled batches and noise from a random generator per member."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from vaescope.core import randomness
from vaescope.data.dataset import TrainingRows
from vaescope.models.mlp import batch_innermost

MAX_GATHERED = 2**24  # numbers gathered at once: images are gathered a few batches at a time
STEPS_PER_DRAW = 64  # steps for which noise is drawn in one call; part of a member's random stream


class Batches:
    """Batches of a stack. A member's batches depend on its seed, its data and the batch size alone.

    Args:
        data: data sets.
        members: (seed, index of the data set) of every member.
        batch_size: rows per step, limited by the size of a data set.
        latent_dim: columns of the noise.
        device: the training device.
    """

    def __init__(
        self,
        data: TrainingRows,
        *,
        members: Sequence[tuple[int, int]],
        batch_size: int,
        latent_dim: int,
        device: torch.device | None = None,
    ) -> None:
        _, samples, columns = data.shape
        self.data, self.device = data, device or torch.device("cpu")
        self.latent_dim = latent_dim
        self.batch_size = min(batch_size, samples)
        self.steps = samples // self.batch_size
        self._generators = [randomness.generator(seed, "batches") for seed, _ in members]
        self._window_generator = randomness.generator(0, "windows")
        self._data_of = torch.tensor([data_set for _, data_set in members], device=self.device)
        numbers = len(members) * self.batch_size * columns
        self._steps_per_gather = max(1, min(STEPS_PER_DRAW, MAX_GATHERED // numbers))

    def select(self, rows: Sequence[int]) -> None:
        """Keep only these members."""
        self._generators = [self._generators[row] for row in rows]
        self._data_of = self._data_of[list(rows)]

    def generator_states(self) -> dict[str, Tensor]:
        """State of every member's generator, by row, and of the one that orders the windows of a file."""
        states = {str(row): generator.get_state() for row, generator in enumerate(self._generators)}
        return states | {"windows": self._window_generator.get_state()}

    def set_generator_states(self, states: Mapping[str, Tensor]) -> None:
        for row, generator in enumerate(self._generators):
            generator.set_state(states[str(row)])
        self._window_generator.set_state(states["windows"])

    def epoch(self) -> Iterator[tuple[Float[Tensor, "E B n"], Float[Tensor, "E B d"]]]:
        """Batches and noise of one pass over every member's data, each in its own order.

        The last partial batch (of a file: of every window) is dropped.
        """
        for window in self.data.windows(self._window_generator):
            yield from self._batches_of(window.to(self.device))

    def _batches_of(
        self, window: Shaped[Tensor, "D W n"]
    ) -> Iterator[tuple[Float[Tensor, "E B n"], Float[Tensor, "E B d"]]]:
        device, all_steps = self.device, window.shape[1] // self.batch_size
        orders = torch.stack([torch.randperm(window.shape[1], generator=g) for g in self._generators])
        for first in range(0, all_steps, STEPS_PER_DRAW):
            steps = min(STEPS_PER_DRAW, all_steps - first)
            order = orders[:, first * self.batch_size : (first + steps) * self.batch_size].to(device)
            rows = order.unflatten(1, (steps, self.batch_size)).transpose(0, 1)
            shape = (steps, self.batch_size, self.latent_dim)
            noise = torch.stack([torch.randn(shape, generator=g) for g in self._generators], dim=1).to(device)
            parts = zip(rows.split(self._steps_per_gather), noise.split(self._steps_per_gather), strict=True)
            for part, part_noise in parts:
                x = self.data.to_float(window[self._data_of[None, :, None], part])
                yield from zip(step_layout(x), step_layout(part_noise), strict=True)


def step_layout(rows: Float[Tensor, "*S B n"]) -> Float[Tensor, "*S B n"]:
    """The memory layout in which a training step takes its data; one layout, so that the step is compiled once."""
    # up to 64 columns the batch is made the innermost axis: more cost more than they save
    return batch_innermost(rows) if rows.shape[-1] <= 64 else rows.contiguous()
