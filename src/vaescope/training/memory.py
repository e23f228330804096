"""Memory that training frees at every step and needs again at the next.

The C library returns large freed blocks to the system, which clears every page of them before it hands them out again:
a fifth of the time of a step. While a model is trained, freed memory stays in the process.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1  # parameters of glibc's mallopt
KEPT = 2**31 - 1  # bytes: the largest value that mallopt takes
USUAL_MMAP, USUAL_TRIM = 2**25, 2**26  # where glibc's own thresholds end up in a process that frees large blocks


@contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Keep freed memory in this process inside the context, and return it to the system at the end.

    Does nothing where the C library is not glibc.
    """
    libc = _glibc()
    if libc is None:
        yield
        return
    _set_thresholds(libc.mallopt, KEPT, KEPT)
    try:
        yield
    finally:
        _set_thresholds(libc.mallopt, USUAL_MMAP, USUAL_TRIM)
        libc.malloc_trim(0)


def _set_thresholds(mallopt: Callable[[int, int], int], mmap: int, trim: int) -> None:
    if not mallopt(MMAP_THRESHOLD, mmap):  # some versions refuse more than 32 MB
        mallopt(MMAP_THRESHOLD, USUAL_MMAP)
    mallopt(TRIM_THRESHOLD, trim)


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt, libc.malloc_trim  # noqa: B018 (other C libraries lack them)
    except (OSError, AttributeError):
        return None
    return libc
