"""Rows in a file, read a few at a time: an array of any size, in memory no more than a part of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

import numpy as np

from vaescope.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
PART = 64 * 2**20  # bytes read at once
NUMBERS = "fiub"  # kinds of numpy types that are numbers


@dataclass(frozen=True, eq=False)
class Source:
    """An array in a file. `read(start, stop)` gives some of its rows; files that can only be read in order say so."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    parts: Callable[[int], Iterator[np.ndarray]] = field(repr=False)
    """All rows in order, that many at a time."""
    pick: Callable[[np.ndarray], np.ndarray] | None = field(default=None, repr=False)
    """Rows at sorted places, where a file can be entered anywhere."""

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def stream(self, batch: int | None = None) -> Iterator[np.ndarray]:
        """All rows in order, a batch at a time."""
        rest = self.parts(batch or max(1, PART // max(1, self.row_bytes)))
        while True:
            try:
                part = next(rest)
            except StopIteration:
                return
            except InputError:
                raise
            except (Exception, MemoryError) as error:
                raise InputError(f"{self.path.name} is damaged: {said(error)}.") from None
            yield part

    def rows(self, places: np.ndarray) -> np.ndarray:
        """Rows at these places, in their order; a file that has to be read in order is read once."""
        if len(places) and not 0 <= places.min() <= places.max() < len(self):
            raise InputError(f"{self.path.name} has rows 0 to {len(self) - 1}, asked for {places.max()}.")
        order = np.argsort(places, kind="stable")
        found = self._picked(places[order]) if self.pick else self._passing(places[order])
        out = np.empty_like(found)
        out[order] = found
        return out

    def _picked(self, ordered: np.ndarray) -> np.ndarray:
        assert self.pick is not None
        try:
            return self.pick(ordered)
        except InputError:
            raise
        except (Exception, MemoryError) as error:
            raise InputError(f"{self.path.name} is damaged: {said(error)}.") from None

    def _passing(self, ordered: np.ndarray) -> np.ndarray:
        out = np.empty((len(ordered), *self.shape[1:]), self.dtype)
        first, taken = 0, 0
        for part in self.stream():
            until = int(np.searchsorted(ordered, first + len(part)))
            out[taken:until] = part[ordered[taken:until] - first]
            first, taken = first + len(part), until
            if taken == len(ordered):
                break
        if taken < len(ordered):
            raise InputError(f"{self.path.name} ends too early: it has {first} rows, and says {len(self)}.")
        return out


def reader(function: Callable[P, R]) -> Callable[P, R]:
    """A function that reads a file: whatever a library makes of a damaged one, users are told in one line.

    Libraries raise anything for a file that is not what it says: errors of their own, of zlib, of Python's tokenizer.
    """

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except InputError:
            raise
        except (Exception, MemoryError) as error:
            path = next((Path(a) for a in args if isinstance(a, str | Path)), None)
            name = "the file" if path is None else path.name
            raise InputError(f"{name} is damaged, or not what its name says: {said(error)}.") from None

    return guarded


def numbers(path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Refuse what is no array of numbers with a row per sample."""
    if dtype.kind not in NUMBERS:
        raise InputError(f"{path.name}: {name} must hold numbers, got {dtype}; nothing was loaded.")
    if len(shape) < 2 or 0 in shape:
        raise InputError(f"{path.name}: {name} must have a row per sample, got shape {shape}; nothing was loaded.")


def said(error: BaseException) -> str:
    """A library's message as the end of a sentence."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def from_array(path: Path, name: str, array: np.ndarray) -> Source:
    """An array that can be entered anywhere: in memory, or mapped from a file."""
    numbers(path, name, array.shape, array.dtype)

    def parts(batch: int) -> Iterator[np.ndarray]:
        for first in range(0, len(array), batch):
            yield np.asarray(array[first : first + batch])

    return Source(path, name, array.shape, array.dtype, parts, lambda places: np.asarray(array[places]))
