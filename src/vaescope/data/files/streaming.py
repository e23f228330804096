"""Training on a file that is larger than memory.

An epoch passes through the file in windows. A window is made of blocks of neighbouring rows from random places of the
file; its rows are shuffled again by whoever trains. The next window is read while the current one is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from vaescope.core import randomness
from vaescope.core.errors import InputError
from vaescope.core.validation import ImageShape
from vaescope.data.dataset import ArrayRows, bytes_to_float, channels_first
from vaescope.data.files.arrays import StoredArray, errors_in_one_line

WINDOW_BYTES = 128 * 2**20  # there are two windows in memory: the one in use and the next one
BLOCK_BYTES = 2**20  # neighbouring rows that are read at once


@dataclass(frozen=True, eq=False)
class StoredDataset:
    """Observations that stay in their file."""

    name: str
    array: StoredArray
    image_shape: ImageShape | None
    byte_scale: float
    factors: None = None

    def __len__(self) -> int:
        return len(self.array)

    @property
    def what_was_read(self) -> str:
        return self.array.what_was_read

    @property
    def columns(self) -> int:
        return int(np.prod(self.array.shape[1:], dtype=np.int64))

    def head(self, count: int) -> Float[Tensor, "C n"]:
        """Random rows, always the same."""
        indices = np.random.default_rng(0).permutation(len(self))[:count]
        return bytes_to_float(stored_rows(self.array.rows(indices)), self.byte_scale)

    def spread_rows(self, count: int) -> Float[Tensor, "C n"]:
        """Some rows from all over the data, as numbers; always the same ones."""
        return self.head(count)

    def digest(self) -> str:
        """Identifies the content by its shape and some of its rows: reading all of it would take minutes."""
        content = repr((self.array.shape, str(self.array.dtype))).encode() + _sampled_rows(self.array, 256).tobytes()
        return hashlib.sha256(content).hexdigest()[:16]

    def split_rows(self, validation_share: float) -> tuple[StreamedRows, ArrayRows]:
        """Rows for training, streamed, and for validation, in memory: random ones, of at most 128 MB."""
        most = max(1, 128 * 2**20 // self.array.row_bytes)
        count = max(1, min(round(validation_share * len(self)), most))
        order = torch.randperm(len(self), generator=randomness.generator(0, "split"))
        held_out = np.sort(order[:count].numpy())
        validation = ArrayRows(stored_rows(self.array.rows(held_out)).unsqueeze(0), self.byte_scale)
        return StreamedRows(self.array, held_out, self.columns, self.byte_scale), validation


def _sampled_rows(array: StoredArray, count: int) -> np.ndarray:
    """Rows at equal distances, at most `count`."""
    return array.rows(np.linspace(0, len(array) - 1, min(count, len(array)), dtype=np.int64))


def open_stored(array: StoredArray) -> StoredDataset:
    """An array in a file as a data set to train on; formats without random access are unpacked to a temporary file."""
    array = array if array.read_slice is not None else _unpacked(array)
    sample = _sampled_rows(array, 256)
    image = channels_first(sample) if sample.ndim in (3, 4) else None
    image_shape: ImageShape | None = None if image is None else (image.shape[1], image.shape[2], image.shape[3])
    if array.dtype.kind in "iu" and array.dtype != np.uint8:
        raise InputError(f"{array.path.name} has integers of {array.dtype.itemsize} bytes; store bytes or floats.")
    scale = 255.0 if array.dtype == np.uint8 and image is not None and sample.max() > 1 else 1.0
    return StoredDataset(array.path.stem, array, image_shape, scale)


def _unpacked(array: StoredArray) -> StoredArray:
    """The same array with a copy of its rows in a temporary file that has no name, so that nothing is left behind.

    The copy is written, not mapped: on a full disk a mapping ends the process.
    """
    size, folder = len(array) * array.row_bytes, Path(tempfile.gettempdir())
    problem = f"{array.path.name} needs {size / 1e9:.2g} GB in {folder} to be unpacked"
    advice = "set TMPDIR to a folder with more space, or take some rows with rows=N (--rows N on the command line)."
    free = shutil.disk_usage(folder).free
    if free < size:
        raise InputError(f"{problem}, which has {free / 1e9:.2g} GB free; {advice}")
    copy, written = tempfile.TemporaryFile(), 0  # noqa: SIM115 (open as long as the array is used)
    try:
        for batch in array.stream():
            copy.write(np.ascontiguousarray(batch, array.dtype).data)
            copy.flush()
            written += len(batch)
        if written != len(array):
            raise InputError(f"{array.path.name} is truncated: it has {written} rows, but declares {len(array)}.")
    except (OSError, InputError) as error:
        with contextlib.suppress(OSError):
            copy.close()
        if isinstance(error, InputError):  # from the file that is read
            raise
        raise InputError(f"{problem}: {(error.strerror or str(error)).lower()}; {advice}") from None

    def read(rows: slice | np.ndarray) -> np.ndarray:
        """From a mapping of its own, whose pages are released afterwards."""
        return np.array(np.memmap(copy, array.dtype, "r", shape=(len(array), *array.shape[1:]))[rows])

    unpacked = replace(array, read_batches=None, read_rows=read, read_slice=lambda first, end: read(slice(first, end)))
    weakref.finalize(unpacked, copy.close)
    return unpacked


def stored_rows(values: np.ndarray) -> Shaped[Tensor, "N r"]:
    """Samples as rows, channels first: bytes as they are, other numbers as float32."""
    values = channels_first(values) if values.ndim in (3, 4) else values
    flat = values.reshape(len(values), -1)
    dtype = np.uint8 if flat.dtype == np.uint8 else np.float32
    return torch.from_numpy(np.require(flat, dtype, ["C", "W"]))  # tensors need memory that may be written to


@dataclass(frozen=True, eq=False)
class StreamedRows:
    """Rows of a file, without those that are held out, in windows of random blocks."""

    array: StoredArray
    held_out: np.ndarray
    """Sorted indices of rows that are not used."""
    columns: int
    byte_scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        return 1, len(self.array) - len(self.held_out), self.columns

    @property
    def block_rows(self) -> int:
        """Rows of a block: whole chunks of a chunked file."""
        chunk = self.array.chunk_rows
        return chunk * max(1, BLOCK_BYTES // (self.array.row_bytes * chunk))

    def windows(self, generator: torch.Generator) -> Iterator[Shaped[Tensor, "1 W r"]]:
        blocks = torch.randperm(-(-len(self.array) // self.block_rows), generator=generator).numpy()
        per_window = max(1, WINDOW_BYTES // (self.array.row_bytes * self.block_rows))
        groups = [blocks[first : first + per_window] for first in range(0, len(blocks), per_window)]
        with ThreadPoolExecutor(1) as reader:
            upcoming = reader.submit(self._window, groups[0])
            for group in [*groups[1:], None]:
                window = upcoming.result()
                if group is not None:
                    upcoming = reader.submit(self._window, group)
                yield window.unsqueeze(0)

    def _window(self, blocks: np.ndarray) -> Shaped[Tensor, "W r"]:
        """The rows of some blocks that are not held out, in one array that is filled block by block."""
        size, read_slice = self.block_rows, self.array.read_slice
        assert read_slice is not None
        ranges = [(int(block) * size, min((int(block) + 1) * size, len(self.array))) for block in np.sort(blocks)]
        limits = [np.searchsorted(self.held_out, part) for part in ranges]
        held_out = [self.held_out[low:high] - first for (first, _), (low, high) in zip(ranges, limits, strict=True)]
        count = sum(end - first - len(out) for (first, end), out in zip(ranges, held_out, strict=True))
        dtype = torch.uint8 if self.array.dtype == np.uint8 else torch.float32
        window = torch.empty(count, self.columns, dtype=dtype)
        filled = 0
        with errors_in_one_line(self.array.path):
            for (first, end), out in zip(ranges, held_out, strict=True):
                kept = torch.ones(end - first, dtype=torch.bool)
                kept[torch.from_numpy(out)] = False
                rows = stored_rows(read_slice(first, end))[kept]
                window[filled : filled + len(rows)] = rows
                filled += len(rows)
        taken_as_binary = window.dtype == torch.uint8 and len(self.array.shape) > 2 and self.byte_scale == 1.0
        if taken_as_binary and int(window.max()) > 1:
            raise InputError(
                f"a sample of {self.array.path.name} is binary, but other images have bytes up to {int(window.max())}; "
                "store all images as 0 and 1, or all as 0 to 255."
            )
        return window

    def to_float(self, stored: Shaped[Tensor, "*B r"]) -> Float[Tensor, "*B r"]:
        return bytes_to_float(stored, self.byte_scale)

    def sample(self, count: int) -> Float[Tensor, "1 C r"]:
        return self.to_float(stored_rows(_sampled_rows(self.array, count))).unsqueeze(0)

    def to(self, device: torch.device) -> StreamedRows:
        return self
