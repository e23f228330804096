"""The official files of well-known data sets, where the user has them: layout and checksum first, then rows."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.data.files.arrays import open_npz
from vaescope.data.files.dataset import Dataset, as_rows
from vaescope.data.files.others import open_h5, torch_arrays
from vaescope.data.files.source import Source, from_array, reader
from vaescope.errors import InputError


@dataclass(frozen=True)
class Official:
    """What an official file must look like. Images are in the order of their factors, the last fastest."""

    name: str
    files: tuple[tuple[str, str | None], ...]
    """File names with the MD5 sum of each, where one is published."""
    array: str
    names: tuple[str, ...]
    sizes: tuple[int, ...]
    pixels: tuple[int, ...]
    where: str
    """Who publishes it: for people to look for, nothing is fetched."""
    about: str
    grid_axes: bool = False
    """The array has an axis per factor instead of one for all images."""

    @property
    def count(self) -> int:
        return math.prod(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.sizes, *self.pixels) if self.grid_axes else (self.count, *self.pixels)


DSPRITES = Official(
    "dsprites",
    (("dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz", "7da33b31b13a06f4b04a70402ce90c2e"),),
    "imgs",
    ("shape", "scale", "orientation", "position_x", "position_y"),
    (3, 6, 40, 32, 32),
    (64, 64),
    "deepmind/dsprites-dataset on GitHub",
    "white squares, ellipses and hearts, binary",
)
SHAPES3D = Official(
    "3dshapes",
    (("3dshapes.h5", "099a2078d58cec4daad0702c55d06868"),),
    "images",
    ("floor_hue", "wall_hue", "object_hue", "scale", "shape", "orientation"),
    (10, 10, 10, 8, 4, 15),
    (64, 64, 3),
    "deepmind/3d-shapes on GitHub",
    "an object in a room, RGB",
)
MPI3D = Official(
    "mpi3d",
    (("real3d_complicated_shapes_ordered.npz", None),),
    "images",
    ("color", "shape", "size", "camera_height", "background_color", "horizontal_axis", "vertical_axis"),
    (4, 4, 2, 3, 3, 40, 40),
    (64, 64, 3),
    "rr-learning/disentanglement_dataset on GitHub",
    "a robot arm holding an object of complex shape, RGB",
)
MPI3D_SIMPLE = replace(
    MPI3D,
    name="mpi3d-simple",
    files=(
        ("mpi3d_real.npz", "0f33f609918fb5c97996692f91129802"),
        ("mpi3d_realistic.npz", "59a6225b88b635365f70c91b3e52f70f"),
        ("mpi3d_toy.npz", "55889cb7c7dfc655d6e0277beee88868"),
    ),
    sizes=(6, 6, 2, 3, 3, 40, 40),
    about="a robot arm holding an object of simple shape, RGB",
)
FACES3D = Official(
    "3dfaces",
    (("basel_face_renders.pth", None),),
    "tensor",
    ("identity", "azimuth", "elevation", "lighting"),
    (50, 21, 11, 11),
    (64, 64),
    "the Basel face model's rendering in rtqichen/beta-tcvae on GitHub",
    "rendered faces, grey",
    grid_axes=True,
)
OFFICIAL = {spec.name: spec for spec in (DSPRITES, SHAPES3D, MPI3D, MPI3D_SIMPLE, FACES3D)}


@reader
def open_official(spec: Official, path: Path, *, checksum: bool = True) -> Source:
    """The images of an official file, a row each; refused unless its layout and checksum are the official ones."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; {spec.name} comes as {spec.files[0][0]} from {spec.where}.")
    source = _source(spec, path)
    if source.shape[1:] != spec.pixels or len(source) != spec.count:
        raise InputError(
            f"{path.name} is not laid out as {spec.name}: expected {spec.count} images of {_by(spec.pixels)}, "
            f"got {len(source)} of {_by(source.shape[1:])}."
        )
    if checksum:
        _check_sum(spec, path)
    return source


@reader
def load_official(
    spec: Official, path: Path, *, rows: int | None = None, seed: int = 0, checksum: bool = True
) -> Dataset:
    """Some images at random with their factors (class numbers), or all of them."""
    source = open_official(spec, path, checksum=checksum)
    count = len(source) if rows is None else min(rows, len(source))
    places = np.random.default_rng(seed).permutation(len(source))[:count]
    image, x = as_rows(source.rows(places), path.name)
    return Dataset(spec.name, x, image, classes_at(spec, torch.from_numpy(places)), spec.names)


def classes_at(spec: Official, places: Tensor) -> Float[Tensor, "N k"]:
    """The class number of every factor at places in the file's order.

    >>> classes_at(DSPRITES, torch.tensor([0, 33])).tolist()
    [[0.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, 1.0]]
    """
    columns = []
    for size in reversed(spec.sizes):
        columns.append(places % size)
        places = places // size
    return torch.stack(columns[::-1], dim=1).double()


def _source(spec: Official, path: Path) -> Source:
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return open_npz(path, spec.array)
    if suffix in (".h5", ".hdf5"):
        return open_h5(path, spec.array)
    if suffix not in (".pth", ".pt"):
        raise InputError(f"{path.name}: {spec.name} comes as {spec.files[0][0]}, not as {suffix or 'a bare name'}.")
    arrays = torch_arrays(path)
    if len(arrays) != 1:
        raise InputError(f"{path.name} must hold one tensor, got {len(arrays)}.")
    (array,) = arrays.values()
    if spec.grid_axes and array.shape != spec.shape:
        raise InputError(
            f"{path.name} is not laid out as {spec.name}: expected shape {_by(spec.shape)}, got {_by(array.shape)}."
        )
    return from_array(path, spec.array, array.reshape(-1, *spec.pixels))


def _check_sum(spec: Official, path: Path) -> None:
    """A file whose sum is published must have it; a renamed one may have that of any of the names."""
    named = dict(spec.files)
    known = {named[path.name]} if path.name in named else set(named.values())
    if None in known:
        return
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found not in known:
        expected = " or ".join(sorted(filter(None, known)))
        raise InputError(
            f"{path.name} is not the official file of {spec.name}: its MD5 sum is {found}, expected {expected}; "
            f"fetch it again from {spec.where}."
        )


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
