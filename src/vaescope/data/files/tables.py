"""Tables (.csv, .tsv, .parquet): columns as one array of float64, read a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pa_compute
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from vaescope.core.errors import InputError
from vaescope.data.files.arrays import StoredArray, file_reader
from vaescope.data.files.dialect import BLOCK_BYTES as FIRST_BYTES
from vaescope.data.files.dialect import MISSING, ONE_COLUMN, Dialect, converted, read_dialect

BLOCK_BYTES = 16 * 2**20  # of text, read at once


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _about(names: Sequence[str], left_out: Mapping[str, str], without: Sequence[str] = (), *, written: str = "") -> str:
    """What was read from a table, for one line: columns, what was left out and why, and how the table is written."""
    parts = [f"{' columns' if len(names) > 1 else ' column'} ({_listed(names)})"]
    parts += [f"factors: {_listed(without)}"] * bool(without)
    parts += [f"left out: {_listed([f'{name} ({why})' for name, why in left_out.items()])}"] * bool(left_out)
    return "; ".join(parts + [written] * bool(written))


def _listed(names: Sequence[str]) -> str:
    """Names in one line, at most 20 of them.

    >>> _listed(["a", "b"])
    'a, b'
    """
    shown = [name if name.isprintable() else repr(name) for name in names[:20]]
    return ", ".join(shown) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


@file_reader("a Parquet table")
def open_parquet(path: Path, columns: Sequence[str] | None = None, *, without: Sequence[str] = ()) -> StoredArray:
    """The given columns, or all numeric columns except some, as one array of float64."""
    schema = pq.ParquetFile(path).schema_arrow
    repeated = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if repeated is not None:
        raise InputError(f"{path.name} has {schema.names.count(repeated)} columns {repeated!r}; rename them.")
    labels = (schema.pandas_metadata or {}).get("index_columns", [])  # of rows, as pandas writes its index
    numeric = [
        column.name
        for column in schema
        if (_is_number(column.type) or pa.types.is_boolean(column.type)) and column.name not in labels
    ]
    others = [name for name in schema.names if name not in numeric]
    missing = [name for name in (*(columns or ()), *without) if name not in numeric]
    if missing:
        raise InputError(f"{path.name} has no numeric column {missing[0]!r}; it has {', '.join(numeric) or 'none'}.")
    chosen = list(columns or [name for name in numeric if name not in without])
    if not chosen:
        raise InputError(f"{path.name} has no numeric columns; it has {_listed(others) or 'no columns'}.")

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=batch_size, columns=chosen):
            found = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
            yield np.column_stack(found).astype(np.float64)

    kinds = {name: "row labels" if name in labels else str(schema.field(name).type) for name in others}
    about = _about(chosen, kinds, without)
    shape = (pq.ParquetFile(path).metadata.num_rows, len(chosen))
    float64, left_out = np.dtype(np.float64), tuple(name for name in others if name not in labels)
    return StoredArray(
        path, "table", shape, float64, read_batches, about=about, columns=tuple(chosen), left_out=left_out
    )


@file_reader("a table")
def open_csv(path: Path, columns: Sequence[str] | None = None, *, without: Sequence[str] = ()) -> StoredArray:
    """The given columns, or all numeric columns except some, as one array of float64; empty fields are NaN.

    Args:
        path: the file.
        columns: names of columns; strings in them become the number of their category, in alphabetical order.
        without: columns that are left out.
    """
    dialect = read_dialect(path)
    positions = _positions(path, dialect, columns, without)
    names = [dialect.names[k] for k in positions]
    left_out = {
        dialect.names[k]: "no values" if dialect.kinds[k] == "empty" else dialect.kinds[k]
        for k in dialect.columns("empty", "text", "row labels")
    }
    about = _about(names, left_out, without, written=str(dialect))
    categorical = any(dialect.kinds[k] not in ("number", "boolean") for k in positions)
    read = _reader(path, dialect, positions, as_text=categorical)

    def stored(rows: int, read_batches: Callable[[int], Iterator[np.ndarray]]) -> StoredArray:
        shape, columns = (rows, len(positions)), tuple(names)
        float64 = np.dtype(np.float64)
        others = tuple(name for name, why in left_out.items() if why != "row labels")  # no loss of information
        return StoredArray(path, "table", shape, float64, read_batches, about=about, columns=columns, left_out=others)

    if categorical:  # categories are numbered over the whole file
        table = read().read_all()
        values = np.column_stack([_numbers(column) for column in table.columns])
        return stored(len(values), lambda size: _in_parts(values, size))

    def read_batches(batch_size: int) -> Iterator[np.ndarray]:
        for batch in read():
            yield from _in_parts(np.column_stack([_numbers(column) for column in batch.columns]), batch_size)

    rows, others, last = 0, dialect.columns("empty", "text"), [""]
    for batch in _reader(path, dialect, [*positions, *others], as_text=False)():
        for k, column in zip(others, batch.columns[len(positions) :], strict=True):
            _check_left_out(path, dialect, k, column)
        rows += batch.num_rows
        last = [str(column[-1].as_py() or "").strip() for column in batch.columns[len(positions) :] if len(column)]
    totals = ("total", "totals", "grand total", "sum", "mean", "average", "std")
    total = next((cell for cell in last if cell.rstrip(":").lower() in totals), None)
    if total is not None:
        raise InputError(f"{path.name} ends with a line of {total!r}, which is not a sample; remove that line.")
    return stored(rows, read_batches)


def _check_left_out(path: Path, dialect: Dialect, k: int, column: pa.Array) -> None:
    """A column that is left out has no values that should have been read, and no rows that a quotation mark holds."""
    if dialect.kinds[k] == "empty" and column.null_count < len(column):  # kinds are those of the first block
        raise InputError(f"{path.name}: {dialect.names[k]} has no values at first, but later; {converted(path)}")
    for cell in column.filter(pa_compute.match_substring_regex(column, "[\r\n]")).to_pylist():
        row = dialect.swallowed_row(k, cell)
        if row is not None:
            raise InputError(
                f"{path.name} has {_listed([row])} inside a text that begins with a quotation mark, so rows would be "
                f"lost; {converted(path)}"
            )


def _positions(path: Path, dialect: Dialect, columns: Sequence[str] | None, without: Sequence[str]) -> list[int]:
    """Positions of the columns that are read; a name that occurs twice cannot be chosen."""
    for name in (*(columns or ()), *without):
        if name not in dialect.names:
            raise InputError(f"{path.name} has no column {name!r}; it has {_listed(dialect.names)}.")
        if dialect.names.count(name) > 1:
            raise InputError(f"{path.name} has {dialect.names.count(name)} columns {name!r}; rename them.")
    if columns:
        return [dialect.names.index(name) for name in columns]
    numeric = [k for k in dialect.columns("number", "boolean") if dialect.names[k] not in without]
    if not numeric:
        raise InputError(f"{path.name} has no numeric columns ({dialect}); it has {_listed(dialect.names)}.")
    return numeric


def _in_parts(values: np.ndarray, size: int) -> Iterator[np.ndarray]:
    return (values[start : start + size] for start in range(0, len(values), size))


def _reader(
    path: Path, dialect: Dialect, positions: Sequence[int], *, as_text: bool
) -> Callable[[], pa_csv.CSVStreamingReader]:
    """Opens the columns at these positions. A cell that is not of its column's kind is an error, never missing."""
    types = {"number": pa.float64(), "boolean": pa.bool_()}
    names = [str(k) for k in range(len(dialect.names))]  # columns may share a name
    convert = pa_csv.ConvertOptions(
        include_columns=[str(k) for k in positions],
        column_types={str(k): types.get(dialect.kinds[k], pa.string()) for k in positions},
        null_values=[space + token for token in MISSING for space in ("", " ")],
        strings_can_be_null=not as_text,
        decimal_point=dialect.decimal,
        true_values=["true", "True", "TRUE", " true", " True", " TRUE"],
        false_values=["false", "False", "FALSE", " false", " False", " FALSE"],
    )
    blank_lines_are_rows = dialect.delimiter == ONE_COLUMN and path.stat().st_size > FIRST_BYTES
    options = {
        "read_options": pa_csv.ReadOptions(
            block_size=BLOCK_BYTES, column_names=names, skip_rows=int(dialect.has_names), encoding=dialect.encoding
        ),
        "parse_options": pa_csv.ParseOptions(
            delimiter=dialect.delimiter, newlines_in_values=True, ignore_empty_lines=not blank_lines_are_rows
        ),
        "convert_options": convert,
    }
    return lambda: pa_csv.open_csv(path, **options)


def _numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Numbers as they are, other values as the number of their category."""
    if _is_number(column.type) or pa.types.is_boolean(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), np.float64)
    text = np.asarray([str(value) for value in column.to_pylist()])
    return np.unique(text, return_inverse=True)[1].astype(np.float64)
