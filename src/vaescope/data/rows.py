"""Rows to train on: in memory, or streamed from a file in windows. Bytes are converted to numbers batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Shaped
from torch import Tensor


@runtime_checkable
class TrainingRows(Protocol):
    """Rows of one or more data sets, as training reads them."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Data sets, samples, columns."""
        ...

    def windows(self, generator: torch.Generator) -> Iterator[Shaped[Tensor, "D W r"]]:
        """All rows as stored, in parts that fit in memory; the order of the parts is drawn from the generator."""
        ...

    def to_float(self, stored: Shaped[Tensor, "*B r"]) -> Float[Tensor, "*B r"]:
        """Stored rows as numbers."""
        ...

    def sample(self, count: int) -> Float[Tensor, "D C r"]:
        """Some rows from all over the data, as numbers; always the same ones."""
        ...

    def to(self, device: torch.device) -> TrainingRows:
        """The same rows, on a device if they are in memory."""
        ...


@dataclass(frozen=True, eq=False)
class ArrayRows:
    """Rows in memory: float32, or bytes."""

    data: Shaped[Tensor, "D N r"]
    byte_scale: float = 1.0
    """What bytes are divided by."""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    def windows(self, generator: torch.Generator) -> Iterator[Shaped[Tensor, "D W r"]]:
        yield self.data

    def to_float(self, stored: Shaped[Tensor, "*B r"]) -> Float[Tensor, "*B r"]:
        return bytes_to_float(stored, self.byte_scale)

    def sample(self, count: int) -> Float[Tensor, "D C r"]:
        return self.to_float(self.data[:, :: max(1, self.data.shape[1] // count)][:, :count])

    def to(self, device: torch.device) -> ArrayRows:
        kept = self.data if self.data.dtype == torch.uint8 else self.data.float()
        return replace(self, data=kept.to(device))


def bytes_to_float(stored: Shaped[Tensor, "*B r"], scale: float) -> Float[Tensor, "*B r"]:
    """Bytes divided by their scale; other numbers as float32.

    >>> bytes_to_float(torch.tensor([[0, 51, 255]], dtype=torch.uint8), 255.0)
    tensor([[0.0000, 0.2000, 1.0000]])
    """
    return stored.float().div_(scale) if stored.dtype == torch.uint8 else stored.float()
