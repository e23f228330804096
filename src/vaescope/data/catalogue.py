"""Data sets by name: what is rendered here, and which official file would be read instead."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vaescope.data.files import Dataset, load
from vaescope.data.files.official import (
    DSPRITES,
    FACES3D,
    MPI3D,
    MPI3D_SIMPLE,
    OFFICIAL,
    SHAPES3D,
    Official,
    load_official,
)
from vaescope.data.rendering import DSprites, Rendered, Shapes3D, Sprites
from vaescope.errors import InputError

FOLDER = "VAESCOPE_DATA"  # the environment's variable with the folder of official files
ROWS = 20_000  # images rendered where nobody says how many


@dataclass(frozen=True)
class Entry:
    """A data set that can be asked for by name."""

    name: str
    about: str
    rendered: Callable[[], Rendered] | None = None
    official: Official | None = None


CATALOGUE = (
    Entry("sprites", "one coloured sprite: x, y, scale and hue, continuous", Sprites),
    Entry("dsprites", DSPRITES.about, DSprites, DSPRITES),
    Entry("3dshapes", SHAPES3D.about, Shapes3D, SHAPES3D),
    Entry("mpi3d", MPI3D.about, None, MPI3D),
    Entry("mpi3d-simple", MPI3D_SIMPLE.about, None, MPI3D_SIMPLE),
    Entry("3dfaces", FACES3D.about, None, FACES3D),
)


def find(name: str) -> Entry:
    for entry in CATALOGUE:
        if entry.name == name:
            return entry
    raise InputError(f"no data set is called {name!r}; choose from: {', '.join(e.name for e in CATALOGUE)}.")


def official_file(name: str) -> Path | None:
    """The official file of a data set, if the folder that VAESCOPE_DATA names has it."""
    folder, spec = os.environ.get(FOLDER), find(name).official
    if not folder or spec is None:
        return None
    return next((file for base, _ in spec.files if (file := Path(folder) / base).exists()), None)


def open_data(
    what: str, *, array: str | None = None, factors: str | None = None, rows: int | None = None, seed: int = 0
) -> Dataset:
    """A rendered data set by its name, an official file by its name on disk, or any file of one's own."""
    path = Path(what)
    if path.exists():
        spec = next((s for s in OFFICIAL.values() if path.name in dict(s.files)), None)
        if spec is not None:
            return load_official(spec, path, rows=ROWS if rows is None else rows, seed=seed)
        return load(path, array=array, factors=factors, rows=rows, seed=seed)
    if path.suffix or "/" in what:
        raise InputError(f"{what} does not exist.")
    return render(find(what), rows=ROWS if rows is None else rows, seed=seed)


def render(entry: Entry, *, rows: int, seed: int = 0, size: int = 64) -> Dataset:
    """Images at random from the official grid (or, for sprites, from anywhere in their ranges)."""
    if entry.rendered is None:
        assert entry.official is not None
        raise InputError(
            f"{entry.name} is not rendered here; give the path of {entry.official.files[0][0]}, "
            f"from {entry.official.where}."
        )
    source = entry.rendered(size=size)  # type: ignore[call-arg]
    drawn = source.sample(rows, seed=seed, distributions="uniform" if entry.official is None else "grid")
    return Dataset(
        entry.name, drawn.images.flatten(1), (source.channels, source.size, source.size), drawn.factors, drawn.names
    )
