"""Arrays in files, read a part at a time: memory use does not depend on the size of the file."""

from __future__ import annotations

import functools
import math
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import BufferedIOBase
from pathlib import Path
from typing import IO, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.lib import format as npy_format

from vaescope.core import validation
from vaescope.core.errors import InputError, require

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def errors_in_one_line(path: Path, problem: str = "is damaged") -> Iterator[None]:
    """Convert any exception of a library into an `InputError` of one line.

    Libraries raise many kinds of exceptions for a file that is not what its name says: their own, those of zlib, those
    of Python's tokenizer.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"{path.name} {problem}: {reason}.") from None


def file_reader(file_type: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function that opens a file, the first path among its arguments, as `errors_in_one_line` does."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            path = next((Path(a) for a in args if isinstance(a, str | Path)), Path("the file"))
            with errors_in_one_line(path, f"cannot be read as {file_type}"):
                return function(*args, **kwargs)

        return guarded

    return decorate


@dataclass(frozen=True, eq=False)
class StoredArray:
    """An array of numbers in a file, with a row per sample."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read_batches: Callable[[int], Iterator[np.ndarray]] | None = field(default=None, repr=False)
    """Batch size -> all rows in order, in batches; None if `read_slice` does that."""
    read_rows: Callable[[np.ndarray], np.ndarray] | None = field(default=None, repr=False)
    """Sorted indices -> rows; None for formats without random access."""
    read_slice: Callable[[int, int], np.ndarray] | None = field(default=None, repr=False)
    """First row, end -> neighbouring rows; None for formats without random access."""
    chunk_rows: int = 1
    """Rows that the file stores as a unit."""
    about: str = ""
    """Further words on what was read: names of columns, what was left out and why, how the file is written."""
    columns: tuple[str, ...] | None = None
    """Names of the columns of a table."""
    left_out: tuple[str, ...] = ()
    """Names of the columns of a table that hold no numbers."""

    def __post_init__(self) -> None:
        shape = (*self.shape, 1) if len(self.shape) == 1 else self.shape  # labels have one number per sample
        validation.check_layout(shape, self.dtype, f"{self.name} in {self.path.name}")

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def what_was_read(self) -> str:
        """One line: the file, the size of the array, and what was left out."""
        array = "" if self.name in ("x", "table", "images") else f" {self.name},"
        size = f"{len(self)} rows x {dimensions(self.shape[1:])}" if len(self.shape) > 1 else f"{len(self)} values"
        return f"read {self.path.name}:{array} {size}{self.about or f' ({self.dtype})'}"

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def stream(self, batch_size: int | None = None) -> Iterator[np.ndarray]:
        """All rows in order, in batches; by default of about 64 MB."""
        size = batch_size or max(1, 64 * 2**20 // max(1, self.row_bytes))
        with errors_in_one_line(self.path):
            if self.read_batches is not None:
                yield from self.read_batches(size)
                return
            assert self.read_slice is not None
            for start in range(0, len(self), size):
                yield self.read_slice(start, min(start + size, len(self)))

    def rows(self, indices: np.ndarray) -> np.ndarray:
        """Rows at these indices, in the order of the indices. Files without random access are read once."""
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self):
            raise InputError(f"{self.path.name} has rows 0 to {len(self) - 1}, got index {indices.max()}.")
        order = np.argsort(indices, kind="stable")
        if self.read_rows is None:
            found = self._filtered_rows(indices[order])
        else:
            with errors_in_one_line(self.path):
                found = self.read_rows(indices[order])
        out = np.empty_like(found)
        out[order] = found
        return out

    def all_rows(self) -> np.ndarray:
        """The complete array."""
        with errors_in_one_line(self.path):
            found = np.concatenate(list(self.stream()))
        self._check_count(len(found))
        return found

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
    return StoredArray(
        path,
        name,
        array.shape,
        array.dtype,
        read_rows=lambda indices: np.asarray(array[indices]),
        read_slice=lambda first, end: np.asarray(array[first:end]),
    )


def check_stored(path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Refuse an array that declares far more numbers than its file holds, which compression cannot explain.

    Sparse HDF5 files and expanded tensors of a few bytes can declare any size; reading them would take days.
    """
    declared, stored = math.prod(shape) * dtype.itemsize, path.stat().st_size
    if declared > 2000 * max(stored, 2**20):  # deflate makes data at most 1032 times smaller
        raise InputError(
            f"{name} in {path.name} declares {declared / 1e9:.0f} GB, but the file has {stored / 1e6:.3g} MB: most "
            "of it was never written; save the rows that have values."
        )


def check_name(path: Path, name: str, names: list[str], what: str = "array") -> None:
    """A file must have an array of this name."""
    if name not in names:
        raise InputError(f"{path.name} has no {what} {name!r}; it has {', '.join(names) or 'none'}.")


# .npy and .npz --------------------------------------------------------------------------------


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
    check_name(path, name, npz_names(path))
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        shape, fortran_order, dtype = _read_header(file)
        stored, member = file.tell(), archive.getinfo(f"{name}.npy")
    if dtype.hasobject:
        raise InputError(f"{name} in {path.name} is a pickle, which could run code; save an array of numbers.")
    if fortran_order:
        raise InputError(f"{name} in {path.name} is stored by columns; save it again with np.ascontiguousarray.")

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
            _read_header(file)
            for start in range(0, shape[0], batch_size):
                yield _read_rows(file, path, min(batch_size, shape[0] - start), shape, dtype)

    found = StoredArray(path, name, shape, dtype, read_batches, about=_other_arrays(npz_names(path), name))
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        return found
    with path.open("rb") as content:  # a member that is not compressed is read like an .npy file
        content.seek(member.header_offset + 26)
        first = stored + member.header_offset + 30 + sum(struct.unpack("<HH", content.read(4)))

    def read_slice(start: int, end: int) -> np.ndarray:
        with path.open("rb") as content:
            content.seek(first + start * found.row_bytes)
            return _read_rows(content, path, end - start, shape, dtype)

    return replace(found, read_slice=read_slice)


def _other_arrays(names: Sequence[str], chosen: str) -> str:
    others = [name for name in names if name != chosen]
    return f"; other arrays: {', '.join(others[:20])}" if others else ""


def _read_header(file: IO[bytes] | BufferedIOBase) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether columns come first, and dtype."""
    version = npy_format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"unknown version {version} of the npy format")
    return npy_format.read_array_header_1_0(file) if version == (1, 0) else npy_format.read_array_header_2_0(file)


def _read_rows(
    file: IO[bytes] | BufferedIOBase, path: Path, count: int, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    size = count * int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    content = file.read(size)
    if len(content) < size:
        raise InputError(f"{path.name} is truncated.")
    return np.frombuffer(content, dtype).reshape(count, *shape[1:])


# PyTorch --------------------------------------------------------------------------------------


@file_reader("tensors without running code")
def torch_arrays(path: Path) -> dict[str, np.ndarray]:
    """The tensors in a file by name, memory-mapped if the format allows it."""
    with warnings.catch_warnings():  # torch warns about files that it then rejects
        warnings.simplefilter("ignore")
        try:
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):
                raise
            content = torch.load(path, map_location="cpu", weights_only=True)  # the format of PyTorch before 1.6
    tensors = {"tensor": content} if isinstance(content, torch.Tensor) else content
    if not isinstance(tensors, dict) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
        raise InputError(f"{path.name} must hold a tensor or a dictionary of tensors, got {type(content).__name__}.")
    for name, value in tensors.items():
        check_stored(path, str(name), tuple(value.shape), np.dtype((np.void, value.element_size())))
    return {str(name): validation.array(value, f"{name} in {path.name}") for name, value in tensors.items()}


def torch_names(path: Path) -> list[str]:
    """Names of the tensors in a file."""
    return list(torch_arrays(path))


def open_torch(path: Path, name: str) -> StoredArray:
    """One tensor of a file."""
    arrays = torch_arrays(path)
    check_name(path, name, list(arrays), "tensor")
    return replace(stored_array(path, name, arrays[name]), about=_other_arrays(list(arrays), name))


# HDF5 and AnnData -----------------------------------------------------------------------------


@file_reader("an HDF5 file")
def hdf5_names(path: Path) -> list[str]:
    """Names of the arrays at the top level of a file."""
    h5py = require("h5py", "reading HDF5 files")
    with h5py.File(path, "r") as file:
        return [name for name, item in file.items() if isinstance(item, h5py.Dataset)]


@file_reader("an HDF5 file")
def open_hdf5(path: Path, name: str) -> StoredArray:
    """One array of a file."""
    h5py = require("h5py", "reading HDF5 files")
    with h5py.File(path, "r") as file:
        if name not in file or not isinstance(file[name], h5py.Dataset):
            check_name(path, name, hdf5_names(path))
        shape, dtype = file[name].shape, file[name].dtype
        chunk_rows = file[name].chunks[0] if file[name].chunks else 1
        others = [other for other, item in file.items() if isinstance(item, h5py.Dataset)]
        if shape is None:
            raise InputError(f"{name} in {path.name} is empty.")
        elsewhere = file[name].is_virtual or file[name].external or Path(file[name].file.filename) != path
        if not elsewhere:  # the numbers are in this file
            check_stored(path, name, shape, dtype)

    def read(index: slice | np.ndarray) -> np.ndarray:
        with h5py.File(path, "r") as file:
            return np.asarray(file[name][index])

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        with h5py.File(path, "r") as file:  # opened once: it keeps a cache of chunks
            for start in range(0, shape[0], batch_size):
                yield np.asarray(file[name][start : start + batch_size])

    def read_rows(indices: np.ndarray) -> np.ndarray:
        unique, inverse = np.unique(indices, return_inverse=True)
        return read(unique)[inverse]

    return StoredArray(
        path,
        name,
        shape,
        dtype,
        read_batches,
        read_rows,
        lambda first, end: read(slice(first, end)),
        chunk_rows,
        _other_arrays(others, name),
    )


@file_reader("an AnnData file")
def open_anndata(path: Path) -> StoredArray:
    """The matrix X of an AnnData file, dense or in compressed sparse row format."""
    h5py = require("h5py", "reading HDF5 files")
    with h5py.File(path, "r") as file:
        if "X" not in file:
            raise InputError(f"{path.name} has no matrix X and is not an AnnData file.")
        if isinstance(file["X"], h5py.Dataset):
            return open_hdf5(path, "X")
        encoding = str(file["X"].attrs.get("encoding-type", ""))
        if encoding != "csr_matrix":
            raise InputError(
                f"X in {path.name} must be dense or sparse by rows (csr_matrix), got {encoding or 'a group'}."
            )
        shape, dtype = tuple(int(s) for s in file["X"].attrs["shape"]), file["X"]["data"].dtype
        for part in ("data", "indices", "indptr"):
            check_stored(path, f"X/{part}", file["X"][part].shape, file["X"][part].dtype)
        if len(shape) != 2 or min(shape) < 1 or len(file["X"]["indptr"]) != shape[0] + 1:
            ends = len(file["X"]["indptr"])
            raise InputError(
                f"{path.name} is damaged: X declares the shape {shape}, but has the ends of {ends - 1} rows."
            )

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        with h5py.File(path, "r") as file:
            group, offsets = file["X"], file["X"]["indptr"][:]
            for start in range(0, shape[0], batch_size):
                own = offsets[start : start + batch_size + 1]  # of these rows, and of the end of the last one
                stored = slice(int(own[0]), int(own[-1]))
                columns, rows = np.asarray(group["indices"][stored]), np.repeat(np.arange(len(own) - 1), np.diff(own))
                inside = not len(columns) or 0 <= columns.min() <= columns.max() < shape[1]
                if len(rows) != len(columns) or not inside:
                    raise InputError(f"{path.name} is damaged: its sparse matrix has indices out of range.")
                out = np.zeros((len(own) - 1, shape[1]), dtype)
                out[rows, columns] = np.asarray(group["data"][stored])
                yield out

    return StoredArray(path, "X", shape, dtype, read_batches)


# images ---------------------------------------------------------------------------------------


@file_reader("a folder of images")
def open_image_folder(path: Path) -> StoredArray:
    """Every image in a folder and its subfolders, sorted by path, as (N, height, width, channels)."""
    suffixes = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in suffixes)
    if not files:
        raise InputError(f"{path.name} has no images with the suffixes {', '.join(suffixes)}.")
    first = _read_image(files[0])

    def read(some: list[Path]) -> np.ndarray:
        images = [_read_image(file) for file in some]
        for file, image in zip(some, images, strict=True):
            if image.shape != first.shape:
                raise InputError(
                    f"images must have the same size: {files[0].name} is {dimensions(first.shape)}, {file.name} is "
                    f"{dimensions(image.shape)}; resize them."
                )
        return np.stack(images)

    return StoredArray(
        path,
        "images",
        (len(files), *first.shape),
        first.dtype,
        read_rows=lambda indices: read([files[k] for k in indices]),
        read_slice=lambda start, end: read(files[start:end]),
    )


@file_reader("an image")
def _read_image(file: Path) -> np.ndarray:
    with require("PIL.Image", "reading images").open(file) as image:
        if image.mode.startswith("I"):  # 16-bit grey, which `convert` would clip at 255
            return np.asarray(image).clip(0, 2**16 - 1).astype(np.uint16).reshape(image.height, image.width, 1)
        grey = image.mode in ("1", "L")
        return np.asarray(image.convert("L" if grey else "RGB")).reshape(image.height, image.width, -1)


def dimensions(shape: tuple[int, ...]) -> str:
    """A shape in words.

    >>> dimensions((64, 64, 3))
    '64 x 64 x 3'
    """
    return " x ".join(map(str, shape))
