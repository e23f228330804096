"""The one reader of samples: whatever users pass, as arrays in the layout that a model takes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vaescope.core import validation
from vaescope.core.containers import unwrap
from vaescope.core.errors import InputError
from vaescope.data.catalogue import dataset_from
from vaescope.data.dataset import Dataset, channels_first
from vaescope.protocol import LatentModel

Samples = np.ndarray | Tensor
"""Rows or images, a sample along the first axis; an array may be memory-mapped."""


@dataclass(frozen=True, eq=False)
class ModelInputs:
    """Samples as a model takes them."""

    x: Samples
    auxiliary: Samples | None = None
    image_shape: tuple[int, int, int] | None = None
    """(channels, height, width) if samples are images."""

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: slice | np.ndarray) -> ModelInputs:
        return ModelInputs(self.x[rows], None if self.auxiliary is None else self.auxiliary[rows], self.image_shape)


def read_samples(model: LatentModel, x: object | None, auxiliary: object | None = None) -> ModelInputs:
    """Samples and the auxiliary input for one model.

    Args:
        model: the model that will encode them.
        x: samples in anything that holds them: an array, a file, a data frame, a sparse matrix, AnnData, a data set or
            loader, or samples that were read before; None for posteriors alone.
        auxiliary: labels or rows of numbers, one per sample.
    """
    return read_samples_of_each([model], x, auxiliary)[0]


def read_samples_of_each(
    models: Sequence[LatentModel], x: object | None, auxiliary: object | None = None
) -> list[ModelInputs]:
    """The same samples in the layout of each of several models; files and containers are read once."""
    if isinstance(x, ModelInputs):
        return [x] * len(models)
    shared: ModelInputs | None = None
    inputs = []
    for model in models:
        own, own_auxiliary = model.read_samples(x, auxiliary)
        if own is x:
            shared = shared or check_samples(x, auxiliary)
        inputs.append(_in_layout_of(model, shared if own is x and shared else check_samples(own, own_auxiliary)))
    return inputs


def check_samples(x: object, auxiliary: object | None = None) -> ModelInputs:
    """x and the auxiliary input as arrays or tensors with one row per sample; values are checked when they are read."""
    x, auxiliary = as_arrays(x), as_arrays(auxiliary, "auxiliary")
    checked = validation.rows(x, "x", finite=False)
    samples = x.detach() if isinstance(x, Tensor) else checked
    if auxiliary is None:
        return ModelInputs(samples)
    array = validation.array(auxiliary, "auxiliary")
    if array.ndim == 0:
        raise InputError("auxiliary must have a label or a row of numbers per sample, got a single number.")
    validation.same_rows({"x": len(samples), "auxiliary": len(array)})
    return ModelInputs(samples, auxiliary.detach() if isinstance(auxiliary, Tensor) else array)


def as_arrays(x: object, name: str = "x") -> object:
    """x with containers unwrapped and files read; None stays None."""
    if isinstance(x, str | Path):
        x = dataset_from(x)
    if isinstance(x, Dataset):
        rows = x.head(len(x))
        return rows if x.image_shape is None else rows.reshape(len(rows), *x.image_shape)
    return None if x is None else unwrap(x, name)


def spread_rows(samples: int, count: int) -> np.ndarray:
    """At most `count` row numbers in ascending order, drawn at random with a fixed seed: data may be periodic.

    >>> spread_rows(4, 10)
    array([0, 1, 2, 3])
    """
    if samples <= count:
        return np.arange(samples)
    return np.sort(np.random.default_rng(0).choice(samples, count, replace=False))


def _in_layout_of(model: LatentModel, given: ModelInputs) -> ModelInputs:
    """The first layout of x that the model can encode; x as it is if there is none, or only one."""
    x, shape = given.x, model.image_shape or _image_shape(given.x)
    layouts = [] if model.flattens_images else [*_layouts(x, model.image_shape)]
    probe = slice(0, 2)  # samples that are encoded to see whether a layout is right
    labels = None if given.auxiliary is None or not model.auxiliary_dim else given.auxiliary[probe]
    if len(layouts) > 1:
        x = next((found for found in layouts if _encodes(model, found[probe], labels)), x)
    return ModelInputs(x, given.auxiliary, shape)


def _encodes(model: LatentModel, x: Samples, auxiliary: Samples | None) -> bool:
    inputs = validation.tensor(x, "x", finite=False)
    try:
        with torch.no_grad():
            model.encode(inputs) if auxiliary is None else model.encode(inputs, auxiliary)
    except Exception:  # a user's function may raise anything
        return False
    return True


def _layouts(x: Samples, image: tuple[int, int, int] | None) -> Iterator[Samples]:
    yield x
    if image is not None and x.ndim == 2 and x.shape[1] == math.prod(image):
        yield x.reshape(len(x), *image)
    if x.ndim in (3, 4):
        moved = _channels_first(x)
        if moved.shape != x.shape:
            yield moved
        yield moved.reshape(len(x), -1)
    elif x.ndim > 2:
        yield x.reshape(len(x), -1)


def _channels_first(x: Samples) -> Samples:
    if isinstance(x, np.ndarray):
        return channels_first(x)
    if x.ndim == 3:
        return x[:, None]
    unchanged = channels_first(np.empty((1, *x.shape[1:]), np.uint8)).shape[1:] == x.shape[1:]  # the shape decides
    return x if unchanged else x.movedim(-1, 1)


def shape_of_flat_images(x: Tensor) -> tuple[int, int, int] | None:
    """(1, side, side) of rows that are square grey images, pixel by pixel; None for other rows.

    Pixels below each other are a row of the image apart, and correlate more than pixels that are two columns further.

    >>> rows = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    >>> shape_of_flat_images(rows.repeat(1, 8)), shape_of_flat_images(rows.repeat_interleave(8, 1))
    ((1, 8, 8), None)
    """
    side = math.isqrt(x.shape[1])
    if side < 8 or side * side != x.shape[1] or len(x) < 10:
        return None
    centred = x[:2000].double() - x[:2000].double().mean(0)
    unit = centred / centred.norm(dim=0).clamp(min=1e-12)

    def correlation(lag: int) -> float:
        return float((unit[:, lag:] * unit[:, :-lag]).sum(0).mean())

    below, beside = correlation(side), max(correlation(side - 2), correlation(side + 2))
    return (1, side, side) if below > max(0.05, beside + 0.02) else None


def _image_shape(x: Samples, smallest_side: int = 4) -> tuple[int, int, int] | None:
    """(channels, height, width) of samples that are images."""
    if x.ndim not in (3, 4) or min(sorted(x.shape[1:])[-2:]) < smallest_side:
        return None
    _, channels, height, width = _channels_first(x[:1]).shape
    return int(channels), int(height), int(width)
