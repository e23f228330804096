"""How a text table is written: encoding, delimiter, decimal mark, line of names, and the kind of every column.

Every combination of delimiter and decimal mark is tried on the first block. A table is read only if exactly one of them
explains all of it: each column is numbers, text without numbers, or empty. Everything else (a `?` among numbers,
`1,000`, `10%`, one line with names and numbers, rows of different lengths) is refused with its position and a line that
converts the file, because a guess would train a model on other data.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vaescope.core.errors import InputError

BLOCK_BYTES = 2**20
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars", " ": "spaces"}
ONE_COLUMN = "\x1f"  # a delimiter that text does not contain
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "#NA", "NaN", "nan", "-NaN", "-nan", "NULL", "null", "None", "<NA>")
BOOLEANS = ("true", "false", "True", "False", "TRUE", "FALSE")
_NUMBER = {
    mark: re.compile(
        rf"\s*[+-]?(\d+({re.escape(mark)}\d*)?|{re.escape(mark)}\d+)([eE][+-]?\d+)?\s*|\s*[+-]?inf(inity)?\s*",
        re.I | re.A,
    )
    for mark in ".,"
}
_DIGITS_AND_MARKS = re.compile(  # a number written in another way, such as 1'000, $5, (1.5) or −2
    r"""\s*(?P<bracket>\()?(?=\D*\d)[\s\d.,:;|%$€£'"_eE+−–-]+(?(bracket)\))\s*"""
)
_OTHER_NOTATION = re.compile(  # hexadecimal, complex, exponents of Fortran
    r"\s*[+-]?0[xX][0-9a-fA-F]+\s*|\s*[+-]?[\d.,]+[+-][\d.,]*[ij]\s*|\s*[+-]?\d*[.,]\d*[dD][+-]?\d+\s*"
)
_NO_LETTERS = re.compile(r"(?=\D*\d)(?:[\W\d_]|[eE](?=[+-]?\d))+")  # with other marks: 1±0.2, <5, 45°30', 3/4
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
    """Of each column: `number`, `boolean`, `text`, `empty` or `row labels`."""
    has_names: bool

    def columns(self, *kinds: str) -> list[int]:
        return [k for k, kind in enumerate(self.kinds) if kind in kinds]

    def swallowed_row(self, k: int, cell: str) -> str | None:
        """The first line of a cell of column k that is the end of a row, or a row: a quotation mark was not closed."""
        for number, line in enumerate(cell.splitlines()):
            row = [""] * (k if number == 0 else 0) + next(csv.reader([line], delimiter=self.delimiter), [])
            cells = [row[k].strip() for k in self.columns("number")] if len(row) == len(self.names) else []
            numbers = [cell for cell in cells if _NUMBER[self.decimal].fullmatch(cell)]
            if numbers and all(cell in (*numbers, *MISSING) for cell in cells):
                return line
        return None

    def __str__(self) -> str:
        columns = "one column" if self.delimiter == ONE_COLUMN else f"separated by {DELIMITERS[self.delimiter]}"
        return columns + (", decimal comma" if self.decimal == "," else "")


class _Refused(Exception):
    """Why a table cannot be read in one way."""


class _Ambiguous(_Refused):
    """What means something else in another reading, so that no reading can be chosen."""


def read_dialect(path: Path) -> Dialect:
    """The one dialect that explains the first block of a table.

    Args:
        path: the file.
    """
    encoding, text = _first_block(path)
    found: list[Dialect] = []
    reasons: list[tuple[str, str]] = []
    ambiguous: list[str] = []
    for delimiter in (*DELIMITERS, ONE_COLUMN):
        for decimal in ".,":
            try:
                found.append(_explain(text, encoding, delimiter, decimal))
                break  # without decimal marks both explain it
            except _Refused as refused:
                reasons.append((delimiter, str(refused)))
                ambiguous += [str(refused)] * isinstance(refused, _Ambiguous)
    if len(found) == 1 and not ambiguous:
        return found[0]
    if len(found) > 1:
        raise InputError(f"{path.name} can be read in several ways: {' or '.join(map(str, found))}; {converted(path)}")
    split = [reason for delimiter, reason in reasons if delimiter != ONE_COLUMN and reason]
    cells = [reason for reason in split if not reason.startswith("line ")]
    names = [reason for _, reason in reasons if " may be " in reason or " blank before " in reason]
    reason = next(iter(ambiguous or names or cells or split or [reason for _, reason in reasons if reason]))
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
    if delimiter not in text and delimiter != ONE_COLUMN:
        raise _Refused("")
    lines = _lines(text, delimiter)
    numbered = [(number, row) for number, row in enumerate(lines, start=1) if row]
    if not numbered:
        raise _Refused("it has no lines")
    width, blank_before_quote = len(numbered[0][1]), re.search(r'[ \t]"', text)
    if delimiter != ONE_COLUMN and width == 1:
        raise _Refused("")
    for number, row in numbered:
        if len(row) != width:
            raise _Refused(f"line {number} has {len(row)} fields, line {numbered[0][0]} has {width}")
        if blank_before_quote and any(cell[:1].isspace() and cell.lstrip().startswith('"') for cell in row):
            raise _Refused(f"line {number} has a blank before a quotation mark")
    if delimiter == ONE_COLUMN and [] in lines[: numbered[-1][0]]:
        raise _Refused(f"line {lines.index([]) + 1} is blank")
    ends = (",", ";", ":", "|", "\t")
    if delimiter == " " and any(all(row[k].endswith(ends) for _, row in numbered) for k in range(width)):
        raise _Refused("")  # spaces after another delimiter
    (_, first), *body = numbered
    has_names = _has_names(first, [row for _, row in body], decimal)
    rows = body if has_names else numbered
    if not has_names and not lines[0]:
        raise _Refused("line 1 is blank, so it may be the names")
    if not has_names and _only_first_quoted(text, width):
        raise _Refused("line 1 is in quotes and the others are not, so it may be names")
    kinds = [_kind(k, rows, decimal) for k in range(width)]
    for k in (k for k in range(width) if kinds[k] == "text"):
        _refuse_numbers_inside(k, rows, delimiter)
    filled = [k for k in range(width) if kinds[k] != "empty"]
    if delimiter == " " and len({later - earlier for earlier, later in itertools.pairwise(filled)}) > 1:
        raise _Refused("columns are separated by different numbers of spaces")
    for k in range(width if has_names else 0):
        if not re.fullmatch(r"|Unnamed: \d+(\.\d+)*|__index_level_\d+__", first[k].strip()) or k == width - 1:
            break
        kinds[k] = _labels_or_data(k, kinds[k], rows)
    labels = [row[0].strip() for _, row in rows]  # R writes row names as a first column that the line of names lacks
    labelled = (kinds[0] == "text" or all(label.isdigit() for label in labels)) and len(set(labels)) == len(labels)
    counts = [[str(start + k) for k in range(len(rows))] for start in (0, 1)]
    if not has_names and width > 1 < len(rows) and labels in counts:
        raise _Refused("column 1 counts the lines and has no name, so it may be row labels or data")
    cut = next((name for name in first if has_names and name.count("(") != name.count(")")), None)
    if cut is not None:
        raise _Refused(
            f"line 1 has {cut.strip()!r} with a bracket that is not closed, so a name has the delimiter in it"
        )
    if has_names and labelled and not first[-1].strip() and kinds[-1] != "empty":
        raise _Refused("the last column has no name and the first may be row labels, so names may be off by one")
    if delimiter == ONE_COLUMN:
        if kinds[0] == "text" or (has_names and any(mark in first[0] for mark in ',;\t|"')):
            raise _Refused("one column of text")
        before = [row[0].split(",")[0].strip() for _, row in rows]
        if decimal == "," and len(set(before)) == len(before) > 1 and all(label.isdigit() for label in before):
            raise _Refused(f"{rows[0][1][0]!r} may be a row label and a number, or a fraction")
        lone = next((number for number, row in rows if decimal == "," not in row[0]), None)
        if lone is not None and any("," in row[0] for _, row in rows):
            raise _Refused(f"line {lone} has no comma, so those of other lines may be delimiters or decimal marks")
    if (delimiter, width, has_names) == (",", 2, False) and all(_NUMBER[","].fullmatch(",".join(r)) for _, r in rows):
        raise _Ambiguous(f"{','.join(rows[0][1])!r} may be two numbers or a fraction")
    if delimiter == " " and all(re.fullmatch(r"[+-]?\d{1,3}( \d{3})+([.,]\d*)?", " ".join(row)) for _, row in rows):
        raise _Ambiguous(f"{' '.join(rows[0][1])!r} may be thousands or several numbers")
    if (delimiter, decimal) != (",", "."):
        fractions = [row[k] for _, row in rows for k in range(width) if kinds[k] == "number" and decimal in row[k]]
        if fractions and all(_THOUSANDS.fullmatch(cell) for cell in fractions):
            raise _Ambiguous(f"{fractions[0].strip()!r} may be thousands or a fraction")
    generated = [f"column {k + 1}" for k in range(width)]
    names = [name.strip() or other for name, other in zip(first, generated, strict=True)] if has_names else generated
    return Dialect(encoding, delimiter, decimal, tuple(names), tuple(kinds), has_names)


def _lines(text: str, delimiter: str) -> list[list[str]]:
    """The fields of every line; refused where a quotation does not end with its field."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    lines: list[list[str]] = []
    start = 1
    try:
        for line in reader:
            lines.append(line)
            start = reader.line_num + 1
    except csv.Error as error:
        inside = "expected after" in str(error)
        what = "text after a quotation mark" if inside else "a quotation mark that is not closed"
        raise _Refused(f"line {start} has {what}") from None
    return lines


def _refuse_numbers_inside(k: int, rows: Sequence[tuple[int, list[str]]], delimiter: str) -> None:
    """Refuse a column of text with numbers between other delimiters, which may be several columns."""
    cells = [re.sub(r"\d{1,2}:\d\d(:\d\d)?", "", row[k]) for _, row in rows if row[k].strip() not in MISSING]
    for other in {*DELIMITERS, ":"} - {delimiter, " "}:
        parts = [cell.split(other) for cell in cells]
        if len({len(split) for split in parts}) == 1 < len(parts[0]):
            for column in zip(*parts, strict=True):
                if all(_NO_LETTERS.fullmatch(part) and not _is_date(part) for part in column):
                    raise _Refused(f"column {k + 1} has numbers between {other!r} in every line, as in {cells[0]!r}")


def _only_first_quoted(text: str, width: int) -> bool:
    """Whether every field of the first line is in quotes, and not every field of the second."""
    first, second, *_ = [*text.lstrip().splitlines()[:2], "", ""]
    return bool(second) and first.count('"') == 2 * width > second.count('"')


def _labels_or_data(k: int, kind: str, rows: Sequence[tuple[int, list[str]]]) -> str:
    """The kind of a column at the start that has no name, as data frames write the labels of their rows."""
    cells = [row[k].strip() for _, row in rows]
    if kind != "number" or not all(cell.isdigit() for cell in cells):
        return kind
    if len(set(cells)) < len(cells):
        raise _Refused(f"column {k + 1} has integers and no name, so it may be row labels or data")
    return "row labels"


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
    only_marks = all(_NO_LETTERS.fullmatch(value) for _, value in others)
    for number, value in others:
        marks = only_marks or _DIGITS_AND_MARKS.fullmatch(value)
        if (marks and not _is_date(value)) or _OTHER_NOTATION.fullmatch(value):
            raise _Refused(f"{value!r} in line {number}, column {k + 1} is a number written in another way")
    if not any(re.search(r"\w", value) for _, value in others):
        raise _Refused(f"column {k + 1} has {value!r} and nothing else")
    if all(re.match(r"\s*[+-]?[\d.,]+([eE][+-]?\d+)?\s*(#|//)", value) for _, value in others):
        raise _Refused(f"{value!r} in line {number}, column {k + 1} is a number and a comment")
    units = {_unit(value.strip()) for _, value in others}
    if len(units) == 1 and None not in units and (" " in value.strip() or len({value for _, value in others}) > 1):
        raise _Refused(f"{value!r} in line {number}, column {k + 1} is a number with a unit")
    return "text"


def _unit(cell: str) -> str | None:
    """The unit or currency beside the number that a cell is; words before integers may be names, as in sample 1.

    >>> [_unit(cell) for cell in ("1.5 kg", ".5e+01m", "CHF 82", "about 4,5", "sample 1", "A/5", "10am to 3")]
    ['kg', 'm', 'CHF', 'about', None, None, None]
    """
    number = r"[+-]?[.,]?\d[\d.,]*([eE][+-]?\d+)?"
    behind = re.fullmatch(rf"{number}\s*(?P<unit>[^\d.,\s]\D*)", cell)
    before = re.fullmatch(rf"(?P<unit>[A-Z]{{3}})\s*{number}|(?P<word>\D+)\s[+-]?\d*[.,]\d+", cell)
    found = behind or before
    return None if found is None else next(text for text in found.groupdict().values() if text)


def _is_date(value: str) -> bool:
    """Whether a cell without letters is a date, a time, a range or a version.

    >>> [_is_date(cell) for cell in ("12/31/2020", "2020-01-31 10:00:00", "18-24", "1.2.3", "3/4", "1.234.567")]
    [True, True, True, True, False, False]
    """
    cell = value.strip()
    patterns = (
        r"\d+-\d+(-\d+)?",
        r"\d{1,4}/\d{1,2}/\d{1,4}",
        r"[\d./-]*\s*\d{1,2}:\d\d(:\d\d([.,]\d*)?)?\s*([+-]\d\d:?\d\d)?",
        r"\d+(\.\d+){2,}\.?",
    )
    return not _THOUSANDS.fullmatch(value) and any(re.fullmatch(pattern, cell) for pattern in patterns)


def _has_names(first: Sequence[str], body: Sequence[Sequence[str]], decimal: str) -> bool:
    """Whether the first line has names; refused if that cannot be seen."""
    number = _NUMBER[decimal].fullmatch
    filled = [(k, cell) for k, cell in enumerate(first) if cell.strip() not in (*MISSING, *BOOLEANS)]
    numbers = [cell for _, cell in filled if number(cell)]
    others = [(k, cell) for k, cell in filled if not number(cell)]
    above_numbers = [cell for k, cell in others if any(number(row[k]) for row in body)]
    if not numbers:
        for cell in above_numbers or [cell for _, cell in others]:
            if not re.search(r"[^\W\d]", cell) or _DIGITS_AND_MARKS.fullmatch(cell) or re.match(r"[\s\d.,+-]*#", cell):
                raise _Refused(f"line 1 has {cell!r}, which is neither a name nor a number")
        values = [cell for row in body for cell in row if number(cell)] + [c for c in first if c.strip() in BOOLEANS]
        if others and not above_numbers and values:
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
    ordered = not integers and _rises_evenly(first, decimal)
    if ordered and not any(_rises_evenly(row, decimal) for row in body[:1000]):
        raise _Refused("line 1 has numbers in order, which may be names")
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
    below = [[row[k] for row in body if number(row[k])] for k, _ in filled]
    if not others and all(below):
        _refuse_possible_names(numbers, below, decimal)
    return False


def _refuse_possible_names(first: Sequence[str], columns: Sequence[Sequence[str]], decimal: str) -> None:
    """Refuse a first line of numbers that are written in another way than the numbers below them."""
    rounder = True
    for cell, column in zip(first, columns, strict=True):
        if decimal in cell and not any(decimal in other or "e" in other.lower() for other in column):
            raise _Refused(f"line 1 has {cell!r} above integers, so it may be names")
        rounder &= _decimals(cell, decimal) + 2 <= min(_decimals(other, decimal) for other in column)
    if rounder:
        raise _Refused("line 1 has rounder numbers than every other line, so it may be names")


def _decimals(cell: str, decimal: str) -> int:
    """How many decimals a number is written with.

    >>> _decimals("-0.50", "."), _decimals("1,5e-07 ", ",")
    (2, 1)
    """
    return len(re.sub(r"[eE].*", "", cell.strip()).partition(decimal)[2])


def _rises_evenly(cells: Sequence[str], decimal: str) -> bool:
    """Whether cells are numbers in order, as of wavelengths: seven or more, or four or more with equal distances.

    >>> _rises_evenly(["0.5", "1.0", "1.5", "2.0"], "."), _rises_evenly(["0.5", "1.0", "3.5", "9.0"], ".")
    (True, False)
    """
    cells = [cell for cell in cells if cell.strip()]
    if len(cells) < 4 or not all(_NUMBER[decimal].fullmatch(cell) for cell in cells):
        return False
    values = [float(cell.replace(decimal, ".")) for cell in cells]
    steps = [later - earlier for earlier, later in itertools.pairwise(values)]
    ordered = all(step > 0 for step in steps) or all(step < 0 for step in steps)
    even = max(steps) - min(steps) <= 1e-9 * (abs(values[0]) + abs(values[-1]))
    return ordered and (even or len(cells) >= 7)


def _all_fractions(cells: Sequence[str], decimal: str) -> bool:
    filled = [cell for cell in cells if cell.strip() not in MISSING]
    return bool(filled) and all(decimal in cell or "e-" in cell.lower() for cell in filled)
