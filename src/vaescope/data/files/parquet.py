"""Parquet tables: numeric columns as one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vaescope.data.files.stored_array import StoredArray, file_reader
from vaescope.errors import InputError


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
