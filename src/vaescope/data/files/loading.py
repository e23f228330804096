"""Load a data set from a file of any supported format."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.data.dataset import Dataset, flatten_bytes, flatten_samples
from vaescope.data.files.arrays import (
    StoredArray,
    file_reader,
    hdf5_names,
    npz_names,
    open_anndata,
    open_hdf5,
    open_image_folder,
    open_npy,
    open_npz,
    open_torch,
    torch_names,
)
from vaescope.data.files.streaming import StoredDataset, open_stored
from vaescope.data.files.tables import open_csv, open_parquet

FACTOR_NAMES = ("factors", "latents_values", "labels", "z", "sources")
MEMORY_LIMIT = 4 * 2**30  # bytes of observations that are loaded at most
STREAMED_BYTES = 2**30  # a larger file stays on disk while a model is trained on it
ARCHIVES: dict[str, tuple[Callable[[Path], list[str]], Callable[[Path, str], StoredArray]]] = {
    ".npz": (npz_names, open_npz),
    ".pt": (torch_names, open_torch),
    ".pth": (torch_names, open_torch),
    ".h5": (hdf5_names, open_hdf5),
    ".hdf5": (hdf5_names, open_hdf5),
}
"""Formats with several arrays: how to list the names, and how to open one."""
TABLES = {".parquet": open_parquet, ".csv": open_csv, ".tsv": open_csv}


@file_reader("a data set")
def load(
    path: str | Path,
    *,
    array: str | None = None,
    factors: str | None = None,
    rows: int | None = None,
    seed: int = 0,
    keep_bytes: bool = False,
) -> Dataset:
    """Load observations, and factors if there are any, from a file or a folder of images.

    Formats: .npy, .npz, .pt, .h5, .h5ad, .parquet, .csv, .tsv. Images must be bytes, which are rescaled to [0, 1], or
    in [0, 1].

    Args:
        path: the file or folder.
        array: name of the array of observations, if the file has several.
        factors: name of the array of factors; for tables, names of columns separated by commas.
        rows: number of random samples to load; the file may be larger than memory.
        seed: seed of the random selection.
        keep_bytes: whether images of bytes stay bytes, a quarter of the memory.
    """
    path = Path(path)
    stored = open_array(path, array=array, without=factors)
    bytes_kept = keep_bytes and _holds_byte_images(stored)
    indices = _random_indices(stored, rows, seed, number_bytes=1 if bytes_kept else 4)
    values = stored.all_rows() if indices is None else stored.rows(indices)
    stored_factors = _open_factors(path, stored, factors)
    if bytes_kept:
        byte_shape, x, scale = flatten_bytes(values)
        loaded = Dataset(path.stem, x, byte_shape, byte_scale=scale)
    else:
        image_shape, x = flatten_samples(values, path.name, unit_range=True)
        loaded = Dataset(path.stem, x, image_shape)
    some = "" if indices is None else f"; {len(loaded)} of them at random"
    loaded = replace(loaded, what_was_read=stored.what_was_read + some)
    if stored_factors is None:
        return loaded
    if len(stored_factors) != len(stored) or len(stored_factors.shape) > 2:
        raise InputError(
            f"{stored_factors.name} in {path.name} must have a row of factors for each of {len(stored)} samples, "
            f"got shape {stored_factors.shape}."
        )
    chosen = stored_factors.all_rows() if indices is None else stored_factors.rows(indices)
    found = torch.from_numpy(np.asarray(chosen, np.float64).reshape(len(chosen), -1))
    validation.check_finite(found.numpy(), f"{stored_factors.name} (factors) in {path.name}")
    table = path.suffix.lower() in TABLES
    names = _column_names(factors) if table else [f"factor {k}" for k in range(found.shape[1])]
    return replace(loaded, factors=found, factor_names=tuple(names))


@file_reader("a data set")
def load_for_training(
    path: str | Path, *, array: str | None = None, factors: str | None = None, rows: int | None = None, seed: int = 0
) -> Dataset | StoredDataset:
    """Like `load`, but images of bytes stay bytes, and what needs more than 1 GB of memory stays in its file.

    A data set that stays in its file has no factors.
    """
    stored = open_array(Path(path), array=array, without=factors)
    number_bytes = 1 if _holds_byte_images(stored) else 4
    if rows is None and math.prod(stored.shape) * number_bytes > STREAMED_BYTES:
        return open_stored(stored)
    return load(path, array=array, factors=factors, rows=rows, seed=seed, keep_bytes=True)


def _holds_byte_images(stored: StoredArray) -> bool:
    return stored.dtype == np.uint8 and len(stored.shape) in (3, 4)


@file_reader("a data set")
def open_array(path: Path, *, array: str | None = None, without: str | None = None) -> StoredArray:
    """Open the array of observations in a file without loading it.

    Args:
        path: the file or folder.
        array: name of the array, if the file has several.
        without: columns of a Parquet table that are not observations, separated by commas.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    found = open_image_folder(path) if path.is_dir() else _open_file(path, array, without)
    if array is not None and found.name != array:
        raise InputError(f"{path.name} holds one array without a name, so it has no array {array!r}; remove array=.")
    validation.check_layout(found.shape, found.dtype, f"{found.name} in {path.name}")
    return found


def _open_file(path: Path, array: str | None, without: str | None) -> StoredArray:
    if path.stat().st_size == 0:
        raise InputError(f"{path.name} is empty.")
    suffix = path.suffix.lower()
    if suffix in ARCHIVES:
        list_names, open_one = ARCHIVES[suffix]
        return open_one(path, array or _observations_name(path, list_names(path)))
    if suffix == ".npy":
        return open_npy(path)
    if suffix == ".h5ad":
        return open_anndata(path)
    if suffix in TABLES:
        return TABLES[suffix](path, without=_column_names(without))
    raise InputError(
        f"{path.name} has an unknown format; use .npy, .npz, .pt, .h5, .h5ad, .parquet, .csv or a folder of images."
    )


def _column_names(names: str | None) -> list[str]:
    return [name.strip() for name in names.split(",")] if names else []


def _observations_name(path: Path, names: Sequence[str]) -> str:
    """The name of the observations, if it is conventional or the only one that is not of factors."""
    for name in ("x", "images", "imgs", "data", "observations", "tensor", "array", "X"):
        if name in names:
            return name
    others = [name for name in names if name not in FACTOR_NAMES]
    if len(others) == 1:
        return others[0]
    raise InputError(
        f"{path.name} has the arrays {', '.join(names) or '(none)'}; specify the observations with array=NAME "
        "(--array NAME on the command line), or rename them to x."
    )


def _random_indices(stored: StoredArray, rows: int | None, seed: int, *, number_bytes: int) -> np.ndarray | None:
    """Random row indices; None for all rows."""
    if rows is not None and validation.integer("rows", rows) < len(stored):
        generator = np.random.default_rng(seed)
        if len(stored) > 10_000_000:  # a permutation of more rows would need too much memory
            return generator.choice(len(stored), rows, replace=False)
        return generator.permutation(len(stored))[:rows]
    size = math.prod((len(stored), *stored.shape[1:])) * (number_bytes + stored.dtype.itemsize)
    if size > MEMORY_LIMIT:
        raise InputError(
            f"{stored.path.name} needs {size / 2**30:.0f} GB of memory; load some of its {len(stored)} rows "
            "with rows=N, or stream it with vaescope.data.files.open_array(path).stream()."
        )
    return None


def _open_factors(path: Path, observations: StoredArray, factors: str | None) -> StoredArray | None:
    suffix = path.suffix.lower()
    if suffix in TABLES:
        return TABLES[suffix](path, _column_names(factors)) if factors else None
    if suffix not in ARCHIVES:
        if factors:
            raise InputError(
                f"{path.name} holds one array; save observations and factors in one .npz, .h5 or .pt file."
            )
        return None
    list_names, open_one = ARCHIVES[suffix]
    names = list_names(path)
    name = factors or next((n for n in FACTOR_NAMES if n in names and n != observations.name), None)
    return open_one(path, name) if name else None
