"""From a path to observations, whatever the file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.data.files.arrays import npz_names, open_npy, open_npz
from vaescope.data.files.others import (
    h5_names,
    open_anndata,
    open_folder,
    open_h5,
    open_parquet,
    open_torch,
    torch_arrays,
)
from vaescope.data.files.source import Source, reader
from vaescope.errors import InputError

OBSERVATIONS = ("x", "images", "imgs", "data", "observations", "tensor", "array", "X")
FACTORS = ("factors", "latents_values", "labels", "z", "sources")
MANY = 10_000_000  # rows
MEMORY = 4 * 2**30  # bytes of observations that are loaded without being asked how many rows


@dataclass(frozen=True, eq=False)
class Dataset:
    """Observations as rows (N, n); `image` is their (channels, height, width), if they are images."""

    name: str
    x: Float[Tensor, "N n"]
    image: tuple[int, int, int] | None = None
    factors: Float[Tensor, "N k"] | None = None
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)


@reader
def load(
    path: str | Path,
    *,
    array: str | None = None,
    factors: str | None = None,
    rows: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Observations from .npy, .npz, .pt, .h5, .h5ad, .parquet or a folder of images, with factors if it has any.

    `array` and `factors` name the arrays (for Parquet, `factors` are columns with commas between). `rows` takes
    that many at random, so that a file larger than memory is no trouble. Images are brought to [0, 1].
    """
    path = Path(path)
    source = open_source(path, array=array, besides=factors)
    places = _places(source, rows, seed)
    values = source.rows(places) if places is not None else np.concatenate(list(source.stream()))
    if places is None and len(values) != len(source):
        raise InputError(f"{path.name} ends too early: it has {len(values)} rows, and says {len(source)}.")
    known = _factors(path, source, factors)
    chosen = None if known is None else torch.from_numpy(_of_rows(known, places, len(source), path))
    image, x = as_rows(values, path.name)
    return Dataset(path.stem, x, image, chosen, _names(path, factors, chosen))


@reader
def open_source(path: Path, *, array: str | None = None, besides: str | None = None) -> Source:
    """The array of observations in a file, without loading it."""
    if not path.exists():
        raise InputError(f"{path} does not exist.")
    if path.is_dir():
        return open_folder(path)
    if path.stat().st_size == 0:
        raise InputError(f"{path.name} is empty.")
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return open_npy(path)
    if suffix == ".npz":
        return open_npz(path, array or _the_array(path, npz_names(path)))
    if suffix in (".pt", ".pth"):
        return open_torch(path, array or _the_array(path, list(torch_arrays(path))))
    if suffix in (".h5", ".hdf5"):
        return open_h5(path, array or _the_array(path, h5_names(path)))
    if suffix == ".h5ad":
        return open_anndata(path)
    if suffix == ".parquet":
        return open_parquet(path, without=_columns(besides))
    raise InputError(
        f"{path.name} is of no kind known here; use .npy, .npz, .pt, .h5, .h5ad, .parquet or a folder of images."
    )


def _columns(names: str | None) -> list[str]:
    return [name.strip() for name in names.split(",")] if names else []


def _the_array(path: Path, names: Sequence[str]) -> str:
    for name in OBSERVATIONS:
        if name in names:
            return name
    others = [name for name in names if name not in FACTORS]
    if len(others) == 1:
        return others[0]
    raise InputError(
        f"{path.name} holds {', '.join(names) or 'no arrays'}; say which are the observations with array=NAME."
    )


def _places(source: Source, rows: int | None, seed: int) -> np.ndarray | None:
    if rows is not None and rows < 1:
        raise InputError(f"rows must be at least 1, got {rows}.")
    if rows is not None and rows < len(source):
        generator = np.random.default_rng(seed)
        if len(source) > MANY:  # a permutation of all would not fit into memory
            return generator.choice(len(source), rows, replace=False)
        return generator.permutation(len(source))[:rows]
    size = math.prod((len(source), *source.shape[1:])) * (4 + source.dtype.itemsize)
    if size > MEMORY:
        raise InputError(
            f"{source.path.name} would take {size / 2**30:.0f} GB of memory; take some of its {len(source)} rows "
            "with rows=N, or read it in parts with vaescope.data.files.open_source(path).stream()."
        )
    return None


def _factors(path: Path, source: Source, factors: str | None) -> Source | None:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return open_parquet(path, _columns(factors)) if factors else None
    if suffix == ".npz":
        names, opened = npz_names(path), open_npz
    elif suffix in (".h5", ".hdf5"):
        names, opened = h5_names(path), open_h5
    elif suffix in (".pt", ".pth"):
        names, opened = list(torch_arrays(path)), open_torch
    elif factors:
        raise InputError(f"{path.name} holds one array; give factors in an archive (.npz, .h5, .pt) beside it.")
    else:
        return None
    name = factors or next((n for n in FACTORS if n in names and n != source.name), None)
    return opened(path, name) if name else None


def _of_rows(known: Source, places: np.ndarray | None, count: int, path: Path) -> np.ndarray:
    if len(known) != count or len(known.shape) != 2:
        raise InputError(f"{path.name}: factors must have a row for each of {count} samples, got shape {known.shape}.")
    values = known.rows(places) if places is not None else np.concatenate(list(known.stream()))
    return np.asarray(values, np.float64)


def _names(path: Path, factors: str | None, values: Tensor | None) -> tuple[str, ...]:
    if values is None:
        return ()
    if path.suffix.lower() == ".parquet" and factors:
        return tuple(_columns(factors))
    return tuple(f"factor {k}" for k in range(values.shape[1]))


def as_rows(
    values: np.ndarray, name: str, *, unit: bool = True
) -> tuple[tuple[int, int, int] | None, Float[Tensor, "N n"]]:
    """Tables as they are; images (N, H, W), (N, H, W, C) or (N, C, H, W) as rows, bytes brought to [0, 1].

    Other numbers must lie in [0, 1], unless `unit` is not asked for.
    """
    if values.ndim == 2:
        return None, _finite(torch.from_numpy(np.ascontiguousarray(values, np.float32)), name)
    if values.ndim == 3:
        values = values[:, None]
    elif values.ndim == 4 and values.shape[-1] in (1, 3, 4) and values.shape[1] not in (1, 3):
        values = np.moveaxis(values, -1, 1)
    if values.ndim != 4:
        raise InputError(
            f"{name}: observations must be rows (N, n) or images (N, H, W[, C]), got shape {values.shape}."
        )
    x = torch.from_numpy(np.ascontiguousarray(values, np.float32))
    if values.dtype.kind in "iu" and values.max(initial=0) > 1:
        x /= 255.0 if values.max() <= 255 else 65535.0
    x = _finite(x, name)
    if unit and (x.min() < 0 or x.max() > 1):
        raise InputError(
            f"{name}: images must have values in [0, 1] or bytes, got {float(x.min()):g} to {float(x.max()):g}; "
            "rescale them, nothing was loaded."
        )
    _, channels, height, width = x.shape
    return (channels, height, width), x.flatten(1)


def _finite(x: Tensor, name: str) -> Tensor:
    if not bool(x.isfinite().all()):
        raise InputError(f"{name}: observations must be finite, got NaN or infinity; drop or impute them.")
    return x
