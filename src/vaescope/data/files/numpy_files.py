"""NumPy files: .npy is memory-mapped, .npz is streamed from its zip archive, and pickles are never loaded."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from vaescope.data.files.stored_array import StoredArray, file_reader, stored_array
from vaescope.errors import InputError


@file_reader("an .npy array")
def open_memmap(path: Path) -> np.ndarray:
    """An .npy array that stays on disk."""
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path.name} is an archive, not an .npy array; save the array with np.save.")
    return array


def open_npy(path: Path) -> StoredArray:
    array = open_memmap(path)
    stored = stored_array(path, "x", array)
    if not isinstance(array, np.memmap) or not array.flags.c_contiguous or not array.ndim:
        return stored
    start, dtype, shape = array.offset, array.dtype, array.shape

    def read_slice(first: int, end: int) -> np.ndarray:
        """Read, not mapped: mapped pages would count as memory of this process."""
        with path.open("rb") as file:
            file.seek(start + first * stored.row_bytes)
            return _read_rows(file, path, end - first, shape, dtype)

    def read_rows(indices: np.ndarray) -> np.ndarray:
        """From a mapping of its own, whose pages are released afterwards."""
        return np.asarray(open_memmap(path)[indices])

    return replace(stored, read_rows=read_rows, read_slice=read_slice)


@file_reader("an .npz archive")
def npz_names(path: Path) -> list[str]:
    """Names of the arrays in an archive."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


@file_reader("an .npz archive")
def open_npz(path: Path, name: str) -> StoredArray:
    """One array of an archive, read in order, a batch at a time."""
    if name not in npz_names(path):
        raise InputError(f"{path.name} has no array {name!r}; it has {', '.join(npz_names(path)) or 'none'}.")
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        shape, fortran_order, dtype = _read_header(file)
    if dtype.hasobject:
        raise InputError(f"{name} in {path.name} is a pickle, which could run code; save an array of numbers.")
    if fortran_order:
        raise InputError(f"{name} in {path.name} is stored by columns; save it again with np.ascontiguousarray.")

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
            _read_header(file)
            for start in range(0, shape[0], batch_size):
                yield _read_rows(file, path, min(batch_size, shape[0] - start), shape, dtype)

    return StoredArray(path, name, shape, dtype, read_batches)


def _read_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether columns come first, and dtype."""
    version = npy_format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"unknown version {version} of the npy format")
    return npy_format.read_array_header_1_0(file) if version == (1, 0) else npy_format.read_array_header_2_0(file)


def _read_rows(file: Any, path: Path, count: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = count * int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    content = file.read(size)
    if len(content) < size:
        raise InputError(f"{path.name} is truncated.")
    return np.frombuffer(content, dtype).reshape(count, *shape[1:])
