"""Any data as a table that is read in chunks: arrays, data frames, files, data sets. Missing values are allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from vaescope import validation
from vaescope.data.catalogue import open_dataset, open_for_training
from vaescope.data.dataset import Dataset, channels_first
from vaescope.data.files.csv_tables import csv_columns, open_csv
from vaescope.data.files.loading import CSV, open_array
from vaescope.data.files.official import OFFICIAL_FILES
from vaescope.data.files.parquet import open_parquet, parquet_columns
from vaescope.data.files.stored_array import StoredArray, stored_array
from vaescope.data.files.streaming import StoredDataset
from vaescope.errors import InputError
from vaescope.validation import ImageShape

Array = np.ndarray
CHUNK_NUMBERS = 2**22  # in a chunk: 32 MB as float64
MIN_ROWS = 10


@runtime_checkable
class DataFrame(Protocol):
    """A table with named columns, such as a data frame of pandas or polars."""

    @property
    def columns(self) -> object: ...

    def to_numpy(self) -> Array: ...

    def __getitem__(self, name: str) -> object: ...


@dataclass(frozen=True, eq=False)
class Source:
    """Rows of numbers that can be read several times, a chunk at a time."""

    name: str
    rows: int
    columns: int
    stream: Callable[[], Iterator[Array]]
    """All rows as chunks (B, n) of float64."""
    names: tuple[str, ...] | None = None
    """Names of the columns, if they have any."""
    image_shape: ImageShape | None = None
    not_numeric: tuple[str, ...] = ()
    """Columns that were left out."""
    rescaled: float = 1.0
    """What stored numbers were divided by."""

    def column(self, index: int) -> str:
        """What a column is called in sentences."""
        return repr(self.names[index]) if self.names and self.names[index] else f"column {index}"


def source_of(x: object, name: str | None = None) -> Source:
    """Read anything that `vs.fit` takes, and data frames and tables with text columns.

    >>> source_of(np.zeros((20, 3))).columns
    3
    """
    found = _open(x)
    if found.rows < MIN_ROWS:
        raise InputError(f"x needs at least {MIN_ROWS} samples, got {found.rows}.")
    return found if name is None else replace(found, name=name)


def _open(x: object) -> Source:
    if isinstance(x, str | Path):
        return _from_path(str(x))
    if isinstance(x, Dataset):
        return _from_rows(x.name, x.x.numpy(), x.image_shape, x.byte_scale)
    if isinstance(x, StoredDataset):
        return _from_stored(x.array, x.byte_scale)
    if isinstance(x, DataFrame):
        return _from_frame(x)
    found = validation.rows(x, "x", finite=False)
    return _from_stored(stored_array(Path("x"), "x", found), None)


def _from_path(path: str) -> Source:
    file = Path(path)
    official = any(file.name in dict(spec.files) for spec in OFFICIAL_FILES.values())
    if not file.exists() or official:
        return _open(open_for_training(path) if file.exists() else open_dataset(path))
    if file.suffix.lower() in CSV:
        return _from_table(open_csv(file), *csv_columns(file))
    if file.suffix.lower() == ".parquet":
        return _from_table(open_parquet(file), *parquet_columns(file))
    return _from_stored(open_array(file), None)


def _from_table(table: StoredArray, names: list[str], others: list[str]) -> Source:
    stream = _streamed(table, 1.0, images=False)
    return Source(table.path.stem, len(table), len(names), stream, tuple(names), not_numeric=tuple(others))


def _from_frame(frame: DataFrame) -> Source:
    """Numeric columns of a data frame; the others are named."""
    names = [str(name) for name in frame.columns]  # type: ignore[attr-defined]
    columns = {name: np.asarray(frame[name]) for name in names}
    numeric = {name: found for name, column in columns.items() if (found := _numbers(column)) is not None}
    if not numeric:
        raise InputError("x has no numeric columns; encode categories as integers.")
    values = np.column_stack(list(numeric.values()))
    others = tuple(name for name in names if name not in numeric)
    stream = _streamed(stored_array(Path("x"), "x", values), 1.0, images=False)
    return Source("x", len(values), values.shape[1], stream, tuple(numeric), not_numeric=others)


def _numbers(column: Array) -> Array | None:
    """A column of a data frame as float64; None if it holds anything but numbers."""
    if column.dtype == object and any(isinstance(value, str | bytes) for value in column):
        return None
    try:
        return column.astype(np.float64) if column.dtype.kind in (*validation.NUMERIC_KINDS, "O") else None
    except (TypeError, ValueError):
        return None


def _from_rows(name: str, rows: Array, image_shape: ImageShape | None, scale: float) -> Source:
    stream = _streamed(stored_array(Path("x"), "x", rows), scale, images=False)
    return Source(name, len(rows), rows.shape[1], stream, image_shape=image_shape, rescaled=scale)


def _from_stored(stored: StoredArray, scale: float | None) -> Source:
    """An array in memory or on disk; integer images are rescaled to [0, 1] as `vs.fit` does."""
    images = len(stored.shape) in (3, 4)
    sample = stored.rows(np.linspace(0, len(stored) - 1, min(256, len(stored)), dtype=np.int64))
    shape = channels_first(sample).shape[1:] if images else None
    if scale is None:
        integer = images and sample.dtype.kind in "iu" and sample.max() > 1
        scale = (255.0 if sample.max() <= 255 else 65535.0) if integer else 1.0
    columns = int(np.prod(stored.shape[1:], dtype=np.int64))
    image_shape = None if shape is None else (int(shape[0]), int(shape[1]), int(shape[2]))
    name = "x" if stored.path == Path("x") else stored.path.stem
    stream = _streamed(stored, scale, images=images)
    return Source(name, len(stored), columns, stream, image_shape=image_shape, rescaled=scale)


def _streamed(stored: StoredArray, scale: float, *, images: bool) -> Callable[[], Iterator[Array]]:
    size = max(1, CHUNK_NUMBERS // max(1, int(np.prod(stored.shape[1:], dtype=np.int64))))

    def stream() -> Iterator[Array]:
        for chunk in stored.stream(size):
            rows = channels_first(chunk) if images else chunk
            flat = rows.reshape(len(rows), -1).astype(np.float64)
            yield flat if scale == 1.0 else flat / scale

    return stream
