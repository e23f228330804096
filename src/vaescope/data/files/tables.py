"""Tables (.csv, .tsv, .parquet): columns as one array of float64, read a block at a time.

A first line without numbers has the names of the columns of a text file.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from vaescope.core.errors import InputError
from vaescope.data.files.arrays import StoredArray, file_reader

BLOCK_BYTES = 16 * 2**20  # of text, read at once; the first block decides which columns are numeric


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


@file_reader("a table")
def csv_columns(path: Path) -> tuple[list[str], list[str]]:
    """Names of columns with numbers or booleans, and of the others, by the first block of the file."""
    kinds = {column.name: column.type for column in _reader(path).schema}
    numeric = [name for name, kind in kinds.items() if _is_number(kind) or pa.types.is_boolean(kind)]
    return numeric, [name for name in kinds if name not in numeric]


@file_reader("a Parquet table")
def parquet_columns(path: Path) -> tuple[list[str], list[str]]:
    """Names of columns with numbers, and of the others."""
    kinds = {column.name: column.type for column in pq.ParquetFile(path).schema_arrow}
    numeric = [name for name, kind in kinds.items() if _is_number(kind)]
    return numeric, [name for name in kinds if name not in numeric]


def _chosen(path: Path, columns: Sequence[str] | None, without: Sequence[str], numeric: list[str]) -> list[str]:
    chosen = list(columns or [name for name in numeric if name not in without])
    if not chosen:
        raise InputError(f"{path.name} has no numeric columns.")
    return chosen


@file_reader("a Parquet table")
def open_parquet(path: Path, columns: Sequence[str] | None = None, *, without: Sequence[str] = ()) -> StoredArray:
    """The given columns, or all numeric columns except some, as one array of float64."""
    numeric, _ = parquet_columns(path)
    missing = [name for name in (*(columns or ()), *without) if name not in numeric]
    if missing:
        raise InputError(f"{path.name} has no numeric column {missing[0]!r}; it has {', '.join(numeric) or 'none'}.")
    chosen = _chosen(path, columns, without, numeric)

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=batch_size, columns=chosen):
            found = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
            yield np.column_stack(found).astype(np.float64)

    rows = pq.ParquetFile(path).metadata.num_rows
    return StoredArray(path, "table", (rows, len(chosen)), np.dtype(np.float64), read_batches)


@file_reader("a table")
def open_csv(path: Path, columns: Sequence[str] | None = None, *, without: Sequence[str] = ()) -> StoredArray:
    """The given columns, or all numeric columns except some, as one array of float64; empty fields are NaN.

    Args:
        path: the file.
        columns: names of columns; strings in them become the number of their category, in alphabetical order.
        without: columns that are left out.
    """
    numeric, others = csv_columns(path)
    missing = [name for name in (*(columns or ()), *without) if name not in (*numeric, *others)]
    if missing:
        names = ", ".join([*numeric, *others][:20])
        raise InputError(f"{path.name} has no column {missing[0]!r}; it has {names}.")
    chosen = _chosen(path, columns, without, numeric)
    dtype = np.dtype(np.float64)
    if any(name in others for name in chosen):  # categories are numbered over the whole file
        table = pa_csv.read_csv(path, **_options(path, chosen))
        values = np.column_stack([_numbers(table.column(name)) for name in chosen])
        return StoredArray(path, "table", values.shape, dtype, lambda size: _in_parts(values, size))
    shape = (sum(batch.num_rows for batch in _reader(path, chosen[:1])), len(chosen))

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        for batch in _reader(path, chosen):
            yield from _in_parts(np.column_stack([_numbers(column) for column in batch.columns]), batch_size)

    return StoredArray(path, "table", shape, dtype, read_batches)


def _in_parts(values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _reader(path: Path, columns: Sequence[str] | None = None) -> pa_csv.CSVStreamingReader:
    """All columns with the types of the first block, or some of them, whose integers may become fractions later."""
    types = {}
    if columns is not None:
        found = {field.name: field.type for field in _reader(path).schema}
        types = {name: pa.float64() for name in columns if not pa.types.is_boolean(found[name])}
    return pa_csv.open_csv(path, **_options(path, columns or (), types))


def _options(
    path: Path, columns: Sequence[str], types: Mapping[str, pa.DataType] | None = None
) -> dict[str, pa_csv.ReadOptions | pa_csv.ParseOptions | pa_csv.ConvertOptions]:
    """How a text file is read; its first line has names if it has a cell that is not a number."""
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    with path.open(newline="", errors="replace") as file:
        first = next(csv.reader(file, delimiter=delimiter), [])
    try:
        np.asarray([cell or "nan" for cell in first], float)
        unnamed = True
    except ValueError:
        unnamed = False
    return {
        "read_options": pa_csv.ReadOptions(block_size=BLOCK_BYTES, autogenerate_column_names=unnamed),
        "parse_options": pa_csv.ParseOptions(delimiter=delimiter),
        "convert_options": pa_csv.ConvertOptions(include_columns=list(columns), column_types=types or {}),
    }


def _numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Numbers as they are, other values as the number of their category."""
    if _is_number(column.type) or pa.types.is_boolean(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    text = np.asarray([str(value) for value in column.to_pylist()])
    return np.unique(text, return_inverse=True)[1].astype(np.float64)
