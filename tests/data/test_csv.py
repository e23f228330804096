"""Tables of text: numeric columns as rows, missing fields as NaN, mistakes in one line."""

import numpy as np
import pytest

import vaescope as vs
from vaescope.data.files import tables as csv_tables
from vaescope.data.files.loading import load
from vaescope.data.files.tables import open_csv

TEXT = "id,a,b,name\n1,0.5,2,x\n2,,3,y\n3,1.5,4.5,z\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(TEXT)
    return path


def test_numeric_columns_are_rows_and_empty_fields_are_nan(table):
    assert open_csv(table).columns == ("id", "a", "b")
    assert open_csv(table).left_out == ("name",)
    rows = open_csv(table).all_rows()
    np.testing.assert_array_equal(rows, [[1, 0.5, 2], [2, np.nan, 3], [3, 1.5, 4.5]])
    np.testing.assert_array_equal(open_csv(table, ["b"]).all_rows(), [[2], [3], [4.5]])
    assert [len(batch) for batch in open_csv(table).stream(2)] == [2, 1]


def test_tabs_and_factors(tmp_path):
    path = tmp_path / "table.tsv"
    path.write_text("a\tb\tc\n1\t2\t0\n3\t4\t1\n")
    data = load(path, factors="c")
    assert data.x.tolist() == [[1, 2], [3, 4]]
    assert data.factor_names == ("c",)


def test_whole_numbers_may_become_decimals_in_a_later_block(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_tables, "BLOCK_BYTES", 64)
    path = tmp_path / "table.csv"
    path.write_text("a,b\n" + "1,2\n" * 100 + "1.5,2\n")
    assert open_csv(path).all_rows()[-1].tolist() == [1.5, 2.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\nx,y\n", "table.csv has no numeric columns"),
        ("a,b\n1,2\n3\n", "table.csv cannot be read as a table"),
        (TEXT, "must be finite, got NaN or infinity in 1 of 3 rows"),
        ("", "table.csv is empty"),
    ],
)
def test_mistakes_are_one_line(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(vs.InputError, match=message) as caught:
        load(path)
    assert "\n" not in str(caught.value)
