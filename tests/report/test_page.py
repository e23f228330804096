"""Pages: text is escaped, numbers are short, figures are reproducible."""

import pytest

from vaescope.report import figures
from vaescope.report.page import Drawing, ExperimentPage, IndexEntry, experiment_page, index_page, number

CLAIM = {
    "sentence": "<script>alert(1)</script>",
    "source": "s",
    "demand": "d",
    "measured": "1",
    "published": None,
    "verdict": "refuted",
    "reason": "<r>",
    "holds": False,
    "note": "",
}


def test_text_is_escaped_everywhere():
    page = experiment_page(
        ExperimentPage(
            "n",
            "<b>t",
            "<i>s",
            "<u>a",
            "quick",
            [CLAIM],
            [Drawing("f", "<svg></svg>", "<c>")],
            {"<k>": [{"<h>": "<v>"}]},
            {"x": "<y>"},
            {"x": "<z>"},
            ["<w>"],
        )
    )
    for tag in ("<b>t", "<i>s", "<u>a", "<c>", "<k>", "<h>", "<v>", "<y>", "<z>", "<w>", "<r>"):
        assert tag not in page
    assert "<svg></svg>" in page
    assert "✗ refuted" in page
    index = index_page([IndexEntry("n", "<b>t", "<i>s", [CLAIM], "f"), IndexEntry("m", "later", "s")], "quick")
    assert "<b>t" not in index
    assert page.count("<script>") == index.count("<script>") == 1  # the page's own
    assert '1 claim: <span class="refuted">1 refuted</span>' in index
    assert "Not run yet" in index


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456789, "0.1235"), (1.5e-7, "1.50e-07"), (0.0, "0"), (None, "–"), ("name", "name"), (3, "3")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_figures_are_the_same_every_time():
    def draw() -> str:
        figure, axes = figures.row_of_panels(1)
        figures.plot_median_and_range(axes[0], [1.0, 10.0], [[1.0, 2.0], [0.1, 0.2]], label="x")
        figures.format_axis(axes[0], title="t", x="x", y="y")
        return figures.svg(figure)

    assert draw() == draw()
    assert draw().startswith("<svg")
