"""Our values next to the published ones: medians, ratios, and a page that escapes its text."""

from vaescope.report.page import IndexEntry, comparison_page
from vaescope.runs.files import write_json
from vaescope_papers.run import COMPARISON, write_index
from vaescope_papers.statistics import Comparison, compare, compare_precisions


def test_a_row_has_the_median_its_range_and_a_ratio():
    row = compare("γ² = 10", [1.0, 2.0, 6.0], 4.0)
    assert (row.ours, row.lowest, row.highest, row.ratio) == (2.0, 1.0, 6.0, 0.5)
    assert row.to_data()["ours / published"] == 0.5
    assert compare("s", [], 4.0).ours is None
    assert compare("s", [], 4.0).ratio is None
    assert compare("s", [1.0], None).ratio is None
    assert compare("s", [1.0], "falls").published == "falls"
    assert compare("s", [1.0], "falls").ratio is None
    assert compare("s", [1.0], -2.0).ratio is None


def test_only_published_precisions_are_compared():
    rows = compare_precisions({1.0: [0.01], 10.0: [0.1, 0.1], 1000.0: [10.0]}, {100.0: 0.3, 10.0: 0.2})
    assert [row.setting for row in rows] == ["γ² = 10", "γ² = 100"]
    assert rows[0].ratio == 0.5
    assert rows[1].ours is None


def test_the_page_shows_every_panel_and_escapes_text():
    panel = Comparison("Fig. <1>", "MCC", [compare("γ² = 10", [0.5], 0.25)], "Because <script>alert(1)</script>.")
    index = IndexEntry("name", "A title", "a source", claims=[{"verdict": "holds"}], figure=None)
    page = comparison_page([(index, [panel.to_data()])], "paper")
    assert "Fig. &lt;1&gt;: MCC" in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "0.25" in page


def test_the_index_leaves_out_an_experiment_that_another_process_is_writing(tmp_path):
    panel = Comparison("Fig. 1", "MCC", [compare("γ² = 10", [0.5], 0.25)], "No reason.")
    folder = tmp_path / "linear-vae"
    folder.mkdir()
    write_json(folder / COMPARISON, [panel.to_data()])  # written before the report
    write_index(tmp_path, "quick")
    assert not (tmp_path / "comparison.html").exists()
    write_json(folder / "claims.json", [{"verdict": "holds"}])
    (folder / "report.html").touch()
    write_index(tmp_path, "quick")
    assert "Fig. 1: MCC" in (tmp_path / "comparison.html").read_text()
