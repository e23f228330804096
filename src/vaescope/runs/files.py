"""Writing files so that a crash leaves the old one or the new one, never half of it."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vaescope.errors import InputError, RunError

Row = dict[str, Any]
UNFINISHED = ".unfinished"


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside, flush to disk, rename, and flush the folder, so that the new name outlives a power cut too."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED)
    except OSError as error:
        raise cannot_write(path, error) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
        _flush_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise RunError(f"cannot write {path}: {_reason(error)}; what was finished is kept.") from None


def _flush_folder(folder: Path) -> None:
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_leftovers(folder: Path) -> None:
    """Files that a killed process was writing, in a run's own folders; for who holds their lock."""
    for place in (folder, folder / "weights", folder / "figures"):
        for file in place.glob(f".*{UNFINISHED}"):
            file.unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError) -> RunError:
    return RunError(f"cannot write {path}: {_reason(error)}; choose another --out.")


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"cannot read {path}: {_line(error)}; remove the folder to start anew.") from None


@contextlib.contextmanager
def as_run(path: Path) -> Iterator[None]:
    """What is read here is taken for what a run keeps; where it is something else, that is one line."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, InputError | RunError):
            raise
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:120]}"
        raise RunError(f"{path} is not as a run keeps it ({reason}); remove it to start anew.") from None


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as parquet; a column that a row lacks is null there."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    write_bytes(path, sink.getvalue().to_pybytes())


def read_rows(path: Path) -> list[Row]:
    """The rows of a parquet file, none if there is no such file."""
    if not path.exists():
        return []
    try:
        return pq.read_table(path, memory_map=False).to_pylist()
    except (OSError, pa.ArrowException, ValueError, TypeError, MemoryError, OverflowError) as error:
        raise RunError(f"cannot read {path}: {_line(error)}; remove it to measure anew.") from None


def _line(error: BaseException) -> str:
    """What a library says, as one line."""
    return " ".join(str(error).split())[:200]


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
