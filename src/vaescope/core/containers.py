"""Samples in what people keep them in: data frames, sparse matrices, AnnData, and PyTorch's data sets and loaders.

None of these libraries is imported; their objects are recognised by what they can do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from vaescope.core.errors import InputError

SAMPLES = 10_000  # that are read of a data set or a loader, at most


def unwrap(values: Any, name: str) -> object:
    """The array in a container; anything else as it is.

    >>> from torch.utils.data import TensorDataset
    >>> unwrap(TensorDataset(torch.ones(3, 2), torch.zeros(3)), "x").shape
    torch.Size([3, 2])
    """
    if isinstance(values, DataLoader):
        return torch.cat([*_batches(values, name)])[:SAMPLES]
    if isinstance(values, Dataset):
        return torch.stack([_sample(item, name) for item in _items(values)])
    if isinstance(values, Tensor):
        return _dense_tensor(values, name)
    if _has(values, "X", "obs", "var"):
        return unwrap(values.to_memory().X if getattr(values, "isbacked", False) else values.X, name)
    if _has(values, "toarray", "nnz"):
        _check_size(values.shape, name)
        return values.toarray()
    if not is_data_frame(values):
        return values
    arrays = frame_columns(values)
    text = [column for column, numbers in arrays.items() if numbers is None]
    if text:
        listed = ", ".join(text[:5]) + ", …" * (len(text) > 5)
        raise InputError(
            f"{name} has columns that are not numbers: {listed}; drop them, as in {name}.drop(columns={text[:5]}), or "
            "encode categories as integers."
        )
    found = [numbers for numbers in arrays.values() if numbers is not None]
    return np.column_stack(found) if found else np.zeros((len(values), 0))


def _has(values: object, *names: str) -> bool:
    return all(hasattr(values, name) for name in names)


def _dense_tensor(values: Tensor, name: str) -> Tensor:
    if values.layout == torch.strided:
        return values
    _check_size(tuple(values.shape), name)
    return values.to_dense()


def _check_size(shape: tuple[int, ...], name: str) -> None:
    size = 8 * math.prod(shape)
    if size > 4 * 2**30:
        raise InputError(
            f"{name} is sparse and would need {size / 2**30:.0f} GB as an array of {shape}; pass some of its rows, "
            f"such as {name}[:10000]."
        )


# data frames ----------------------------------------------------------------------------------


def is_data_frame(values: object) -> bool:
    """Whether this is a table with named columns, such as a data frame of pandas or polars."""
    return _has(values, "columns", "to_numpy") and not isinstance(values, type)


def frame_columns(frame: Any) -> dict[str, np.ndarray | None]:
    """The columns of a data frame by name: numbers, missing ones as NaN; None for a column of anything else."""
    found: dict[str, np.ndarray | None] = {}
    for name in frame.columns:
        values = np.asarray(frame[name])
        found[str(name)] = values if values.dtype.kind in "fiub" else None
        if values.dtype == object and not any(isinstance(value, str | bytes) for value in values):
            missing = ("NoneType", "NAType", "NaTType")  # whatever a library calls them
            with suppress(TypeError, ValueError):
                numbers = [math.nan if type(value).__name__ in missing else float(value) for value in values]
                found[str(name)] = np.array(numbers, np.float64)
    return found


# data sets and loaders ------------------------------------------------------------------------


def _items(dataset: Dataset[object]) -> Iterator[object]:
    """Items from all over a data set; the first ones of one without a length."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        return islice(iter(dataset), SAMPLES)
    count = len(dataset)
    chosen = np.arange(count)
    if count > SAMPLES:
        chosen = np.sort(np.random.default_rng(0).choice(count, SAMPLES, replace=False))
    return (dataset[int(index)] for index in chosen)


def _batches(loader: Iterable[object], name: str) -> Iterator[Tensor]:
    """Batches of samples, until there are enough."""
    read = 0
    for batch in loader:
        found = _sample(batch, name)
        yield found
        read += len(found)
        if read >= SAMPLES:
            return


def _sample(item: object, name: str) -> Tensor:
    """The samples of an item or a batch: itself, the first of several values, or the entry with a usual name."""
    if isinstance(item, Mapping):
        return _sample(item[_key(item, name)], name)
    if isinstance(item, tuple | list) and item and not isinstance(item[0], int | float):
        return _sample(item[0], name)
    if isinstance(item, Tensor | np.ndarray | list | tuple):
        return _dense_tensor(torch.as_tensor(item), name)
    raise InputError(
        f"items of {name} must be tensors, or tuples that start with one, got {type(item).__name__}; convert them, as "
        "with torchvision.transforms.ToTensor()."
    )


def _key(item: Mapping[object, object], name: str) -> object:
    names = ("x", "X", "image", "images", "pixel_values", "data", "input", "inputs", "input_ids")
    usual: list[object] = [key for key in item if key in names]
    tensors = usual or [key for key, value in item.items() if isinstance(value, Tensor | np.ndarray)]
    if len(tensors) != 1:
        listed = ", ".join(map(str, list(item)[:6]))
        raise InputError(
            f"items of {name} are dictionaries with {listed}; write [item[KEY] for item in data] with the key of the "
            "samples."
        )
    return tensors[0]
