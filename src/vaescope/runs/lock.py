"""One process at a time in a run folder. The lock is the kernel's: it goes when its process does, however it goes."""

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
except ImportError:  # Windows: a file that is open for writing there cannot be replaced by somebody else anyway
    fcntl = None  # type: ignore[assignment]

NAME = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder, or say who does."""
    file = folder / NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise cannot_write(file, error) from None
    try:
        if not _taken(handle):
            raise RunError(f"{folder} is in use by {_holder(file)}; wait for it, stop it, or choose another --out.")
        about = {"process": os.getpid(), "machine": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
        with contextlib.suppress(OSError):  # a full disk does not keep the lock from holding
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(about).encode(), 0)
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Whether somebody is at work in a folder."""
    try:
        handle = os.open(folder / NAME, os.O_RDWR)
    except OSError:
        return False
    try:
        return not _taken(handle)
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _holder(file: Path) -> str:
    try:
        about = json.loads(file.read_text())
        return f"process {about['process']} on {about['machine']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
