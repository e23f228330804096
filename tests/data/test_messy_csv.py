"""Text tables as people have them: what is read equals the content, or the table is refused."""

import csv
import io
from dataclasses import dataclass

import numpy as np
import pytest

from vaescope.core.errors import InputError
from vaescope.data.files import open_array

TABLES = 500
WORDS = ["red", "light blue", "Zürich", "n. a. 5", "A/5", "2020-01-01", "18-24", "x=1", "it's", 'a "b"', "-", "?"]


@dataclass(frozen=True)
class Messy:
    """A text table and the numbers in it."""

    data: bytes
    numbers: np.ndarray
    clean: bool
    """Whether it is written as a spreadsheet or a data frame would write it."""
    about: str


def messy_table(seed: int) -> Messy:
    """A random table, in one of the ways in which tables are written."""
    g = np.random.default_rng(seed)
    rows, columns = int(g.integers(1, 12)), int(g.integers(1, 6))
    numbers, cells, kinds = _content(g, rows, columns)
    decimal = str(g.choice([".", ","], p=[0.7, 0.3]))
    delimiter = str(g.choice([",", ";", "\t", "|", " "], p=[0.4, 0.25, 0.15, 0.1, 0.1]))
    cells = [
        [cell.replace(".", decimal) if kind == "number" else cell for cell, kind in zip(row, kinds, strict=True)]
        for row in cells
    ]
    faults = []
    names = [["a", "b", "c", "width", "höhe", "x 1"][k] for k in range(columns)]
    header = g.random() < 0.6
    if header and g.random() < 0.15:
        names[-1] = names[0]
        faults.append("same name twice")
    if header and g.random() < 0.1:
        names = [str(2019 + k) for k in range(columns)]
        faults.append("years as names")
    for fault, change in FAULTS.items():
        if g.random() < 0.06 and not (fault == "long row" and "short row" in faults):
            cells, faults = change(g, cells), [*faults, fault]
    quoting = csv.QUOTE_ALL if g.random() < 0.15 else csv.QUOTE_MINIMAL
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator=str(g.choice(["\n", "\r\n"])))
    writer.writerows(([names] if header else []) + cells)
    text = out.getvalue()
    if g.random() < 0.06:
        text, faults = "# measured in May\n" + text, [*faults, "comment"]
    encoding = str(g.choice(["utf-8", "utf-8-sig", "utf-16", "latin-1"], p=[0.75, 0.15, 0.05, 0.05]))
    about = f"{faults} {delimiter!r} {decimal!r} header={header} {encoding} {kinds}"
    return Messy(text.encode(encoding), numbers, not faults and encoding == "utf-8", about)


def _marked(cell: str, kind: str, decimal: str) -> str:
    return cell.replace(".", decimal) if kind == "number" else cell


def _content(g: np.random.Generator, rows: int, columns: int) -> tuple[np.ndarray, list[list[str]], list[str]]:
    kinds, listed, numbers = [], [], []
    for k in range(columns):
        if k and g.random() < 0.25:
            kinds.append("text")
            listed.append([str(word) for word in g.choice(WORDS, size=rows)])
            continue
        values = g.normal(size=rows) * 10.0 ** g.integers(-2, 5)
        digits = int(g.integers(0, 7))
        written = [f"{value:.{digits}f}" for value in values]
        if g.random() < 0.1:
            written = [f"{value:.4e}" for value in values]
        kinds.append("number")
        gaps = g.random(rows) < (0.2 if g.random() < 0.2 and columns > 1 and rows > 2 else 0.0)
        if gaps.all():
            gaps[0] = False
        token = str(g.choice(["", "NA", "nan"]))
        numbers.append([np.nan if gap else float(cell) for cell, gap in zip(written, gaps, strict=True)])
        listed.append([token if gap else cell for cell, gap in zip(written, gaps, strict=True)])
    return np.array(numbers).T, [list(row) for row in zip(*listed, strict=True)], kinds


def _replace_one(g, cells, make):
    row, column = int(g.integers(len(cells))), 0
    changed = [list(r) for r in cells]
    changed[row][column] = make(changed[row][column])
    return changed


FAULTS = {
    "question mark": lambda g, cells: _replace_one(g, cells, lambda cell: "?"),
    "dash": lambda g, cells: _replace_one(g, cells, lambda cell: "-"),
    "percent": lambda g, cells: _replace_one(g, cells, lambda cell: cell + "%"),
    "all percent": lambda g, cells: [[f"{row[0]}%", *row[1:]] for row in cells],
    "currency": lambda g, cells: _replace_one(g, cells, lambda cell: "$" + cell),
    "thousands": lambda g, cells: _replace_one(g, cells, lambda cell: "1,234,567"),
    "short row": lambda g, cells: [*cells[:-1], cells[-1][:-1]] if len(cells) > 1 and len(cells[-1]) > 1 else cells,
    "long row": lambda g, cells: [*cells[:-1], [*cells[-1], "1"]] if len(cells) > 1 else cells,
}


@pytest.mark.parametrize("block", range(10))
def test_a_table_is_read_rightly_or_refused(tmp_path, block):
    read, refused_clean = 0, 0
    for seed in range(block * TABLES // 10, (block + 1) * TABLES // 10):
        table = messy_table(seed)
        path = tmp_path / f"{seed}.csv"
        path.write_bytes(table.data)
        try:
            found = open_array(path)
        except InputError:
            refused_clean += table.clean
            continue
        read += 1
        rows = np.concatenate([np.zeros((0, table.numbers.shape[1])), *found.read_batches(5)])
        np.testing.assert_array_equal(rows, table.numbers, err_msg=table.about)
    assert read > 15
    assert refused_clean < 5
