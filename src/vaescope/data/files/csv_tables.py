"""Tables of text (.csv, .tsv): numeric columns as one array, read a block at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from vaescope.data.files.stored_array import StoredArray, file_reader
from vaescope.errors import InputError

BLOCK_BYTES = 16 * 2**20  # of text, read at once; the first block decides which columns are numeric


@file_reader("a table")
def csv_columns(path: Path) -> tuple[list[str], list[str]]:
    """Names of numeric columns, and of the others, by the first block of the file."""
    schema = _reader(path).schema
    numeric = [field.name for field in schema if _is_numeric(field.type)]
    return numeric, [name for name in schema.names if name not in numeric]


@file_reader("a table")
def open_csv(path: Path, columns: Sequence[str] | None = None, *, without: Sequence[str] = ()) -> StoredArray:
    """The given columns, or all numeric columns except some, as one array of float64; empty fields are NaN."""
    numeric, _ = csv_columns(path)
    chosen = list(columns or [name for name in numeric if name not in without])
    missing = [name for name in (*chosen, *without) if name not in numeric]
    if missing:
        raise InputError(f"{path.name} has no numeric column {missing[0]!r}; it has {', '.join(numeric) or 'none'}.")
    if not chosen:
        raise InputError(f"{path.name} has no numeric columns.")
    rows = sum(batch.num_rows for batch in _reader(path, chosen[:1]))

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        for batch in _reader(path, chosen):
            found = np.column_stack([column.to_numpy(zero_copy_only=False) for column in batch.columns])
            for start in range(0, len(found), batch_size):
                yield found[start : start + batch_size]

    return StoredArray(path, "table", (rows, len(chosen)), np.dtype(np.float64), read_batches)


def _reader(path: Path, columns: Sequence[str] | None = None) -> csv.CSVStreamingReader:
    """All columns with the types of the first block, or some of them as float64."""
    types = None if columns is None else dict.fromkeys(columns, pa.float64())
    return csv.open_csv(
        path,
        read_options=csv.ReadOptions(block_size=BLOCK_BYTES),
        parse_options=csv.ParseOptions(delimiter="\t" if path.suffix.lower() == ".tsv" else ","),
        convert_options=csv.ConvertOptions(include_columns=columns or [], column_types=types),
    )


def _is_numeric(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or pa.types.is_integer(kind)
