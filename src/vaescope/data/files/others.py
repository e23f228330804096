"""PyTorch, HDF5, AnnData and Parquet files, and folders of images."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image, UnidentifiedImageError

from vaescope.data.files.source import Source, from_array, numbers, said
from vaescope.errors import InputError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


# PyTorch --------------------------------------------------------------------------------------


def torch_arrays(path: Path) -> dict[str, np.ndarray]:
    """Tensors of a file, mapped where the format allows it; anything but tensors and plain containers is refused."""
    try:
        content = _torch_load(path, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError, KeyError, AttributeError) as error:
        if "mmap can only be used" in str(error):
            return _old_torch(path)
        raise InputError(f"{path.name} is no file of tensors that can be read safely: {said(error)}.") from None
    return _tensors(path, content)


def _torch_load(path: Path, *, mmap: bool) -> object:
    with warnings.catch_warnings():  # torch warns of files that it then refuses
        warnings.simplefilter("ignore")
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)


def _old_torch(path: Path) -> dict[str, np.ndarray]:
    """Files of the older format cannot be mapped."""
    try:
        return _tensors(path, _torch_load(path, mmap=False))
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        raise InputError(f"{path.name} is no file of tensors that can be read safely: {said(error)}.") from None


def _tensors(path: Path, content: object) -> dict[str, np.ndarray]:
    found = {"tensor": content} if isinstance(content, torch.Tensor) else content
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        raise InputError(f"{path.name} must hold a tensor or a dictionary of tensors, got {type(content).__name__}.")
    return {str(name): value.detach().numpy() for name, value in found.items()}


# HDF5 and AnnData -----------------------------------------------------------------------------


def h5_names(path: Path) -> list[str]:
    """Arrays at the top of an HDF5 file."""
    with _h5(path) as file:
        return [name for name, item in file.items() if isinstance(item, h5py.Dataset)]


def open_h5(path: Path, name: str) -> Source:
    with _h5(path) as file:
        if name not in file or not isinstance(file[name], h5py.Dataset):
            raise InputError(f"{path.name} has no array {name!r}; it has {', '.join(h5_names(path)) or 'none'}.")
        shape, dtype = file[name].shape, file[name].dtype
    numbers(path, name, shape, dtype)

    def parts(batch: int) -> Iterator[np.ndarray]:
        with _h5(path) as file:
            for first in range(0, shape[0], batch):
                yield _h5_rows(path, file[name], slice(first, first + batch))

    def pick(places: np.ndarray) -> np.ndarray:
        unique, back = np.unique(places, return_inverse=True)
        with _h5(path) as file:
            return _h5_rows(path, file[name], unique)[back]

    return Source(path, name, shape, dtype, parts, pick)


def _h5(path: Path) -> Any:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise InputError(f"{path.name} is no HDF5 file that can be read: {said(error)}.") from None


def _h5_rows(path: Path, data: Any, rows: Any) -> np.ndarray:
    try:
        return np.asarray(data[rows])
    except (OSError, RuntimeError) as error:
        raise InputError(f"{path.name} is damaged: {said(error)}.") from None


def open_anndata(path: Path) -> Source:
    """The matrix X of an AnnData file, cells by genes, dense or sparse by rows."""
    with _h5(path) as file:
        if "X" not in file:
            raise InputError(f"{path.name} has no matrix X; is it an AnnData file?")
        if isinstance(file["X"], h5py.Dataset):
            return open_h5(path, "X")
        kind = str(file["X"].attrs.get("encoding-type", ""))
        if kind != "csr_matrix":
            raise InputError(f"{path.name}: X must be dense or sparse by rows (csr_matrix), got {kind or 'a group'}.")
        shape, dtype = tuple(int(s) for s in file["X"].attrs["shape"]), file["X"]["data"].dtype
    numbers(path, "X", shape, dtype)

    def parts(batch: int) -> Iterator[np.ndarray]:
        with _h5(path) as file:
            pointer = file["X"]["indptr"][:]
            for first in range(0, shape[0], batch):
                yield _dense_rows(path, file["X"], pointer, first, min(first + batch, shape[0]), shape[1], dtype)

    return Source(path, "X", shape, dtype, parts)


def _dense_rows(
    path: Path, group: Any, pointer: np.ndarray, first: int, last: int, width: int, dtype: Any
) -> np.ndarray:
    out = np.zeros((last - first, width), dtype)
    begin, end = int(pointer[first]), int(pointer[last])
    columns = _h5_rows(path, group["indices"], slice(begin, end))
    rows = np.repeat(np.arange(last - first), np.diff(pointer[first : last + 1]))
    if len(rows) != len(columns) or (len(columns) and not 0 <= columns.min() <= columns.max() < width):
        raise InputError(f"{path.name} is damaged: its sparse matrix points outside itself.")
    out[rows, columns] = _h5_rows(path, group["data"], slice(begin, end))
    return out


# Parquet --------------------------------------------------------------------------------------


def open_parquet(path: Path, columns: Sequence[str] | None = None, *, without: Sequence[str] = ()) -> Source:
    """All columns of numbers but some, or the named ones, as one array."""
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{path.name} is no Parquet file that can be read: {said(error)}.") from None
    known = {field.name: field.type for field in file.schema_arrow}
    numeric = [n for n, t in known.items() if pa.types.is_floating(t) or pa.types.is_integer(t)]
    chosen = list(columns or [name for name in numeric if name not in without])
    missing = [name for name in (*chosen, *without) if name not in numeric]
    if missing or not chosen:
        raise InputError(
            f"{path.name} has no column of numbers {missing[0]!r}." if missing else f"{path.name} has no numbers."
        )
    shape = (file.metadata.num_rows, len(chosen))
    numbers(path, "table", shape, np.dtype(np.float64))

    def parts(batch: int) -> Iterator[np.ndarray]:
        for piece in pq.ParquetFile(path).iter_batches(batch_size=batch, columns=chosen):
            yield np.column_stack([column.to_numpy(zero_copy_only=False) for column in piece.columns]).astype(
                np.float64
            )

    return Source(path, "table", shape, np.dtype(np.float64), parts)


# folders --------------------------------------------------------------------------------------


def open_folder(path: Path) -> Source:
    """Every image of a folder (and of folders in it), in the order of names, as (N, height, width, channels)."""
    files = sorted(f for f in path.rglob("*") if f.suffix.lower() in IMAGES)
    if not files:
        raise InputError(f"{path.name} has no images; looked for {', '.join(IMAGES)}.")
    first = _image(files[0])

    def read(some: list[Path]) -> np.ndarray:
        images = [_image(file) for file in some]
        for file, image in zip(some, images, strict=True):
            if image.shape != first.shape:
                raise InputError(
                    f"images must have one size: {files[0].name} is {_size(first)}, {file.name} is {_size(image)}; "
                    "resize them, nothing was loaded."
                )
        return np.stack(images)

    def parts(batch: int) -> Iterator[np.ndarray]:
        for start in range(0, len(files), batch):
            yield read(files[start : start + batch])

    return Source(
        path, "images", (len(files), *first.shape), first.dtype, parts, lambda places: read([files[p] for p in places])
    )


def _image(file: Path) -> np.ndarray:
    try:
        with Image.open(file) as image:
            if image.mode.startswith("I"):  # 16 bits of grey, which `convert` would clip at 255
                return np.asarray(image).clip(0, 2**16 - 1).astype(np.uint16).reshape(image.height, image.width, 1)
            grey = image.mode in ("1", "L")
            return np.asarray(image.convert("L" if grey else "RGB")).reshape(image.height, image.width, -1)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"{file.name} is no image that can be read: {said(error)}; nothing was loaded.") from None


def _size(image: np.ndarray) -> str:
    return " x ".join(map(str, image.shape))


def open_torch(path: Path, name: str) -> Source:
    arrays = torch_arrays(path)
    if name not in arrays:
        raise InputError(f"{path.name} has no tensor {name!r}; it has {', '.join(arrays) or 'none'}.")
    return from_array(path, name, arrays[name])
