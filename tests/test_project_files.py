"""Files around the package say the same as the package."""

import re
import tomllib
from pathlib import Path

import yaml

from vaescope import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


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


def test_the_conda_recipe_asks_for_what_the_package_asks_for():
    recipe = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text())
    assert recipe["context"]["version"] == __version__
    renamed = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    asked = (re.fullmatch(r"([\w-]+)(.*)", requirement).groups() for requirement in PROJECT["dependencies"])
    wanted = {f"{renamed.get(name, name)} {bound}" for name, bound in asked}
    assert set(recipe["requirements"]["run"]) == wanted | {f"python {PROJECT['requires-python']}"}
    assert recipe["about"]["summary"] == PROJECT["description"]
    assert recipe["about"]["license"] == PROJECT["license"]
    assert recipe["build"]["python"]["entry_points"] == [f"{name} = {to}" for name, to in PROJECT["scripts"].items()]


def test_only_tested_systems_are_named():
    runners = {yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["runs-on"]}
    systems = [name for name in PROJECT["classifiers"] if name.startswith("Operating System")]
    assert (runners, systems) == ({"ubuntu-latest"}, ["Operating System :: POSIX :: Linux"])


def test_the_paper_has_what_joss_asks_for_and_cites_what_it_lists():
    _, head, body = (ROOT / "paper/paper.md").read_text().split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= set(metadata)
    assert {"Summary", "Statement of need", "State of the field", "References"} <= set(
        re.findall(r"^# (.*)$", body, re.M)
    )
    assert 250 <= len(body.split()) <= 1000
    listed = set(re.findall(r"^@\w+\{(\w+),", (ROOT / "paper" / metadata["bibliography"]).read_text(), re.M))
    assert set(re.findall(r"@(\w+)", body)) == listed
