"""Files around the package say the same as the package."""

import re
from pathlib import Path

import yaml

from vaescope import __version__

ROOT = Path(__file__).parents[1]


def test_the_citation_has_the_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_the_changelog_has_the_version():
    assert re.search(rf"^## {re.escape(__version__)} ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)


def test_the_workflow_runs_what_the_project_runs():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    assert ".ci/run" in [step.get("run") for step in jobs["test"]["steps"]]
    versions = set(jobs["test"]["strategy"]["matrix"]["python"])
    assert versions == set(re.findall(r"Python :: (3\.\d+)\"", (ROOT / "pyproject.toml").read_text()))


def test_files_that_the_guide_for_contributors_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    files = re.findall(r"`([a-z_]+/[a-z_/]*(?:\.py)?)`", text.split("## What a change needs")[0])
    assert len(files) >= 3
    missing = [f for f in files if not any((ROOT / base / f).exists() for base in ("src/vaescope", "src", ""))]
    assert [f for f in missing if f != "site/"] == []


def test_issue_forms_are_valid():
    for form in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(form.read_text()), form
