"""Official files of well-known data sets: layout and checksum are verified before any row is read."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.data.dataset import Dataset, flatten_samples
from vaescope.data.files.arrays import (
    StoredArray,
    dimensions,
    file_reader,
    open_hdf5,
    open_npz,
    stored_array,
    torch_arrays,
)


@dataclass(frozen=True)
class OfficialFile:
    """The layout of an official file: one image per combination of factors, the last factor changes fastest."""

    name: str
    files: tuple[tuple[str, str | None], ...]
    """File names and their MD5 checksums (None if none is published)."""
    array: str
    factor_names: tuple[str, ...]
    sizes: tuple[int, ...]
    """Number of values of every factor."""
    pixels: tuple[int, ...]
    """Shape of an image."""
    publisher: str
    """Where to find the file; nothing is downloaded."""
    description: str
    grid_axes: bool = False
    """Whether the array has one axis per factor instead of one axis for all images."""

    @property
    def count(self) -> int:
        return math.prod(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.sizes, *self.pixels) if self.grid_axes else (self.count, *self.pixels)


_mpi3d = OfficialFile(
    "mpi3d",
    (("real3d_complicated_shapes_ordered.npz", None),),
    "images",
    ("color", "shape", "size", "camera_height", "background_color", "horizontal_axis", "vertical_axis"),
    (4, 4, 2, 3, 3, 40, 40),
    (64, 64, 3),
    "rr-learning/disentanglement_dataset on GitHub",
    "a robot arm holding an object of complex shape, RGB",
)
_specs = (
    OfficialFile(
        "dsprites",
        (("dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz", "7da33b31b13a06f4b04a70402ce90c2e"),),
        "imgs",
        ("shape", "scale", "orientation", "position_x", "position_y"),
        (3, 6, 40, 32, 32),
        (64, 64),
        "deepmind/dsprites-dataset on GitHub",
        "white squares, ellipses and hearts, binary",
    ),
    OfficialFile(
        "3dshapes",
        (("3dshapes.h5", "099a2078d58cec4daad0702c55d06868"),),
        "images",
        ("floor_hue", "wall_hue", "object_hue", "scale", "shape", "orientation"),
        (10, 10, 10, 8, 4, 15),
        (64, 64, 3),
        "deepmind/3d-shapes on GitHub",
        "an object in a room, RGB",
    ),
    _mpi3d,
    replace(
        _mpi3d,
        name="mpi3d-simple",
        files=(
            ("mpi3d_real.npz", "0f33f609918fb5c97996692f91129802"),
            ("mpi3d_realistic.npz", "59a6225b88b635365f70c91b3e52f70f"),
            ("mpi3d_toy.npz", "55889cb7c7dfc655d6e0277beee88868"),
        ),
        sizes=(6, 6, 2, 3, 3, 40, 40),
        description="a robot arm holding an object of simple shape, RGB",
    ),
    OfficialFile(
        "3dfaces",
        (("basel_face_renders.pth", None),),
        "tensor",
        ("identity", "azimuth", "elevation", "lighting"),
        (50, 21, 11, 11),
        (64, 64),
        "the Basel face model's rendering in rtqichen/beta-tcvae on GitHub",
        "rendered faces, grey",
        grid_axes=True,
    ),
)
OFFICIAL_FILES = {spec.name: spec for spec in _specs}


@file_reader("an official data set")
def open_official(spec: OfficialFile, path: Path, *, checksum: bool = True) -> StoredArray:
    """Open the images of an official file; raises an error if its layout or checksum differs."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; {spec.name} comes as {spec.files[0][0]} from {spec.publisher}.")
    stored = _open_images(spec, path)
    if stored.shape[1:] != spec.pixels or len(stored) != spec.count:
        expected = f"{spec.count} images of {dimensions(spec.pixels)}"
        _refuse_layout(spec, path, expected, f"{len(stored)} of {dimensions(stored.shape[1:])}")
    if checksum:
        _verify_checksum(spec, path)
    return stored


@file_reader("an official data set")
def load_official(
    spec: OfficialFile, path: Path, *, rows: int | None = None, seed: int = 0, checksum: bool = True
) -> Dataset:
    """Load random images with their factors (class numbers), or all images."""
    stored = open_official(spec, path, checksum=checksum)
    count = len(stored) if rows is None else min(validation.integer("rows", rows), len(stored))
    indices = np.random.default_rng(seed).permutation(len(stored))[:count]
    image_shape, x = flatten_samples(stored.rows(indices), path.name, unit_range=True)
    factors = grid_classes(spec, torch.from_numpy(indices))
    read = f"{stored.what_was_read}; {count} of them at random"
    return Dataset(spec.name, x, image_shape, factors, spec.factor_names, what_was_read=read)


def grid_classes(spec: OfficialFile, indices: Tensor) -> Float[Tensor, "N k"]:
    """The class number of every factor for images at these indices.

    >>> grid_classes(OFFICIAL_FILES["dsprites"], torch.tensor([0, 33])).tolist()
    [[0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, 1.0]]
    """
    return torch.stack(torch.unravel_index(indices, spec.sizes), dim=1).double()


def _open_images(spec: OfficialFile, path: Path) -> StoredArray:
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return open_npz(path, spec.array)
    if suffix in (".h5", ".hdf5"):
        return open_hdf5(path, spec.array)
    if suffix not in (".pth", ".pt"):
        raise InputError(f"{spec.name} comes as {spec.files[0][0]}, got {path.name}.")
    arrays = list(torch_arrays(path).values())
    if len(arrays) != 1:
        raise InputError(f"{path.name} must hold one tensor, got {len(arrays)}.")
    if spec.grid_axes and arrays[0].shape != spec.shape:
        _refuse_layout(spec, path, f"shape {dimensions(spec.shape)}", dimensions(arrays[0].shape))
    return stored_array(path, spec.array, arrays[0].reshape(-1, *spec.pixels))


def _refuse_layout(spec: OfficialFile, path: Path, expected: str, found: str) -> None:
    raise InputError(f"{path.name} does not have the layout of {spec.name}: expected {expected}, got {found}.")


def _verify_checksum(spec: OfficialFile, path: Path) -> None:
    """Check the MD5 sum of a file; a renamed file may have any of the published sums."""
    sums = dict(spec.files)
    expected = {sums[path.name]} if path.name in sums else set(sums.values())
    if None in expected:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found not in expected:
        listed = " or ".join(sorted(filter(None, expected)))
        raise InputError(
            f"{path.name} is not the official file of {spec.name}: its MD5 checksum is {found}, expected {listed}; "
            f"download it again from {spec.publisher}."
        )
