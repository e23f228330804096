"""Text tables as people have them: what is read equals the content, or the table is refused."""

import csv
import io
from dataclasses import dataclass

import numpy as np
import pytest

from vaescope.core.errors import InputError
from vaescope.data.files import dialect, load, open_array

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


NAN, INF = np.nan, np.inf
FRAME = [[0.5, 2.25], [1.5, -3.0], [2.5, 4.125]]
READ = {
    "numbers in quotes": ('"a","b"\n"1.5","2"\n"3","4.25"\n', [[1.5, 2], [3, 4.25]]),
    "pandas with its index": (",a,b\n0,0.5,2.25\n1,1.5,-3.0\n", [[0.5, 2.25], [1.5, -3]]),
    "pandas with a shuffled index": (",a\n17,0.5\n3,1.5\n", [[0.5], [1.5]]),
    "pandas with two indices": (",Unnamed: 0,a\n0,0,0.5\n1,1,1.5\n", [[0.5], [1.5]]),
    "a first column of fractions without a name": (",a\n0.5,1\n1.5,2\n", [[0.5, 1], [1.5, 2]]),
    "pandas without names": ("0,1\n0.5,2.25\n1.5,-3.0\n2.5,4.125\n", FRAME),
    "pandas without names, with its index": (",0,1\n0,5,6\n1,7,8\n", [[5, 6], [7, 8]]),
    "pandas without names, small numbers": ("0,1\n1e-05,2.25\n1.5,-3.0\n", [[1e-5, 2.25], [1.5, -3]]),
    "R with row names": ('"","a","f"\n"1",1.5,"x"\n"2",NA,"y"\n"3",Inf,"x y"\n', [[1.5], [NAN], [INF]]),
    "R csv2": ('"";"a";"b"\n"1";1,5;2\n"2";NA;3\n', [[1.5, 2], [NAN, 3]]),
    "delimiter at the end of every line": ("a,b,\n1,2,\n3,4,\n", [[1, 2], [3, 4]]),
    "tab in a name": ('"a\tb",c\n1,2\n3.5,4\n', [[1, 2], [3.5, 4]]),
    "mixed line ends": ("a,b\r\n1,2\n3,4\r5,6\n", [[1, 2], [3, 4], [5, 6]]),
    "spaces after commas": ("name, v\nx, 1.5\ny, NA\n", [[1.5], [NAN]]),
    "spaces after semicolons": ("name; v\nx; 1,5\ny; 2\n", [[1.5], [2]]),
    "booleans": ("a,b\nTrue,1.5\nFalse,2\n", [[1, 1.5], [0, 2]]),
    "booleans after spaces": ("a, b\nTrue, True\nFalse, False\n", [[1, 1], [0, 0]]),
    "dates": ("d,v\n2020-01-01,1.5\n2020-01-02,2\n", [[1.5], [2]]),
    "German dates": ("d;v\n01.02.2020;1,5\n02.02.2020;2,5\n", [[1.5], [2.5]]),
    "versions": ("v,n\n1.2.3,1\n1.3.0,2\n", [[1], [2]]),
    "times": ("t,v\n2020-01-01 10:00:00,1.5\n2020-01-01 11:00:00,2\n", [[1.5], [2]]),
    "times of day": ("t,v\n10:00,1.5\n11:30:12.5,2\n", [[1.5], [2]]),
    "addresses and ordinals": ("t,o,v\n12 High St,1st,1.5\n3 Low Rd,2nd,2\n", [[1.5], [2]]),
    "lines in a text": ('v,t\n1,"two, or\nthree"\n2,b\n', [[1], [2]]),
    "ordered numbers in every line": (
        "0.5,1.5,2.5,3.5\n1.5,2.5,3.5,4.5\n",
        [[0.5, 1.5, 2.5, 3.5], [1.5, 2.5, 3.5, 4.5]],
    ),
    "a last column without a name": ("a,\n0.5,2\n0.25,4\n", [[0.5, 2], [0.25, 4]]),
    "round numbers in the first row": ("0.5,2.25\n1.125,-3.5\n2.5,4.125\n", [[0.5, 2.25], [1.125, -3.5], [2.5, 4.125]]),
    "one row": ("1,2,3\n", [[1, 2, 3]]),
    "one column": ("x\n1\n2.5\n", [[1], [2.5]]),
    "infinity": ("a,b\nInfinity,2\n-inf,4\n", [[INF, 2], [-INF, 4]]),
    "dates with slashes": ("d,v\n12/31/2020,1.5\n1/2/2021 10:00,2\n", [[1.5], [2]]),
    "words and scores": ("t,v\nbad,1.5\n3/10,2\n", [[1.5], [2]]),
    "words with numbers": ("t,v\nsample 1,1.5\nsample 2,2\n", [[1.5], [2]]),
    "pandas with two indices and blanks": ("Unnamed: 0 , a\n0 , 5\n1 , 7\n", [[5], [7]]),
    "without a final line break": ("a,b\n1,2\n3,4", [[1, 2], [3, 4]]),
}


@pytest.mark.parametrize("case", READ)
def test_ordinary_tables_are_read(tmp_path, case):
    text, expected = READ[case]
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    np.testing.assert_array_equal(open_array(path).all_rows(), expected)


REFUSED = {
    "whole numbers below column numbers": ("0,1,2\n8,29,48\n42,40,2\n", "line 1 may be column numbers or data"),
    "hexadecimal": ("a,b\n0x1F,2\n0x20,4\n", "'0x1F' in line 2, column 1 is a number written in another way"),
    "complex": ("a,b\n1+2j,1\n3-1j,2\n", "a number written in another way"),
    "unicode minus": ("a,b\n−1.5,2\n3,4\n", "column 1 has numbers, but '−1.5' in line 2"),
    "Arabic digits": ("a,b\n١,2\n٣,4\n", "a number written in another way"),
    "thousands with spaces": ("a;b\n1 000;2\n3 500;4\n", "'1 000' in line 2"),
    "thousands with no-break spaces": ("a;b\n1\u00a0000;2\n3\u00a0500;4\n", "a number written in another way"),
    "underscores": ("a,b\n1_000,2\n3,4\n", "'1_000'"),
    "Fortran exponents": ("a,b\n1d5,2\n3,4\n", "'1d5'"),
    "brackets for minus": ("a,b\n(1.5),2\n3,4\n", r"'\(1.5\)'"),
    "a line that names the delimiter": ("sep=;\na;b\n1,5;2,5\n3,25;4\n", "cannot be read as a table in one way"),
    "longer lines than names": ('"a" "b"\n"1" 1.5 2\n"2" 2.5 3\n', "line 2 has 3 fields, line 1 has 2"),
    "two lines of names": ("a,b\ncm,kg\n1,2\n", "'cm' in line 2"),
    "a total": ("a,b\n1,2\n3,4\nTotal,6\n", "'Total' in line 4"),
    "a unit": ("a,b\n1.5 kg,2\n3 kg,4\n", "'3 kg' in line 3, column 1 is a number with a unit"),
    "a column of Fortran exponents": ("a,b\n1.5D+00,2\n3.0D-01,4\n", "'1.5D\\+00' in line 2"),
    "a column of numbers with unicode minus": ("a,b\n−1.5,2\n−2.5,4\n", "'−1.5' in line 2, column 1 is a number"),
    "a column in brackets": ("a,b\n(1.5),2\n(2.5),4\n", "a number written in another way"),
    "numbers inside two quotation marks": ('a,b\n"""1.5""",2\n"""2.5""",4\n', "a number written in another way"),
    "a blank before a quotation mark": ('a, b\n"0.5", "1.5"\n"1.5", "2.5"\n', "blank before a quotation mark"),
    "colons between decimal commas": ("2,47%:4,02:5\n2,60%:-,31:7\n", "cannot be read as a table in one way"),
    "row labels that occur twice": (",a\n0,1.5\n0,2.5\n", "integers and no name, so it may be row labels or data"),
    "row labels of R before a single column": ("x\n1,0\n2,3\n3,2\n", "may be a row label and a number, or a fraction"),
    "wavelengths as names": (
        "400.5,401.0,401.5,402.0\n0.1,0.3,0.2,0.4\n0.2,0.1,0.3,0\n",
        "numbers in order, which may be names",
    ),
    "names in quotes that are numbers": (
        '"0.5","1.7"\n0.1,0.3\n0.2,0.1\n',
        "line 1 is in quotes and the others are not",
    ),
    "a quotation mark that is not closed": (
        'a,b\n1,x\n2,"foo\n3,bar\n4,baz\n',
        "line 3 has a quotation mark that is not closed",
    ),
    "a file that was cut off in quotes": ('a,b\n1,"2,5"\n3,"4\n', "line 3 has a quotation mark that is not closed"),
    "a quotation mark that is closed later": ('a,b\n1,x\n2,"foo\n3,bar\n4,baz"\n5,y\n', "has 3,bar inside a text"),
    "a quotation mark that is closed in another row": (
        'a,b\n"say ""hi""",-2.5\n"m/s,0.14\n"say ""hi""",-0.39\n',
        "line 3 has text after a quotation mark",
    ),
    "units before another delimiter": (
        "-1.5 K|-235|O'Neil\n2.5 K|268|O'Neil\n",
        "'2.5 K' in line 2, column 1 is a number with a unit",
    ),
    "an unknown delimiter before a decimal comma": (
        "a,b\n1,5:red:3\n2,25:blue:4\n",
        "column 2 has numbers between ':' in",
    ),
    "thousands or two columns": ("1 234,5\n5 678,7\n", "'1 234,5' may be thousands or several numbers"),
    "two spaces, and one in a text": (
        "a  b c  d\n0.5  Q3 2020  6486\n1.5  Q2 2020  38\n",
        "different numbers of spaces",
    ),
    "a comment behind the first number": ("1 # odd\n1\n1\n", "cannot be read as a table in one way"),
    "names that are fractions": (
        "0.5,1.5\n1.712,-2.996\n0.4285,0.892\n",
        "line 1 has rounder numbers than every other",
    ),
    "names of R above delimiters at the end": (
        "price;kind;\n1;red;15:11\n2;blue;18:29\n",
        "the last column has no name and the first may be row labels, so names may be off by one",
    ),
    "fractions above integers": ("0.5;1.5\n1;8.02\n3;2.6\n", "line 1 has '0.5' above integers, so it may be names"),
    "two integers or a decimal comma": ("2,97\n3,35\n1,90\n", "'2,97' may be two numbers or a fraction"),
    "the same with a blank line": ("-2,97\n\n3,35\n1,90\n", "'-2,97' may be two numbers or a fraction"),
    "a longer row below integers": ("n\n1\n-24\n35,7\n", "line 2 has no comma, so those of other lines may be"),
    "a blank line above numbers": ("\n1;0.69\n2;1.98\n", "line 1 is blank, so it may be the names"),
    "a delimiter in a name": ("v (m, s)\n4,24\n4,5\n", "line 1 has 'v \\(m' with a bracket that is not closed"),
    "a comment behind a row": ("1.5,2020-05,17 # odd\n", "'17 # odd' in line 1, column 3 is a number and a comment"),
    "a range of error": (
        "a,b\n1.5±0.1,2\n3±0.2,4\n",
        "'1.5±0.1' in line 2, column 1 is a number written in another way",
    ),
    "a range of error in words": ("a,b\n1.5 +/- 2,2\n3 +/- 1,4\n", "a number written in another way"),
    "limits": ("a,b\n<0.5,2\n≤0.7,4\n", "'<0.5' in line 2, column 1 is a number written in another way"),
    "shares": ("a,b\n1/10,2\n3/10,4\n", "'1/10' in line 2, column 1 is a number written in another way"),
    "degrees": ("a,b\n45°30',2\n46°15',4\n", "a number written in another way"),
    "typographic thousands": ("a,b\n1’000,2\n3’500,4\n", "a number written in another way"),
    "powers of ten": ("a,b\n1.5×10^3,2\n2.5×10^3,4\n", "a number written in another way"),
    "a unit behind a bare fraction": ("a,b\n.5 kg,2\n.7 kg,4\n", "'.7 kg' in line 3, column 1 is a number with a unit"),
    "a currency before": ("a,b\nCHF 4509,2\nCHF 82,4\n", "'CHF 82' in line 3, column 1 is a number with a unit"),
    "a word before a fraction": (
        "a,b\nabout 4.5,2\nabout 3.5,4\n",
        "'about 3.5' in line 3, column 1 is a number with a unit",
    ),
    "a first column that counts the lines": ("0,5.5\n1,2.25\n2,3.5\n", "column 1 counts the lines and has no name"),
    "the same, in quotes, from one": ('"1",5.5,x\n"2",2.25,y\n', "column 1 counts the lines and has no name"),
    "a last line of totals": (
        "name,v\nred,1.5\nblue,2\nTotal,3.5\n",
        "ends with a line of 'Total', which is not a sample",
    ),
    "booleans in the first line": ("TRUE;yes\nFalse;no\n", "line 1 may be names or data"),
    "numbers and booleans": ("a,b\nTrue,1.5\n1,2\n", "'True' in line 2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_ambiguous_is_refused_in_one_line(tmp_path, case):
    text, message = REFUSED[case]
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    with pytest.raises(InputError, match=message) as caught:
        open_array(path)
    assert "\n" not in str(caught.value)


def test_overflowing_numbers_are_not_trained_on(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b\n1e400,2\n3,4\n")
    with pytest.raises(InputError, match="finite"):
        load(path)


@pytest.mark.parametrize(
    ("later", "message"),
    [("x,1,", "conversion error"), ("2,1,7", "c has no values at first, but later"), ("2,1", "Expected 3 columns")],
)
def test_lines_after_the_first_block_must_be_like_those_before(tmp_path, monkeypatch, later, message):
    monkeypatch.setattr(dialect, "BLOCK_BYTES", 64)
    path = tmp_path / "table.csv"
    path.write_text("a,b,c\n" + "1,2,\n" * 50 + later + "\n")
    with pytest.raises(InputError, match=message):
        open_array(path).all_rows()


def test_a_blank_line_in_one_long_column_is_a_missing_value(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("x\n" + "1.25\n" * 300_000 + "\n2.5\n")
    found = open_array(path).all_rows()
    assert len(found) == 300_002
    np.testing.assert_array_equal(found[-3:, 0], [1.25, NAN, 2.5])


def test_a_line_break_in_quotes_at_the_end_of_the_first_block(tmp_path, monkeypatch):
    path = tmp_path / "table.csv"
    path.write_text("t,v\n" + '"two\nlines",1.5\n' * 30)
    for size in range(40, 80):
        monkeypatch.setattr(dialect, "BLOCK_BYTES", size)
        assert open_array(path).all_rows().tolist() == [[1.5]] * 30


def test_one_line_says_what_was_read(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a;species;empty;b;c\n1,5;red;;2;0\n2,5;blue;;3;1\n")
    assert load(path, factors="c").what_was_read == (
        "read table.csv: 2 rows x 2 columns (a, b); factors: c; left out: species (text), empty (no values); "
        "separated by semicolons, decimal comma"
    )
    np.savez(tmp_path / "x.npz", x=np.zeros((5, 3)), other=np.zeros(2))
    assert load(tmp_path / "x.npz", rows=2).what_was_read == (
        "read x.npz: 5 rows x 3; other arrays: other; 2 of them at random"
    )
