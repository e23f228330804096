"""HDF5 files, and AnnData files, which are HDF5 files with a matrix X of cells by genes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vaescope.data.files.stored_array import StoredArray, file_reader
from vaescope.errors import InputError
from vaescope.extras import require


@file_reader("an HDF5 file")
def open_hdf5_file(path: Path) -> Any:
    return require("h5py", "reading HDF5 files").File(path, "r")


def _is_array(item: object) -> bool:
    return isinstance(item, require("h5py", "reading HDF5 files").Dataset)


@file_reader("an HDF5 file")
def hdf5_names(path: Path) -> list[str]:
    """Names of the arrays at the top level of a file."""
    with open_hdf5_file(path) as file:
        return [name for name, item in file.items() if _is_array(item)]


@file_reader("an HDF5 file")
def open_hdf5(path: Path, name: str) -> StoredArray:
    """One array of a file."""
    with open_hdf5_file(path) as file:
        if name not in file or not _is_array(file[name]):
            raise InputError(f"{path.name} has no array {name!r}; it has {', '.join(hdf5_names(path)) or 'none'}.")
        shape, dtype = file[name].shape, file[name].dtype
        chunk_rows = file[name].chunks[0] if file[name].chunks else 1

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        with open_hdf5_file(path) as file:
            for start in range(0, shape[0], batch_size):
                yield np.asarray(file[name][start : start + batch_size])

    def read_rows(indices: np.ndarray) -> np.ndarray:
        unique, inverse = np.unique(indices, return_inverse=True)
        with open_hdf5_file(path) as file:
            return np.asarray(file[name][unique])[inverse]

    def read_slice(first: int, end: int) -> np.ndarray:
        with open_hdf5_file(path) as file:
            return np.asarray(file[name][first:end])

    return StoredArray(path, name, shape, dtype, read_batches, read_rows, read_slice, chunk_rows)


@file_reader("an AnnData file")
def open_anndata(path: Path) -> StoredArray:
    """The matrix X of an AnnData file, dense or in compressed sparse row format."""
    with open_hdf5_file(path) as file:
        if "X" not in file:
            raise InputError(f"{path.name} has no matrix X and is not an AnnData file.")
        if _is_array(file["X"]):
            return open_hdf5(path, "X")
        encoding = str(file["X"].attrs.get("encoding-type", ""))
        if encoding != "csr_matrix":
            raise InputError(
                f"X in {path.name} must be dense or sparse by rows (csr_matrix), got {encoding or 'a group'}."
            )
        shape, dtype = tuple(int(s) for s in file["X"].attrs["shape"]), file["X"]["data"].dtype

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        with open_hdf5_file(path) as file:
            offsets = file["X"]["indptr"][:]
            for start in range(0, shape[0], batch_size):
                yield _dense_rows(path, file["X"], offsets[start : start + batch_size + 1], shape[1], dtype)

    return StoredArray(path, "X", shape, dtype, read_batches)


def _dense_rows(path: Path, group: Any, offsets: np.ndarray, width: int, dtype: np.dtype) -> np.ndarray:
    """Dense rows of a sparse matrix, from the offsets of these rows and of the end of the last one."""
    count, stored = len(offsets) - 1, slice(int(offsets[0]), int(offsets[-1]))
    columns = np.asarray(group["indices"][stored])
    rows = np.repeat(np.arange(count), np.diff(offsets))
    if len(rows) != len(columns) or (len(columns) and not 0 <= columns.min() <= columns.max() < width):
        raise InputError(f"{path.name} is damaged: its sparse matrix has indices out of range.")
    out = np.zeros((count, width), dtype)
    out[rows, columns] = np.asarray(group["data"][stored])
    return out
