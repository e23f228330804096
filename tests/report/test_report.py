"""The base class of results: text, HTML, JSON and a page from a few methods."""

import json
from dataclasses import dataclass

from vaescope.core.tables import Table
from vaescope.report.findings import Finding
from vaescope.report.report import Report

FINDING = Finding("too-many-latents", "warning", "Title.", "The <KL> is 0.", "Advice.", "x = 1")


@dataclass(frozen=True, repr=False)
class Fields(Report):
    """A report whose name, findings and skipped analyses are fields."""

    name: str
    findings: list[Finding]
    skipped: dict[str, str]

    def summary(self):
        return Table([{"latent": 0, "KL": 1.5}])

    def content(self):
        return {"kl": float("nan"), "findings": [finding.to_data() for finding in self.findings]}


class Bare(Report):
    def summary(self):
        return Table()

    def content(self):
        return {}


def test_a_report_with_fields(tmp_path):
    report = Fields("<model>", [FINDING], {"gap": "no time"})
    assert repr(report).splitlines() == [
        "Fields of <model>: 1 finding",
        "  warning: Title. (too-many-latents)",
        "    The <KL> is 0.",
        "    What to do: Advice.",
        "        x = 1",
        "  left out: gap (no time)",
    ]
    assert report.worst == "warning"
    page = report.to_html(tmp_path / "page.html").read_text()
    for html in (page, report._repr_html_()):
        assert "<model>" not in html
        assert "&lt;model&gt;" in html
        assert "<td" in html
    assert 'href="#term-kl"' in page
    assert '<dt id="term-kl">' in page
    assert "term-elbo" not in page  # only words that occur are explained
    assert json.loads(report.to_json(tmp_path / "r.json").read_text())["kl"] is None
    assert report.to_frame("arrow").column_names == ["latent", "KL"]


def test_former_codes_of_findings_are_accepted():
    report = Fields("m", [FINDING], {})
    assert report.find("over-wide") is report.find("too-many-latents") is FINDING
    assert report.find("collapsed") is None


def test_a_report_without_fields(tmp_path):
    assert (Bare().findings, Bare().skipped, Bare().worst) == ((), {}, None)
    assert "No issues found" in Bare().to_html(tmp_path / "page.html").read_text()
