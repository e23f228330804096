"""One process at a time per run folder, by a lock of the operating system that ends with its process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from vaescope.errors import RunError
from vaescope.runs.files import cannot_write

try:
    import fcntl
except ImportError:  # Windows, where a file that is open for writing cannot be replaced
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"
WAIT_SECONDS = 1.0  # for a lock that is held only briefly


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; raise `RunError` naming the process that holds it."""
    file = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise cannot_write(file, error) from None
    try:
        if not _acquire_soon(handle, file):
            raise RunError(f"{folder} is in use by {_holder(file)}; wait for it, stop it, or choose another --out.")
        about = {"process": os.getpid(), "machine": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        with contextlib.suppress(OSError):  # the lock also works on a full disk
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(about).encode(), 0)
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a folder."""
    try:
        handle = os.open(folder / NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _acquire(handle, folder / NAME)
    finally:
        os.close(handle)


def _acquire_soon(handle: int, file: Path) -> bool:
    """Try for a while: the holder may only be checking (`is_locked`), or be about to exit."""
    end = time.monotonic() + WAIT_SECONDS
    while not _acquire(handle, file):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _acquire(handle: int, file: Path) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise RunError(f"{file} cannot be locked: {reason}; choose an --out on storage that supports locks.") from None
    return True


def _holder(file: Path) -> str:
    try:
        about = json.loads(file.read_text())
        return f"process {about['process']} on {about['machine']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
