"""CSV tables: numeric columns as one array; a first line without numbers has the names of columns."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from vaescope.data.files.stored_array import StoredArray, file_reader
from vaescope.errors import InputError

DELIMITERS = {".tsv": "\t"}


@file_reader("a CSV table")
def open_csv(path: Path, columns: Sequence[str] | None = None, *, without: Sequence[str] = ()) -> StoredArray:
    """The given columns, or all numeric columns except some, as one array of float64.

    Args:
        path: the file.
        columns: names of columns; text in them becomes the number of its category.
        without: columns that are left out.
    """
    table = _read(path)
    numeric = [field.name for field in table.schema if _is_number(field.type)]
    missing = [name for name in (*(columns or ()), *without) if name not in table.column_names]
    if missing:
        raise InputError(f"{path.name} has no column {missing[0]!r}; it has {', '.join(table.column_names[:20])}.")
    chosen = list(columns or [name for name in numeric if name not in without])
    if not chosen:
        raise InputError(f"{path.name} has no numeric columns.")
    values = np.column_stack([_numbers(table.column(name)) for name in chosen])

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        yield from (values[start : start + batch_size] for start in range(0, len(values), batch_size))

    return StoredArray(path, "table", values.shape, np.dtype(np.float64), read_batches)


def _read(path: Path) -> pa.Table:
    parse = pa_csv.ParseOptions(delimiter=DELIMITERS.get(path.suffix.lower(), ","))
    read = pa_csv.ReadOptions(autogenerate_column_names=not _has_names(path, parse.delimiter))
    return pa_csv.read_csv(path, read_options=read, parse_options=parse)


def _has_names(path: Path, delimiter: str) -> bool:
    """Whether the first line has text that is not a number."""
    with path.open(newline="", errors="replace") as file:
        first = next(csv.reader(file, delimiter=delimiter), [])
    return not all(_parses(cell) for cell in first)


def _parses(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    if _is_number(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    text = np.asarray([str(value) for value in column.to_pylist()])
    return np.unique(text, return_inverse=True)[1].astype(np.float64)
