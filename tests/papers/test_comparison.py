"""Ours beside the published values: medians, ratios, and a page that shows them as text."""

from vaescope.papers.comparison import Comparison, by_precision, entry

from vaescope.report.page import IndexEntry, comparison_page


def test_a_line_has_the_median_its_range_and_a_ratio():
    line = entry("γ² = 10", [1.0, 2.0, 6.0], 4.0)
    assert (line["ours"], line["lowest"], line["highest"], line["ours / theirs"]) == (2.0, 1.0, 6.0, 0.5)
    assert entry("s", [], 4.0)["ours"] is None
    assert entry("s", [1.0], None)["ours / theirs"] is None
    assert entry("s", [1.0], "falls")["published"] == "falls"
    assert entry("s", [1.0], -2.0)["ours / theirs"] is None


def test_only_published_settings_are_compared():
    rows = [{"precision": p, "mcc": p / 100} for p in (1.0, 10.0, 10.0, 1000.0)]
    lines = by_precision(rows, "mcc", {10.0: 0.2, 100.0: 0.3})
    assert [line["setting"] for line in lines] == ["γ² = 10", "γ² = 100"]
    assert lines[0]["ours / theirs"] == 0.5
    assert lines[1]["ours"] is None


def test_the_page_shows_every_panel_and_escapes_text():
    panel = Comparison("Fig. <1>", "MCC", [entry("γ² = 10", [0.5], 0.25)], "Because <script>alert(1)</script>.")
    index = IndexEntry("name", "A title", "a source", claims=[{"holds": True}], figure=None)
    page = comparison_page([(index, [panel.as_data()])], "paper")
    assert "Fig. &lt;1&gt;: MCC" in page
    assert "<script>" not in page
    assert "0.25" in page
    assert "1 of 1 claims hold" in page
