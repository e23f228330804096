"""Every test and function that the pages on papers and corrections refer to exists."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAPERS = sorted(page for page in (ROOT / "docs/papers").glob("*.md") if page.name != "index.md")
PAGES = [ROOT / "docs/corrections.md", *PAPERS]


def references(pattern: str) -> list:
    return [
        pytest.param(found, id=f"{page.stem}-{found}")
        for page in PAGES
        for found in sorted(set(re.findall(pattern, page.read_text())))
    ]


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("reference", references(r"tests/[\w/]+\.py::\w+"))
def test_a_named_test_exists(reference):
    file, name = reference.split("::")
    assert name in functions(ROOT / file)


@pytest.mark.parametrize("reference", references(r"\b(?:vs|vaescope(?:_papers)?)(?:\.\w+){2,}"))
def test_a_named_function_exists(reference):
    package, *names = reference.replace("vs.", "vaescope.", 1).split(".")
    found = importlib.import_module(package)
    for name in names:
        found = getattr(found, name, None) or importlib.import_module(f"{found.__name__}.{name}")


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.stem)
def test_every_statement_has_an_answer_in_every_column(page):
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    header = "| statement | implemented | where | test | claim |"
    assert header in rows
    for row in rows[rows.index(header) + 2 :]:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip("|"))]
        assert len(cells) == 5, row
        assert all(cells), row
