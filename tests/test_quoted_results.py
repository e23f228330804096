"""Claims that the docs quote are those of committed results, with the same verdicts and numbers.

A quoted table follows a comment `<!-- claims of results/PROFILE/NAME -->`; its rows are sentence, verdict, measured.
"""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MARK = re.compile(r"<!-- claims of (results/[\w/-]+) -->\n+(.*?)\n\n", flags=re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUOTES = [
    pytest.param(folder, table, id=f"{page.relative_to(ROOT)}-{folder}")
    for page in PAGES
    for folder, table in MARK.findall(page.read_text() + "\n\n")
]


def quoted_rows(table):
    """The first three cells of every row below the header."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split(" | ")[:3]) for line in lines[2:]]


@pytest.mark.parametrize(("folder", "table"), QUOTES)
def test_quoted_claims_are_those_of_the_results(folder, table):
    claims = json.loads((ROOT / folder / "claims.json").read_text())
    stored = {(claim["sentence"], claim["verdict"], claim["measured"]) for claim in claims}
    rows = quoted_rows(table)
    assert rows
    assert [row for row in rows if row not in stored] == []


def test_a_changed_number_is_found():
    table = "| claim | verdict | measured |\n|---|---|---|\n| A holds. | holds | 0.5 (0.4 to 0.6) | 0.7 |"
    assert quoted_rows(table) == [("A holds.", "holds", "0.5 (0.4 to 0.6)")]
