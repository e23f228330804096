"""numpy's files: .npy is mapped, .npz is read through its zip archive in parts, and no pickle is ever opened."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from vaescope.data.files.source import Source, from_array, numbers, reader, said
from vaescope.errors import InputError


@reader
def mapped(path: Path) -> np.ndarray:
    """An .npy array that stays on disk."""
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InputError(f"{path.name} is no array that can be read: {said(error)}.") from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path.name} is no .npy array but an archive; save the array by itself with np.save.")
    return array


def open_npy(path: Path) -> Source:
    return from_array(path, "array", mapped(path))


@reader
def npz_names(path: Path) -> list[str]:
    """Arrays in the archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path.name} is no archive that can be read: {said(error)}.") from None


@reader
def open_npz(path: Path, name: str) -> Source:
    """One array of an archive, read in order: whatever its size, a part at a time is in memory."""
    if name not in npz_names(path):
        raise InputError(f"{path.name} has no array {name!r}; it has {', '.join(npz_names(path)) or 'none'}.")
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
            shape, fortran, dtype = _header(file)
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as error:
        raise InputError(f"{path.name}: {name} cannot be read: {said(error)}.") from None
    if fortran:
        raise InputError(f"{path.name}: {name} is stored by columns; save it again with np.ascontiguousarray.")
    numbers(path, name, shape, dtype)

    def parts(batch: int) -> Iterator[np.ndarray]:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
            _header(file)
            for first in range(0, shape[0], batch):
                yield _some_rows(file, path, min(batch, shape[0] - first), shape, dtype)

    return Source(path, name, shape, dtype, parts)


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type; an object array is a pickle and is refused by its type."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"unknown version {version} of the npy format")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it is a pickle, which could run code")
    return shape, fortran, dtype


def _some_rows(file: Any, path: Path, rows: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    wanted = rows * int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    try:
        data = file.read(wanted)
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise InputError(f"{path.name} is damaged: {said(error)}.") from None
    if len(data) < wanted:
        raise InputError(f"{path.name} ends too early: it is truncated.")
    return np.frombuffer(data, dtype).reshape(rows, *shape[1:])
