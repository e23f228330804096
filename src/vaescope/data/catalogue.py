"""Data sets by name: rendered in memory, or read from an official file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.data.dataset import Dataset, flatten_bytes, flatten_samples
from vaescope.data.files import load
from vaescope.data.files.arrays import open_memmap
from vaescope.data.files.loading import load_for_training
from vaescope.data.files.official import OFFICIAL_FILES, OfficialFile, load_official, open_official
from vaescope.data.files.streaming import StoredDataset, open_stored
from vaescope.data.rendering import DSprites, Rendered3DFaces, RenderedMPI3D, Renderer, Shapes3D, Sprites


@dataclass(frozen=True)
class DatasetEntry:
    """A data set with a name."""

    name: str
    description: str
    renderer: Callable[..., Renderer] | None = None
    official: OfficialFile | None = None
    on_grid: bool = True
    """Whether rendered images have factors from a grid; otherwise from continuous ranges."""


_renderers: dict[str, Callable[..., Renderer]] = {"dsprites": DSprites, "3dshapes": Shapes3D}
DATASETS = (
    DatasetEntry("sprites", "one coloured sprite: x, y, scale and hue, continuous", Sprites, on_grid=False),
    *(DatasetEntry(name, spec.description, _renderers.get(name), spec) for name, spec in OFFICIAL_FILES.items()),
    DatasetEntry(
        "rendered-mpi3d", "the factors of mpi3d-simple, other images: an arm with an object, RGB", RenderedMPI3D
    ),
    DatasetEntry("rendered-3dfaces", "the factors of 3dfaces, other images: a simple head, grey", Rendered3DFaces),
)


def find_dataset(name: str) -> DatasetEntry:
    """The data set with that name.

    >>> find_dataset("dsprites").official.count
    737280
    """
    entries = {entry.name: entry for entry in DATASETS}
    return entries[validation.choice("data set", name, entries)]


def official_file(name: str) -> Path | None:
    """The official file of a data set in the folder given by VAESCOPE_DATA; None if there is none."""
    folder, spec = os.environ.get("VAESCOPE_DATA"), find_dataset(name).official
    if not folder or spec is None:
        return None
    return next((file for base, _ in spec.files if (file := Path(folder) / base).exists()), None)


def dataset_from(x: object) -> Dataset:
    """A data set from an array, images, a tensor, a path, the name of a data set, or a `Dataset`.

    Args:
        x: rows (N, n), images (N, H, W[, C]) or (N, C, H, W), a path or a name as for `open_dataset`, or a `Dataset`,
            which is returned as it is. At least two samples; images of integers are rescaled to [0, 1].

    >>> dataset_from([[1.0, 2.0], [3.0, 4.0]]).x.shape
    torch.Size([2, 2])
    """
    if isinstance(x, Dataset):
        return x
    if isinstance(x, str | Path):
        return open_dataset(str(x))
    image_shape, rows = flatten_samples(x, "x", minimum=2)
    return Dataset("x", rows, image_shape)


def training_data_from(x: object) -> Dataset | StoredDataset:
    """Like `dataset_from`, for training: images of bytes stay bytes, and large files stay on disk."""
    if isinstance(x, StoredDataset):
        return x
    if isinstance(x, str | Path):
        return open_for_training(str(x))
    if isinstance(x, np.ndarray | Tensor) and x.dtype in (np.uint8, torch.uint8) and x.ndim in (3, 4) and len(x) > 1:
        image_shape, rows, scale = flatten_bytes(np.asarray(x))
        return Dataset("x", rows, image_shape, byte_scale=scale)
    return dataset_from(x)


def open_for_training(
    name_or_path: str,
    *,
    array: str | None = None,
    factors: str | None = None,
    rows: int | None = None,
    seed: int = 0,
) -> Dataset | StoredDataset:
    """Like `open_dataset`, for training: images of bytes stay bytes, and large files stay on disk.

    An official file is streamed if `rows` is at least the number of its images.
    """
    path = Path(name_or_path)
    if not path.exists():
        return open_dataset(name_or_path, array=array, factors=factors, rows=rows, seed=seed)
    if (spec := _official_layout(path)) is None:
        return load_for_training(path, array=array, factors=factors, rows=rows, seed=seed)
    if rows is not None and rows >= spec.count and array is None and factors is None:
        return replace(open_stored(open_official(spec, path)), name=spec.name)
    return open_dataset(name_or_path, array=array, factors=factors, rows=rows, seed=seed)


def _official_layout(path: Path) -> OfficialFile | None:
    """The layout of an official file, recognised by its name."""
    return next((spec for spec in OFFICIAL_FILES.values() if path.name in dict(spec.files)), None)


def open_dataset(
    name_or_path: str,
    *,
    array: str | None = None,
    factors: str | None = None,
    rows: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Render a data set by name, or read an official file or a user file.

    Args:
        name_or_path: `sprites`, `dsprites`, `3dshapes`, `rendered-mpi3d`, `rendered-3dfaces`, or the path of a file or
            a folder of images.
        array: name of the array of observations in a user file.
        factors: name of the array (Parquet: names of the columns, separated by commas) of factors in a user file.
        rows: number of random samples; by default 20,000, and every row of a user file.
        seed: seed of the selection.
    """
    path, some = Path(name_or_path), 20_000 if rows is None else rows
    if path.exists():
        if (spec := _official_layout(path)) is not None:
            _refuse_names(path.name, array, factors)
            return load_official(spec, path, rows=some, seed=seed)
        return load(path, array=array, factors=factors, rows=rows, seed=seed)
    if path.suffix or "/" in name_or_path:
        raise InputError(f"{name_or_path} does not exist.")
    _refuse_names(name_or_path, array, factors)
    return render_dataset(find_dataset(name_or_path), rows=some, seed=seed)


def _refuse_names(data: str, array: str | None, factors: str | None) -> None:
    """Data sets that are known by name have one array of images, and their factors are known."""
    given = next((f"{key}={value}" for key, value in (("array", array), ("factors", factors)) if value), None)
    if given is not None:
        raise InputError(f"{data} is a known data set with one array and its own factors; remove {given}.")


def render_dataset(entry: DatasetEntry, *, rows: int, seed: int = 0, size: int = 64) -> Dataset:
    """Render random images: from the grid of factors, or, for sprites, from continuous ranges."""
    if entry.renderer is None:
        assert entry.official is not None
        stand_in = f"rendered-{entry.name.removesuffix('-simple')}"
        raise InputError(
            f"{entry.name} cannot be rendered; pass the path of {entry.official.files[0][0]}, "
            f"from {entry.official.publisher}, or use {stand_in}, which has such factors and other images."
        )
    renderer = entry.renderer(size=size)
    images = renderer.sample(rows, seed=seed, distributions="grid" if entry.on_grid else "uniform")
    shape = (renderer.channels, renderer.size, renderer.size)
    return Dataset(entry.name, images.images.flatten(1), shape, images.factors, images.factor_names)


def load_auxiliary(source: str | None, data: Dataset, rows: int | None) -> Tensor | None:
    """The auxiliary input of every sample; None if there is no source.

    Args:
        source: `factors` for the standardised factors of the data, or the path of an .npy file with a label or a row
            per sample.
        data: the samples.
        rows: how many samples were selected at random; a file has no matching selection.
    """
    if source is None:
        return None
    if source == "factors":
        if data.factors is None:
            raise InputError(
                f"{data.name} has no factors; specify an .npy file with a row per sample as auxiliary input."
            )
        sd = data.factors.std(0)
        return (data.factors - data.factors.mean(0)) / sd.where(sd > 0, sd.new_ones(()))
    if rows is not None:
        raise InputError("--rows selects samples at random, which an auxiliary file cannot follow; specify only one.")
    found = validation.array(open_memmap(Path(source)), source)
    return torch.from_numpy(np.array(found, dtype=found.dtype.newbyteorder("=")))
