"""Every Python block in the README and the docs runs, and so does every tutorial; every link leads somewhere."""

import functools
import importlib
import importlib.util
import json
import re
import sys
import unicodedata
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
]
QUICK = {"diagnose-a-pytorch-vae"}  # the others are run by `make docs` and `make test-long`
TUTORIALS = [
    pytest.param(script, id=script.stem, marks=() if script.stem in QUICK else pytest.mark.long)
    for script in sorted((ROOT / "docs/tutorials").glob("*.py"))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_runs(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text())
    missing = [t for t in targets if not t.startswith("http") and not (page.parent / t).exists()]
    assert missing == []


def anchors(page: Path) -> set[str]:
    """Ids of the headings of a page, as the site has them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", unidecoded(h)).strip().lower()) for h in headings}


def unidecoded(text: str) -> str:
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_to_headings_lead_to_one(page):
    targets = re.findall(r"\]\(([^)#]*)#([^)]+)\)", page.read_text())
    inside = [(page.parent / file if file else page, anchor) for file, anchor in targets if "://" not in file]
    missing = [(str(file), anchor) for file, anchor in inside if file.suffix == ".md" and anchor not in anchors(file)]
    assert missing == []


def resolves(name: str) -> bool:
    """Whether a dotted name is a module or something in one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            functools.reduce(getattr, parts[length:], importlib.import_module(".".join(parts[:length])))
        except ModuleNotFoundError:
            continue
        except AttributeError:
            return False
        return True
    return False


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_names_files_and_tests_that_a_page_mentions_exist(page):
    text = page.read_text()
    codes = " ".join(re.findall(r"`([^`\n]+)`", text))
    names = {
        found.replace("vs.", "vaescope.", 1) for found in re.findall(r"\bvs(?:\.\w+)+|\bvaescope\w*(?:\.\w+)+", codes)
    }
    assert [n for n in names if not re.search(r"\.(py|md|yml|json|yaml)$", n) and not resolves(n)] == []
    bases = (ROOT, ROOT / "src", ROOT / "src/vaescope", ROOT / "src/vaescope_papers", ROOT / "docs")
    files = {file for file in re.findall(r"(?<![\w/<>])[\w-]+(?:/[\w-]+)+\.py", codes) if "yours" not in file}
    assert [file for file in files if not any((base / file).exists() for base in bases)] == []
    for file, test in re.findall(r"(tests/[\w/]+\.py)::(\w+)", codes):
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"
    for file, name in re.findall(r"`([\w/]+\.py)`\s`[\w.]*?(\w+)`", text):
        assert re.search(rf"(def|class) {name}\b", (next(b / file for b in bases if (b / file).exists())).read_text())


@pytest.mark.parametrize("script", TUTORIALS)
def test_a_tutorial_runs_and_prints(script):
    scripts = load("_site/scripts.py")
    text = script.read_text()
    if missing := scripts.missing_libraries(text):
        pytest.skip(f"needs {', '.join(missing)}")
    cells = scripts.run_cells(text)
    assert cells[0][0].text.startswith("# ")
    assert any(printed for _, printed, _ in cells)


def test_links_of_tutorials_lead_somewhere():
    for script in (ROOT / "docs/tutorials").glob("*.py"):
        targets = re.findall(r"\]\(([^)#]+)[^)]*\)", script.read_text())
        assert [t for t in targets if not (script.parent / t).exists()] == []


def load(file: str) -> ModuleType:
    """A script of the docs as a module."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, ROOT / "docs" / file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation():
    pages, docs = load("_site/pages.py"), ROOT / "docs"
    nav = [{"How do I…": []}, {"Concepts": []}, {"Papers": ["papers/index.md"]}]
    written = ["new.md", "concepts/new.md", "papers/index.md", "questions/new.md"]
    listed = {
        "How do I…": ["new.md", "questions/new.md"],
        "Concepts": ["concepts/new.md"],
        "Papers": ["papers/index.md"],
    }
    assert pages.complete_navigation(nav, written) == [{name: found} for name, found in listed.items()]
    folders = {str(page.relative_to(docs).parent).strip(".") for page in docs.rglob("*.md")}
    assert folders <= {*pages.SECTIONS, "tutorials"}


def test_the_reference_names_where_things_are_defined():
    pages = load("_site/pages.py").reference_pages()
    assert "::: vaescope.fitting.fit" in pages["reference/vaescope.md"]
    assert "::: vaescope.inference.geometry.ima_contrast" in pages["reference/vaescope.theory.md"]


def test_the_planted_scores_shown_are_what_the_metrics_say():
    script = load("figures/planted.py")
    shown = json.loads((ROOT / "docs/figures/planted_scores.json").read_text())
    found = script.scores()
    assert {case: list(row) for case, row in found.items()} == {case: list(row) for case, row in shown.items()}
    for case, row in found.items():
        assert row == pytest.approx(shown[case], abs=0.03)
