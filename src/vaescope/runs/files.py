"""Files of a run folder. Every write is atomic: after a crash a file is the old one or the new one, never partial."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import secrets
import socket
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vaescope.core.errors import InputError, RunError, first_line

Row = Mapping[str, object]
PARTIAL = ".unfinished"  # suffix of files that are being written
DAMAGED = "its content was changed or damaged, it does not have its checksum"


# writing --------------------------------------------------------------------------------------


def write_bytes(path: Path, content: bytes) -> None:
    """Write to a temporary file, flush it, rename it, and flush the folder, so that a power cut loses nothing.

    Symbolic links are followed. A file that exists keeps its permissions, a new one has those of the umask.
    """
    target = _regular_target(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = _temporary_file(target)
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.chmod(temporary, stat.S_IMODE(target.stat().st_mode))
        os.replace(temporary, target)
        _flush_folder(target.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise RunError(f"cannot write {path}: {_reason(error)}; finished results are intact.") from None


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before the work whose result it would hold.

    Args:
        path: the file, which need not exist; nothing is left behind.
    """
    target = _regular_target(path)
    folder = next((parent for parent in target.parents if parent.exists()), target.parent)
    try:
        handle, temporary = _temporary_file(folder / target.name)
        os.close(handle)
        os.unlink(temporary)
    except OSError as error:
        raise cannot_write(path, error) from None


def _regular_target(path: Path) -> Path:
    """The file to which a path leads, through symbolic links: a regular file, or none yet."""
    try:
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode
    except FileNotFoundError:
        return target
    except OSError as error:
        raise cannot_write(path, error) from None
    if not stat.S_ISREG(mode):
        raise RunError(f"cannot write {path}: it is {_kind_of_file(mode)}, not a file; choose another path.")
    return target


def _kind_of_file(mode: int) -> str:
    return "a folder" if stat.S_ISDIR(mode) else "a device, pipe or socket"


def _temporary_file(target: Path) -> tuple[int, Path]:
    """A new file next to another one, open for writing, with the permissions of the umask."""
    temporary = target.parent / f".{target.name}.{secrets.token_hex(4)}{PARTIAL}"
    return os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666), temporary


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_partial_files(folder: Path) -> None:
    """Delete files that a killed process was writing to a run folder. The caller must hold the folder's lock."""
    for directory in (folder, folder / "weights", folder / "figures"):
        for file in directory.glob(f".*{PARTIAL}"):
            file.unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {path}: {_reason(error)}; choose another path.")


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def json_data(value: object) -> object:
    """Plain data as JSON stores it: no NaN or infinity, no NumPy types.

    >>> json_data({"a": (1, np.float64("nan"))})
    {'a': [1, None]}
    """
    if isinstance(value, dict):
        return {str(key): json_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_data(item) for item in value]
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, float):
        return plain if math.isfinite(plain) else None
    return plain if isinstance(plain, str | int | bool | None) else str(plain)


def write_rows(path: Path, rows: Sequence[Row], owner: str = "") -> None:
    """Rows as Parquet with a checksum; a column that a row does not have is null there.

    Args:
        path: the file.
        rows: of results or histories.
        owner: identifies the run whose rows they are.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    sink = pa.BufferOutputStream()
    owned = {"owner": owner} if owner else {}
    pq.write_table(table.replace_schema_metadata({"checksum": _checksum_of_columns(table, owner), **owned}), sink)
    write_bytes(path, sink.getvalue().to_pybytes())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Tensors with text as safetensors, with a checksum of both."""
    contiguous = {name: value.contiguous() for name, value in tensors.items()}
    text = {**metadata, "checksum": _checksum(contiguous, metadata)}
    # safetensors writes several entries in random order; one entry gives the same bytes every time
    write_bytes(path, save(contiguous, metadata={"vaescope": json.dumps(text, sort_keys=True)}))


def _stored_text(metadata: Mapping[str, str]) -> dict[str, str]:
    """The text that `write_tensors` was given, with the checksum; version 0.2.0 has an entry for each."""
    text = json.loads(metadata["vaescope"]) if "vaescope" in metadata else metadata
    if not isinstance(text, Mapping) or not all(isinstance(value, str) for value in text.values()):
        raise ValueError("its metadata are not text")
    return dict(text)


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 of names, types, shapes and numbers of the tensors, and of the text."""
    digest = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _checksum_of_columns(table: pa.Table, owner: str) -> str:
    """SHA-256 of the owner, and of names, types, missing values and values of the columns."""
    digest = hashlib.sha256(owner.encode())
    for name, column in zip(table.column_names, table.columns, strict=True):
        plain = pa.types.is_primitive(column.type) and not pa.types.is_temporal(column.type)
        values = column.to_numpy().tobytes() if plain else json.dumps(column.to_pylist(), default=repr).encode()
        digest.update(json.dumps([name, str(column.type) if plain else ""]).encode())  # Parquet renames parts of lists
        digest.update(column.is_null().to_numpy().tobytes() + values)
    return digest.hexdigest()


# reading --------------------------------------------------------------------------------------


def exists(path: Path) -> bool:
    """Whether there is anything at a path, be it a symbolic link that leads nowhere."""
    return os.path.lexists(path)


def _check_regular(path: Path) -> None:
    """Raise `OSError` unless a path leads to a regular file: a pipe would be waited for, a device read without end."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(f"it is {_kind_of_file(mode)}, not a file")


def read_json(path: Path) -> Any:
    try:
        _check_regular(path)
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"cannot read {path}: {one_line(error)}; remove the folder to start again.") from None


def read_rows(path: Path, owner: str = "") -> list[dict[str, object]]:
    """The rows of a Parquet file; none if there is no such file.

    Args:
        path: the file.
        owner: what `write_rows` was given, to refuse rows of other runs; tables of version 0.2.0 do not name theirs.
    """
    if not exists(path):
        return []
    try:
        _check_regular(path)
        with pq.ParquetFile(path) as file:
            table = file.read()
        metadata = table.schema.metadata or {}
        stored = metadata.get(b"owner", b"").decode()
        if metadata.get(b"checksum") not in (None, _checksum_of_columns(table, stored).encode()):  # 0.2.0 has none
            raise ValueError(DAMAGED)
        if owner and stored not in ("", owner):
            raise ValueError("its rows are of a run with other settings")
        rows: list[dict[str, object]] = table.to_pylist()
    except (OSError, pa.ArrowException, ValueError, TypeError, MemoryError, OverflowError) as error:
        raise RunError(f"cannot read {path}: {one_line(error)}; remove it to compute it again.") from None
    return rows


def read_tensors(path: Path, *, needs_checksum: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and text of a safetensors file; refused if they differ from the file's checksum.

    Args:
        path: the file.
        needs_checksum: whether a file without a checksum, as version 0.2.0 wrote them, is refused.
    """
    try:
        _check_regular(path)
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (a file, not a dict)
            metadata = _stored_text(file.metadata() or {})
        checksum = metadata.pop("checksum", None)
        if checksum != _checksum(tensors, metadata) and (needs_checksum or checksum is not None):
            raise ValueError(DAMAGED)
        return tensors, metadata
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError, MemoryError) as error:
        raise RunError(f"cannot read {path}: {one_line(error)}; remove it to train again.") from None


@contextlib.contextmanager
def malformed_as_run_error(path: Path) -> Iterator[None]:
    """Turn errors from unexpected content of a run's files into a `RunError` of one line."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, InputError | RunError):
            raise
        reason = f"{type(error).__name__}: {first_line(error, 120)}"
        raise RunError(f"{path} is not what a run folder contains ({reason}); remove it to start again.") from None


def one_line(error: BaseException) -> str:
    """The message of an error, without line breaks and of limited length."""
    return " ".join(str(error).split())[:200]


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


NAME = ".lock"
WAIT_SECONDS = 1.0  # for a lock that is held only briefly, by `is_locked` or by a process that is about to exit


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder; raise `RunError` naming the process that holds it."""
    file = _regular_target(folder / NAME)
    lock = FileLock(file, WAIT_SECONDS, thread_local=False, preserve_lock_file=True, on_acquired=_write_holder)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise RunError(
            f"{folder} is in use by {_holder(file)}; wait for it, stop it, or choose another --out."
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            raise cannot_write(file, error) from None
        raise RunError(
            f"{file} cannot be locked: {_reason(error)}; choose an --out on storage that supports locks."
        ) from None
    try:
        yield
    finally:
        lock.release()


def is_locked(folder: Path) -> bool:
    """Whether a process holds the lock of a folder."""
    if not (folder / NAME).exists():
        return False
    try:
        with FileLock(folder / NAME, 0, preserve_lock_file=True):
            return False
    except Timeout:
        return True
    except OSError:  # no process can hold the lock of a file that cannot be opened
        return False


def _write_holder(handle: int) -> None:
    """Write who holds a lock into its file."""
    about = {"process": os.getpid(), "machine": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with contextlib.suppress(OSError):  # the lock also works on a full disk
        os.ftruncate(handle, 0)
        os.write(handle, json.dumps(about).encode())


def _holder(file: Path) -> str:
    try:
        about = json.loads(file.read_text())
        return f"process {about['process']} on {about['machine']} since {about['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
