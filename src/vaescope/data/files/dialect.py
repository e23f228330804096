"""How a text table is written: encoding, delimiter, decimal mark, line of names, and the kind of every column.

Every combination of delimiter and decimal mark is tried on the first block. A table is read only if exactly one of them
explains all of it: each column is numbers, text without numbers, or empty. Everything else (a `?` among numbers,
`1,000`, `10%`, one line with names and numbers, rows of different lengths) is refused with its position and a line that
converts the file, because a guess would train a model on other data.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vaescope.core.errors import InputError

BLOCK_BYTES = 2**20
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars", " ": "spaces"}
ONE_COLUMN = "\x1f"  # a delimiter that text does not contain
THOUSANDS = "may be thousands or a fraction"
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "#NA", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "<NA>")
BOOLEANS = ("true", "false", "True", "False", "TRUE", "FALSE")
_NUMBER = {
    mark: re.compile(
        rf"\s*[+-]?(\d+({re.escape(mark)}\d*)?|{re.escape(mark)}\d+)([eE][+-]?\d+)?\s*|\s*[+-]?inf(inity)?\s*",
        re.I | re.A,
    )
    for mark in ".,"
}
_DIGITS_AND_MARKS = re.compile(r"[\s\d.,;|%$€£'_eE+-]*\d[\s\d.,;|%$€£'_eE+-]*")  # a number written in another way
_OTHER_NOTATION = re.compile(r"\s*[+-]?0[xX][0-9a-fA-F]+\s*|\s*[+-]?[\d.,]+[+-][\d.,]*[ij]\s*")  # hexadecimal, complex
_DATE_OR_RANGE = re.compile(r"\s*\d+-\d+(-\d+)?\s*")
_DATE_OR_VERSION = re.compile(r"\s*\d+(\.\d+){2,}\.?\s*")  # with groups of three digits it may be a number
_YEAR = re.compile(r"\s*(19|20)\d\d\s*")
_THOUSANDS = re.compile(r"\s*[+-]?[1-9]\d{0,2}([.,])\d{3}(\1\d{3})*\s*")


@dataclass(frozen=True)
class Dialect:
    """How a text table is written, and what its columns hold, by position."""

    encoding: str
    delimiter: str
    decimal: str
    names: tuple[str, ...]
    """`column 1` and so on if the table has no line of names."""
    kinds: tuple[str, ...]
    """Of each column: `number`, `boolean`, `text` or `empty`."""
    has_names: bool

    def columns(self, *kinds: str) -> list[int]:
        return [k for k, kind in enumerate(self.kinds) if kind in kinds]

    def __str__(self) -> str:
        columns = "one column" if self.delimiter == ONE_COLUMN else f"separated by {DELIMITERS[self.delimiter]}"
        return columns + (", decimal comma" if self.decimal == "," else "")


class _Refused(Exception):
    """Why a table cannot be read in one way."""


def read_dialect(path: Path) -> Dialect:
    """The one dialect that explains the first block of a table.

    Args:
        path: the file.
    """
    encoding, text = _first_block(path)
    found: list[Dialect] = []
    reasons: list[tuple[str, str]] = []
    for delimiter in (*DELIMITERS, ONE_COLUMN):
        for decimal in ".,":
            try:
                found.append(_explain(text, encoding, delimiter, decimal))
                break  # without decimal marks both explain it
            except _Refused as refused:
                reasons.append((delimiter, str(refused)))
    thousands = [reason for _, reason in reasons if reason.endswith(THOUSANDS)]
    if len(found) == 1 and not thousands:
        return found[0]
    if len(found) > 1:
        raise InputError(f"{path.name} can be read in several ways: {' or '.join(map(str, found))}; {converted(path)}")
    split = [reason for delimiter, reason in reasons if delimiter != ONE_COLUMN and reason]
    cells = [reason for reason in split if not reason.startswith("line ")]
    names = [reason for reason in split if reason.startswith("line 1 may be")]
    reason = next(iter(thousands or names or cells or split or [reason for _, reason in reasons if reason]))
    raise InputError(f"{path.name} cannot be read as a table in one way: {reason}; {converted(path)}")


def converted(path: Path) -> str:
    """The line that converts a table which is not read as it is."""
    options = "sep=…, decimal=…, thousands=…, na_values=…, header=…"
    return f"write pandas.read_csv({str(path)!r}, {options}).to_csv('clean.csv', index=False) and use clean.csv."


def _first_block(path: Path) -> tuple[str, str]:
    """The encoding and the complete lines of the first block."""
    with path.open("rb") as file:
        data, more = file.read(BLOCK_BYTES), bool(file.read(1))
    encoding = "utf16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf8"
    try:
        text = data.decode("utf-16" if encoding == "utf16" else "utf-8-sig", "ignore" if more else "strict")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path.name} is not UTF-8 (byte {data[error.start]:#x} at position {error.start}); save it as UTF-8."
        ) from None
    if "\0" in text:
        raise InputError(f"{path.name} contains null characters, so it is not a table of text.")
    if more:
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        while end and text.count('"', 0, end) % 2:  # a line break inside quotes does not end a row
            end = max(text.rfind("\n", 0, end - 1), text.rfind("\r", 0, end - 1)) + 1
        text = text[:end] or text
    return encoding, text


def _explain(text: str, encoding: str, delimiter: str, decimal: str) -> Dialect:
    """The table with this delimiter and decimal mark, if every column then has one kind."""
    lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    numbered = [(number, row) for number, row in enumerate(lines, start=1) if row]
    if not numbered:
        raise _Refused("it has no lines")
    width = len(numbered[0][1])
    if delimiter != ONE_COLUMN and width == 1:
        raise _Refused("")
    for number, row in numbered:
        if len(row) != width:
            raise _Refused(f"line {number} has {len(row)} fields, line {numbered[0][0]} has {width}")
    if delimiter == ONE_COLUMN and [] in lines[: numbered[-1][0]]:
        raise _Refused(f"line {lines.index([]) + 1} is blank")
    if delimiter == " " and any(all(row[k].endswith((",", ";")) for _, row in numbered) for k in range(width)):
        raise _Refused("")  # spaces after another delimiter
    (_, first), *body = numbered
    has_names = _has_names(first, [row for _, row in body], decimal)
    rows = body if has_names else numbered
    kinds = tuple(_kind(k, rows, decimal) for k in range(width))
    if delimiter == ONE_COLUMN and (
        kinds[0] == "text" or (has_names and any(mark in first[0] for mark in DELIMITERS if mark != " "))
    ):
        raise _Refused("one column of text")
    if (delimiter, decimal) != (",", "."):
        fractions = [row[k] for _, row in rows for k in range(width) if kinds[k] == "number" and decimal in row[k]]
        if fractions and all(_THOUSANDS.fullmatch(cell) for cell in fractions):
            raise _Refused(f"{fractions[0].strip()!r} {THOUSANDS}")
    generated = [f"column {k + 1}" for k in range(width)]
    names = [name.strip() or other for name, other in zip(first, generated, strict=True)] if has_names else generated
    return Dialect(encoding, delimiter, decimal, tuple(names), kinds, has_names)


def _kind(k: int, rows: Sequence[tuple[int, list[str]]], decimal: str) -> str:
    values = [(number, row[k]) for number, row in rows if row[k].strip() not in MISSING]
    if not values:
        return "empty"
    if all(value.strip() in BOOLEANS for _, value in values):
        return "boolean"
    others = [(number, value) for number, value in values if not _NUMBER[decimal].fullmatch(value)]
    if not others:
        return "number"
    number, value = others[0]
    if len(others) < len(values):
        raise _Refused(f"column {k + 1} has numbers, but {value!r} in line {number}")
    for number, value in others:
        dotted = _DATE_OR_VERSION.fullmatch(value) and not _THOUSANDS.fullmatch(value)
        digits = _DIGITS_AND_MARKS.fullmatch(value) and not dotted and not _DATE_OR_RANGE.fullmatch(value)
        if digits or _OTHER_NOTATION.fullmatch(value):
            raise _Refused(f"{value!r} in line {number}, column {k + 1} is a number written in another way")
    if not any(re.search(r"\w", value) for _, value in others):
        raise _Refused(f"column {k + 1} has {value!r} and nothing else")
    return "text"


def _has_names(first: Sequence[str], body: Sequence[Sequence[str]], decimal: str) -> bool:
    """Whether the first line has names; refused if that cannot be seen."""
    number = _NUMBER[decimal].fullmatch
    filled = [(k, cell) for k, cell in enumerate(first) if cell.strip() not in (*MISSING, *BOOLEANS)]
    numbers = [cell for _, cell in filled if number(cell)]
    others = [(k, cell) for k, cell in filled if not number(cell)]
    above_numbers = [cell for k, cell in others if any(number(row[k]) for row in body)]
    if not numbers:
        for cell in above_numbers or [cell for _, cell in others]:
            if not re.search(r"[^\W\d]", cell) or _DIGITS_AND_MARKS.fullmatch(cell) or cell.startswith("#"):
                raise _Refused(f"line 1 has {cell!r}, which is neither a name nor a number")
        if others and not above_numbers and any(number(cell) for row in body for cell in row):
            raise _Refused("line 1 may be names or data")
        return bool(others)
    numbered = first if first[0].strip() else first[1:]
    if list(numbered) == [str(k) for k in range(len(numbered))] and body:  # as pandas names columns without names
        has_index = len(numbered) < len(first) and [row[0] for row in body] == [str(k) for k in range(len(body))]
        cells = [[row[k] for row in body] for k in range(len(first) - len(numbered), len(first))]
        if has_index or (len(numbered) > 1 and all(_all_fractions(column, decimal) for column in cells)):
            return True
        raise _Refused("line 1 may be column numbers or data")
    integers = not any(decimal in cell for cell in numbers)
    if above_numbers:
        raise _Refused(f"line 1 has {above_numbers[0]!r} beside numbers")
    if others and integers and all(row[k] != cell for k, cell in others for row in body):
        raise _Refused("line 1 may be names or data")
    if all(_YEAR.fullmatch(cell) for cell in numbers) and any(
        number(c) and not _YEAR.fullmatch(c) for row in body for c in row
    ):
        raise _Refused("line 1 may be years as names")
    if (
        integers
        and body
        and any(_all_fractions([row[k] for row in body], decimal) for k, cell in filled if number(cell))
    ):
        raise _Refused("line 1 has integers above fractions, which may be names")
    return False


def _all_fractions(cells: Sequence[str], decimal: str) -> bool:
    filled = [cell for cell in cells if cell.strip() not in MISSING]
    return bool(filled) and all(decimal in cell or "e-" in cell.lower() for cell in filled)
