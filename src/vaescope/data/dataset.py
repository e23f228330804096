"""`Dataset`: observations as rows, with their image shape and factors if known."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from vaescope.core import randomness, validation
from vaescope.core.errors import InputError
from vaescope.core.validation import ImageShape


@dataclass(frozen=True, eq=False)
class Split:
    """Rows for training, for early stopping and for reported results."""

    train: Shaped[Tensor, "*D N n"]
    validation: Shaped[Tensor, "*D M n"]
    test: Shaped[Tensor, "*D T n"]


def split(x: Shaped[Tensor, "N n"], *, fractions: tuple[float, float] = (0.7, 0.2)) -> Split:
    """Split rows in order: training, then validation, then test. Shuffle ordered rows first.

    Args:
        x: observations, a row per sample.
        fractions: shares of training and validation rows; the rest are test rows.
    """
    count = len(x)
    if count < 2:
        raise InputError(f"x needs at least 2 samples to be split, got {count}.")
    validation = max(1, round(fractions[1] * count))
    train = min(max(1, round(fractions[0] * count)), count - validation)
    parts = x[:train], x[train : train + validation], x[train + validation :]
    return Split(*(part.contiguous() for part in parts))


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


@dataclass(frozen=True, eq=False)
class Dataset:
    """Observations (N, n), one row per sample."""

    name: str
    """What reports and run folders call it."""
    x: Shaped[Tensor, "N n"]
    """Floating-point numbers; bytes where `fit` asked for them."""
    image_shape: ImageShape | None = None
    """(channels, height, width) if the rows are images."""
    factors: Float[Tensor, "N k"] | None = None
    """Known factors of the samples; None if there are none."""
    factor_names: tuple[str, ...] = ()
    """A name per factor; may be empty."""
    byte_scale: float = 1.0
    """What bytes are divided by to be numbers in [0, 1]."""
    what_was_read: str = ""
    """Which part of which file this is, in one line; empty if it does not come from a file."""

    def __len__(self) -> int:
        return len(self.x)

    @property
    def columns(self) -> int:
        return self.x.shape[1]

    def head(self, count: int) -> Float[Tensor, "C n"]:
        """The first rows as numbers.

        Args:
            count: number of rows, at most.
        """
        return bytes_to_float(self.x[:count], self.byte_scale)

    def spread_rows(self, count: int) -> Float[Tensor, "C n"]:
        """Some rows from all over the data, as numbers; always the same ones.

        Args:
            count: number of rows, at most.
        """
        indices = torch.linspace(0, len(self) - 1, min(count, len(self))).long()
        return bytes_to_float(self.x[indices], self.byte_scale)

    def digest(self) -> str:
        """Identifies the content."""
        return hashlib.sha256(self.x.contiguous().numpy().tobytes()).hexdigest()[:16]

    def split_rows(self, validation_share: float) -> tuple[ArrayRows, ArrayRows]:
        """Rows for training and for validation, shuffled; always in the same order.

        Args:
            validation_share: share of the rows that are for validation, between 0 and 1.
        """
        order = torch.randperm(len(self), generator=randomness.generator(0, "split"))
        parts = split(self.x[order], fractions=(1 - validation_share, validation_share))
        training, validation = (
            ArrayRows(part.unsqueeze(0), self.byte_scale) for part in (parts.train, parts.validation)
        )
        return training, validation


def flatten_samples(
    values: object, name: str, *, minimum: int = 1, unit_range: bool = False
) -> tuple[ImageShape | None, Float[Tensor, "N n"]]:
    """Convert samples to rows of float32, channels first; returns the image shape (None if not images) and the rows.

    Images have shape (N, H, W), (N, H, W, C) or (N, C, H, W). Integer images are rescaled from 0–255 (or 0–65535) to
    [0, 1]. Arrays of other dimensions are flattened.

    Args:
        values: the samples.
        name: name of the samples in error messages.
        minimum: smallest number of samples.
        unit_range: whether to reject images with values outside [0, 1].

    >>> shape, rows = flatten_samples(np.zeros((10, 8, 8), np.uint8), "x")
    >>> shape, rows.shape
    ((1, 8, 8), torch.Size([10, 64]))
    """
    given = validation.rows(values, name, minimum=minimum)
    images = given.ndim in (3, 4)
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(channels_first(given) if images else given.reshape(len(given), -1), np.float32)
    if given.dtype.kind == "f" and given.dtype.itemsize > 4 and not np.isfinite(found).all():
        raise InputError(f"{name} has values outside ±3.4e38, the range of float32; rescale them.")
    if given.dtype.kind == "f" and given.dtype.itemsize > 4 and given.any() and not found.any():
        raise InputError(f"{name} has no values above 1e-45, the smallest number of float32; rescale them.")
    x = torch.from_numpy(found if found.flags.writeable else found.copy())
    if not images:
        return None, x
    if given.dtype.kind in "iu" and given.max() > 1:
        x = x / (255.0 if given.max() <= 255 else 65535.0)
    if unit_range and (x.min() < 0 or x.max() > 1):
        raise InputError(
            f"images in {name} must have values in [0, 1] or bytes, got {float(x.min()):g} to {float(x.max()):g}; "
            "rescale them."
        )
    _, channels, height, width = x.shape
    return (channels, height, width), x.flatten(1)


def flatten_bytes(images: np.ndarray) -> tuple[ImageShape, Shaped[Tensor, "N n"], float]:
    """Images of bytes as rows of bytes, channels first: their shape, the rows, and what to divide them by."""
    found = channels_first(images)
    rows = torch.from_numpy(np.array(found, np.uint8, order="C")).flatten(1)
    return (found.shape[1], found.shape[2], found.shape[3]), rows, 255.0 if int(rows.max()) > 1 else 1.0


def channels_first(images: np.ndarray) -> np.ndarray:
    """Images (N, H, W) or (N, H, W, C) as (N, C, H, W)."""
    if images.ndim == 3:
        return images[:, None]
    channels_last = images.shape[-1] in (1, 3, 4) and images.shape[1] not in (1, 3)
    return np.moveaxis(images, -1, 1) if channels_last else images
