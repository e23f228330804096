"""What every rendered data set is: named factors, a grid of values, images of any of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vaescope import randomness
from vaescope.distributions import Beta, Prior, Uniform
from vaescope.errors import InputError

CHUNK = 64  # images rendered at once: a frame of each fits the cache


@dataclass(frozen=True)
class Factor:
    """One thing that varies: its official values, or, between the lowest and the highest, any value."""

    name: str
    values: tuple[float, ...]
    continuous: bool = True

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


def evenly(name: str, low: float, high: float, count: int, *, continuous: bool = True) -> Factor:
    """Values from low to high at equal steps."""
    return Factor(name, tuple(torch.linspace(low, high, count, dtype=torch.float64).tolist()), continuous)


@dataclass(frozen=True, eq=False)
class Images:
    """Images (N, channels, height, width) in [0, 1] and the factors (N, k) behind them."""

    images: Float[Tensor, "N c h w"]
    factors: Float[Tensor, "N k"]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)


class Rendered(ABC):
    """Images computed from factors: the same values give the same image, on any machine, without a file."""

    name: ClassVar[str]
    channels: ClassVar[int]
    factors: tuple[Factor, ...]
    size: int

    @abstractmethod
    def frames(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        """A small batch of images; differentiable in the continuous factors."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(factor.name for factor in self.factors)

    @property
    def shape(self) -> tuple[int, ...]:
        """How many official values every factor has."""
        return tuple(len(factor.values) for factor in self.factors)

    def __len__(self) -> int:
        return math.prod(self.shape)

    def render(self, values: Float[Tensor, "N k"], *, dtype: torch.dtype = torch.float32) -> Float[Tensor, "N c h w"]:
        """Images of these factor values, a few at a time."""
        if values.ndim != 2 or values.shape[1] != len(self.factors):
            raise InputError(
                f"{self.name} needs a value for each of {', '.join(self.names)}, got shape {tuple(values.shape)}."
            )
        values = values.to(dtype)
        if len(values) <= CHUNK or values.requires_grad:
            return self.frames(values)
        out = torch.empty(len(values), self.channels, self.size, self.size, dtype=dtype)
        for part, into in zip(values.split(CHUNK), out.split(CHUNK), strict=True):
            into.copy_(self.frames(part))
        return out

    # the official grid ------------------------------------------------------------------------

    def values_at(self, indices: Int[Tensor, " N"]) -> Float[Tensor, "N k"]:
        """Factor values of places in the official order (the last factor changes fastest)."""
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self):
            raise InputError(f"{self.name} has images 0 to {len(self) - 1}, asked for {int(indices.max())}.")
        columns = []
        for factor in reversed(self.factors):
            table = torch.tensor(factor.values, dtype=torch.float64)
            columns.append(table[indices % len(table)])
            indices = indices // len(table)
        return torch.stack(columns[::-1], dim=1)

    def at(self, indices: Int[Tensor, " N"]) -> Images:
        """Images at places in the official order."""
        values = self.values_at(indices)
        return Images(self.render(values), values, self.names)

    def stream(self, batch: int = 1024, *, shuffle: bool = False, seed: int = 0) -> Iterator[Images]:
        """The whole grid, batch by batch; nothing more than a batch is in memory."""
        order = (
            torch.randperm(len(self), generator=randomness.generator(seed, "stream"))
            if shuffle
            else torch.arange(len(self))
        )
        for part in order.split(batch):
            yield self.at(part)

    # samples ----------------------------------------------------------------------------------

    def sample(
        self, count: int, *, seed: int, distributions: Mapping[str, Prior | str] | Prior | str = "uniform"
    ) -> Images:
        """Independent factors: `grid` (official values), `uniform`, or a Beta or uniform prior on [0, 1], which is
        stretched from the lowest to the highest value; one for all factors or one by name."""
        if count < 1:
            raise InputError(f"count must be at least 1, got {count}.")
        chosen = self._distributions(distributions)
        columns = [_draw(f, d, count, seed) for f, d in zip(self.factors, chosen, strict=True)]
        values = torch.stack(columns, dim=1)
        return Images(self.render(values), values, self.names)

    def _distributions(self, given: Mapping[str, Prior | str] | Prior | str) -> Sequence[Prior | str]:
        if not isinstance(given, Mapping):
            return [given] * len(self.factors)
        unknown = set(given) - set(self.names)
        if unknown:
            raise InputError(f"{self.name} has no factor {sorted(unknown)[0]!r}; it has {', '.join(self.names)}.")
        return [given.get(name, "uniform") for name in self.names]


def _draw(factor: Factor, distribution: Prior | str, count: int, seed: int) -> Float[Tensor, " N"]:
    generator = randomness.generator(seed, f"factor {factor.name}")
    if distribution == "grid" or not factor.continuous:
        table = torch.tensor(factor.values, dtype=torch.float64)
        return table[torch.randint(len(table), (count,), generator=generator)]
    prior = Uniform(0.0, 1.0) if distribution == "uniform" else distribution
    if not isinstance(prior, Beta | Uniform) or prior.bounds != (0.0, 1.0):
        raise InputError(f"factors are drawn from grid, uniform, or a Beta on [0, 1], got {distribution!r}.")
    return factor.low + (factor.high - factor.low) * prior.sample(count, 1, generator=generator)[:, 0]
