"""Folders of images of one size."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vaescope.data.files.stored_array import StoredArray, file_reader
from vaescope.errors import InputError
from vaescope.extras import require

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


@file_reader("a folder of images")
def open_image_folder(path: Path) -> StoredArray:
    """Every image in a folder and its subfolders, sorted by path, as (N, height, width, channels)."""
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in IMAGE_SUFFIXES)
    if not files:
        raise InputError(f"{path.name} has no images with the suffixes {', '.join(IMAGE_SUFFIXES)}.")
    first = _read_image(files[0])

    def read(some: list[Path]) -> np.ndarray:
        images = [_read_image(file) for file in some]
        for file, image in zip(some, images, strict=True):
            if image.shape != first.shape:
                raise InputError(
                    f"images must have the same size: {files[0].name} is {_size(first)}, {file.name} is "
                    f"{_size(image)}; resize them."
                )
        return np.stack(images)

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        for start in range(0, len(files), batch_size):
            yield read(files[start : start + batch_size])

    shape = (len(files), *first.shape)
    return StoredArray(
        path,
        "images",
        shape,
        first.dtype,
        read_batches,
        lambda indices: read([files[k] for k in indices]),
        lambda start, end: read(files[start:end]),
    )


@file_reader("an image")
def _read_image(file: Path) -> np.ndarray:
    with require("PIL.Image", "reading images").open(file) as image:
        if image.mode.startswith("I"):  # 16-bit grey, which `convert` would clip at 255
            return np.asarray(image).clip(0, 2**16 - 1).astype(np.uint16).reshape(image.height, image.width, 1)
        grey = image.mode in ("1", "L")
        return np.asarray(image.convert("L" if grey else "RGB")).reshape(image.height, image.width, -1)


def _size(image: np.ndarray) -> str:
    return " x ".join(map(str, image.shape))
