"""Arrays in files, read a part at a time: memory use does not depend on the size of the file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

from vaescope import validation
from vaescope.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
BATCH_BYTES = 64 * 2**20  # read at once


@dataclass(frozen=True, eq=False)
class StoredArray:
    """An array of numbers in a file, with a row per sample."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read_batches: Callable[[int], Iterator[np.ndarray]] = field(repr=False)
    """Batch size -> all rows in order, in batches."""
    read_rows: Callable[[np.ndarray], np.ndarray] | None = field(default=None, repr=False)
    """Sorted indices -> rows; None for formats without random access."""
    read_slice: Callable[[int, int], np.ndarray] | None = field(default=None, repr=False)
    """First row, end -> neighbouring rows; None for formats without random access."""
    chunk_rows: int = 1
    """Rows that the file stores as a unit."""

    def __post_init__(self) -> None:
        shape = (*self.shape, 1) if len(self.shape) == 1 else self.shape  # labels have one number per sample
        validation.check_layout(shape, self.dtype, f"{self.name} in {self.path.name}")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def stream(self, batch_size: int | None = None) -> Iterator[np.ndarray]:
        """All rows in order, in batches; by default of about 64 MB."""
        with damage_reported(self.path):
            yield from self.read_batches(batch_size or max(1, BATCH_BYTES // max(1, self.row_bytes)))

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Rows at these indices, in the order of the indices. Files without random access are read once."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise InputError(f"{self.path.name} has rows 0 to {len(self) - 1}, got index {indices.max()}.")
        order = np.argsort(indices, kind="stable")
        found = self._sorted_rows(indices[order])
        out = np.empty_like(found)
        out[order] = found
        return out

    def all_rows(self) -> np.ndarray:
        """The complete array."""
        with damage_reported(self.path):
            found = np.concatenate(list(self.stream()))
        self._check_count(len(found))
        return found

    def _sorted_rows(self, indices: np.ndarray) -> np.ndarray:
        if self.read_rows is None:
            return self._filtered_rows(indices)
        with damage_reported(self.path):
            return self.read_rows(indices)

    def _filtered_rows(self, indices: np.ndarray) -> np.ndarray:
        """Rows at sorted indices, from one pass over the file."""
        out = np.empty((len(indices), *self.shape[1:]), self.dtype)
        read, done = 0, 0
        for batch in self.stream():
            end = int(np.searchsorted(indices, read + len(batch)))
            out[done:end] = batch[indices[done:end] - read]
            read, done = read + len(batch), end
            if done == len(indices):
                break
        if done < len(indices):
            self._check_count(read)
        return out

    def _check_count(self, found: int) -> None:
        if found != len(self):
            raise InputError(f"{self.path.name} is truncated: it has {found} rows, but declares {len(self)}.")


def stored_array(path: Path, name: str, array: np.ndarray) -> StoredArray:
    """A `StoredArray` for an array in memory or a memory-mapped array."""

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        for start in range(0, len(array), batch_size):
            yield np.asarray(array[start : start + batch_size])

    return StoredArray(
        path,
        name,
        array.shape,
        array.dtype,
        read_batches,
        lambda indices: np.asarray(array[indices]),
        lambda first, end: np.asarray(array[first:end]),
    )


@contextmanager
def damage_reported(path: Path) -> Iterator[None]:
    """Convert any exception of a library that reads a file into a one-line `InputError`."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path.name} is damaged: {reason(error)}.") from None


def file_reader(file_type: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that opens a file: any exception of a library becomes a one-line `InputError`.

    Libraries raise many kinds of exceptions for a file that is not what its name says: their own, those of zlib, those
    of Python's tokenizer.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except InputError:
                raise
            except Exception as error:
                path = next((Path(a) for a in args if isinstance(a, str | Path)), Path("the file"))
                raise InputError(f"{path.name} cannot be read as {file_type}: {reason(error)}.") from None

        return guarded

    return decorate


def reason(error: BaseException) -> str:
    """The first line of an exception's message, without the final period."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
