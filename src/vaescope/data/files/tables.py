"""Tables of text (.csv, .tsv): columns as one array, read a block at a time.

A first line without numbers has the names of the columns.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from vaescope.core.errors import InputError
from vaescope.data.files.arrays import StoredArray, file_reader

BLOCK_BYTES = 16 * 2**20  # of text, read at once; the first block decides which columns are numeric
DELIMITERS = {".tsv": "\t"}


@file_reader("a table")
def csv_columns(path: Path) -> tuple[list[str], list[str]]:
    """Names of numeric columns, and of the others, by the first block of the file."""
    schema = _reader(path).schema
    numeric = [field.name for field in schema if _is_numeric(field.type)]
    return numeric, [name for name in schema.names if name not in numeric]


@file_reader("a table")
def open_csv(path: Path, columns: Sequence[str] | None = None, *, without: Sequence[str] = ()) -> StoredArray:
    """The given columns, or all numeric columns except some, as one array of float64; empty fields are NaN.

    Args:
        path: the file.
        columns: names of columns; text in them becomes the number of its category.
        without: columns that are left out.
    """
    numeric, others = csv_columns(path)
    missing = [name for name in (*(columns or ()), *without) if name not in (*numeric, *others)]
    if missing:
        names = ", ".join([*numeric, *others][:20])
        raise InputError(f"{path.name} has no column {missing[0]!r}; it has {names}.")
    chosen = list(columns or [name for name in numeric if name not in without])
    if not chosen:
        raise InputError(f"{path.name} has no numeric columns.")
    if any(name in others for name in chosen):
        return _categories(path, chosen)
    rows = sum(batch.num_rows for batch in _reader(path, chosen[:1]))

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        for batch in _reader(path, chosen):
            yield from _in_parts(np.column_stack([_numbers(column) for column in batch.columns]), batch_size)

    return StoredArray(path, "table", (rows, len(chosen)), np.dtype(np.float64), read_batches)


def _categories(path: Path, columns: Sequence[str]) -> StoredArray:
    """Columns with text, such as labels: categories are numbered in the order of the alphabet."""
    convert = pa_csv.ConvertOptions(include_columns=list(columns))
    table = pa_csv.read_csv(path, parse_options=_parsing(path), read_options=_reading(path), convert_options=convert)
    values = np.column_stack([_numbers(table.column(name)) for name in columns])
    return StoredArray(
        path, "table", values.shape, np.dtype(np.float64), lambda batch_size: _in_parts(values, batch_size)
    )


def _in_parts(values: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    return (values[start : start + batch_size] for start in range(0, len(values), batch_size))


def _reader(path: Path, columns: Sequence[str] | None = None) -> pa_csv.CSVStreamingReader:
    """All columns with the types of the first block, or some of them, whose integers may become fractions later."""
    types = {}
    if columns is not None:
        found = {field.name: field.type for field in _reader(path).schema}
        types = {name: pa.float64() for name in columns if not pa.types.is_boolean(found[name])}
    convert = pa_csv.ConvertOptions(include_columns=list(columns or []), column_types=types)
    return pa_csv.open_csv(path, read_options=_reading(path), parse_options=_parsing(path), convert_options=convert)


def _parsing(path: Path) -> pa_csv.ParseOptions:
    return pa_csv.ParseOptions(delimiter=DELIMITERS.get(path.suffix.lower(), ","))


def _reading(path: Path) -> pa_csv.ReadOptions:
    return pa_csv.ReadOptions(block_size=BLOCK_BYTES, autogenerate_column_names=not _has_names(path))


def _has_names(path: Path) -> bool:
    """Whether the first line has text that is not a number."""
    with path.open(newline="", errors="replace") as file:
        first = next(csv.reader(file, delimiter=DELIMITERS.get(path.suffix.lower(), ",")), [])
    return not all(_parses(cell) for cell in first)


def _parses(cell: str) -> bool:
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    if _is_numeric(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    text = np.asarray([str(value) for value in column.to_pylist()])
    return np.unique(text, return_inverse=True)[1].astype(np.float64)


@file_reader("a Parquet table")
def parquet_columns(path: Path) -> tuple[list[str], list[str]]:
    """Names of numeric columns, and of the others."""
    types = {column.name: column.type for column in pq.ParquetFile(path).schema_arrow}
    numeric = [name for name, t in types.items() if pa.types.is_floating(t) or pa.types.is_integer(t)]
    return numeric, [name for name in types if name not in numeric]


@file_reader("a Parquet table")
def open_parquet(path: Path, columns: Sequence[str] | None = None, *, without: Sequence[str] = ()) -> StoredArray:
    """The given columns, or all numeric columns except some, as one array of float64."""
    file = pq.ParquetFile(path)
    numeric, _ = parquet_columns(path)
    chosen = list(columns or [name for name in numeric if name not in without])
    missing = [name for name in (*chosen, *without) if name not in numeric]
    if missing:
        raise InputError(f"{path.name} has no numeric column {missing[0]!r}; it has {', '.join(numeric) or 'none'}.")
    if not chosen:
        raise InputError(f"{path.name} has no numeric columns.")

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=batch_size, columns=chosen):
            found = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
            yield np.column_stack(found).astype(np.float64)

    return StoredArray(path, "table", (file.metadata.num_rows, len(chosen)), np.dtype(np.float64), read_batches)
