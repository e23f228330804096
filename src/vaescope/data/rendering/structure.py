"""The base class of rendered data sets: named factors, a grid of their values, and images for any values."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vaescope.core import randomness, validation
from vaescope.core.errors import InputError
from vaescope.distributions import Beta, Prior, Uniform

RENDER_BATCH = 64  # images rendered at once, which fit into the cache


@dataclass(frozen=True)
class GridFactor:
    """A factor of variation: its values on the grid, and whether values between them are valid."""

    name: str
    values: tuple[float, ...]
    continuous: bool = True

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


def evenly_spaced(name: str, low: float, high: float, count: int, *, continuous: bool = True) -> GridFactor:
    """A factor with equally spaced values from low to high."""
    return GridFactor(name, tuple(torch.linspace(low, high, count, dtype=torch.float64).tolist()), continuous)


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images (N, channels, height, width) in [0, 1] with their factors (N, k)."""

    images: Float[Tensor, "N c h w"]
    factors: Float[Tensor, "N k"]
    factor_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)


class Renderer(ABC):
    """Renders images from factors; the same factors give the same image on any machine."""

    name: ClassVar[str]
    channels: ClassVar[int]
    factors: tuple[GridFactor, ...]
    size: int

    @abstractmethod
    def render_batch(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        """Render a small batch; differentiable in the continuous factors.

        Args:
            values: (N, k) factors, in the order of `factor_names`; for a discrete factor one of its grid values.
        """

    @property
    def factor_names(self) -> tuple[str, ...]:
        return tuple(factor.name for factor in self.factors)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of grid values of every factor."""
        return tuple(len(factor.values) for factor in self.factors)

    def __len__(self) -> int:
        return math.prod(self.shape)

    def render(self, values: Float[Tensor, "N k"], *, dtype: torch.dtype = torch.float32) -> Float[Tensor, "N c h w"]:
        """Render images with these factors, in small batches.

        Args:
            values: (N, k) factors, in the order of `factor_names`; for a discrete factor one of its grid values.
            dtype: floating-point type of the images.
        """
        if values.ndim != 2 or values.shape[1] != len(self.factors):
            names = ", ".join(self.factor_names)
            raise InputError(f"{self.name} needs a value for each of {names}, got shape {tuple(values.shape)}.")
        values = values.to(dtype)
        if len(values) <= RENDER_BATCH or values.requires_grad:
            return self.render_batch(values)
        out = torch.empty(len(values), self.channels, self.size, self.size, dtype=dtype)
        for part, into in zip(values.split(RENDER_BATCH), out.split(RENDER_BATCH), strict=True):
            into.copy_(self.render_batch(part))
        return out

    # the grid ---------------------------------------------------------------------------------

    def values_at(self, indices: Int[Tensor, " N"]) -> Float[Tensor, "N k"]:
        """Factors of images at these grid indices; the last factor changes fastest.

        Args:
            indices: (N,) from 0 to the number of images minus one.
        """
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self):
            wrong = min(int(indices.min()), 0) or int(indices.max())
            raise InputError(f"{self.name} has images 0 to {len(self) - 1}, got index {wrong}.")
        columns = []
        for factor in reversed(self.factors):
            table = torch.tensor(factor.values, dtype=torch.float64)
            columns.append(table[indices % len(table)])
            indices = indices // len(table)
        return torch.stack(columns[::-1], dim=1)

    def images_at(self, indices: Int[Tensor, " N"]) -> LabelledImages:
        """Render images at these grid indices.

        Args:
            indices: (N,) from 0 to the number of images minus one.
        """
        values = self.values_at(indices)
        return LabelledImages(self.render(values), values, self.factor_names)

    def stream(self, batch_size: int = 1024, *, shuffle: bool = False, seed: int = 0) -> Iterator[LabelledImages]:
        """Render the complete grid in batches.

        Args:
            batch_size: images per batch.
            shuffle: whether the order is random; by default that of the grid.
            seed: of the order.
        """
        order = (
            torch.randperm(len(self), generator=randomness.generator(seed, "stream"))
            if shuffle
            else torch.arange(len(self))
        )
        for part in order.split(batch_size):
            yield self.images_at(part)

    # samples ----------------------------------------------------------------------------------

    def sample(
        self, count: int, *, seed: int, distributions: Mapping[str, Prior | str] | Prior | str = "uniform"
    ) -> LabelledImages:
        """Render images with independent random factors.

        Args:
            count: number of images.
            seed: seed of the factors.
            distributions: `grid` (grid values), `uniform`, or a Beta or uniform prior on [0, 1], which is rescaled to
                the range of the factor; one for all factors, or a mapping from factor names.
        """
        validation.whole_number("count", count)
        chosen = self._distributions(distributions)
        columns = [_draw(f, d, count, seed) for f, d in zip(self.factors, chosen, strict=True)]
        values = torch.stack(columns, dim=1)
        return LabelledImages(self.render(values), values, self.factor_names)

    def _distributions(self, given: Mapping[str, Prior | str] | Prior | str) -> Sequence[Prior | str]:
        if not isinstance(given, Mapping):
            return [given] * len(self.factors)
        unknown = set(given) - set(self.factor_names)
        if unknown:
            raise InputError(
                f"{self.name} has no factor {sorted(unknown)[0]!r}; it has {', '.join(self.factor_names)}."
            )
        return [given.get(name, "uniform") for name in self.factor_names]


def _draw(factor: GridFactor, distribution: Prior | str, count: int, seed: int) -> Float[Tensor, " N"]:
    generator = randomness.generator(seed, f"factor {factor.name}")
    if distribution == "grid" or not factor.continuous:
        table = torch.tensor(factor.values, dtype=torch.float64)
        return table[torch.randint(len(table), (count,), generator=generator)]
    prior = Uniform(0.0, 1.0) if distribution == "uniform" else distribution
    if not isinstance(prior, Beta | Uniform) or prior.bounds != (0.0, 1.0):
        raise InputError(
            f"distributions of factors must be grid, uniform, or a Beta prior on [0, 1], got {distribution!r}."
        )
    return factor.low + (factor.high - factor.low) * prior.sample(count, 1, generator=generator)[:, 0]
