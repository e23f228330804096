"""The tables of the README are those of the committed results, and no numbered item of the papers is left out."""

import json
import re
import shutil
from pathlib import Path

import pytest

from vaescope_papers.summary import PAPERS, Item, JudgedItem, items, judged_items, refreshed, size_table, verdict_table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
NUMBERED = {
    "embrace_the_gap": {"Fig": 5, "Tab": 5, "Theorem": 1, "Prop": 8, "Lemma": 4, "Corollary": 1},
    "polarised_regime": {"Fig": 4, "Tab": 2, "Theorem": 2, "Prop": 3},
    "why_vaes_disentangle": {"Fig": 5, "Tab": 7, "Theorem": 2, "Prop": 7, "Lemma": 13},
}


def numbers(name):
    """What a row is about: ("Fig", 2), ("Fig", 3), ... from "Figs. 2 to 4".

    >>> sorted(numbers("Lemmas 1, 3, Prop. 7"))
    [('Lemma', 1), ('Lemma', 3), ('Prop', 7)]
    """
    found = set()
    for kind, text in re.findall(r"([A-Z][a-z]+?)s?\.? ((?:\d+(?:, | to )?)+)", name):
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", text):
            found |= {(kind, number) for number in range(int(first), int(last or first) + 1)}
    return found


@pytest.mark.parametrize("paper", PAPERS)
def test_every_numbered_figure_table_and_statement_has_a_row(paper):
    expected = {(kind, n) for kind, count in NUMBERED[paper].items() for n in range(1, count + 1)}
    assert set().union(*(numbers(item.name) for item in items(paper))) == expected


def test_every_row_has_a_claim_or_says_what_there_is_instead():
    for judged in judged_items(RESULTS):
        assert bool(judged.claims) != bool(judged.item.instead), judged.item
        assert bool(judged.item.sources) == bool(judged.claims), judged.item


def test_every_claim_of_a_paper_about_a_numbered_item_is_in_a_row():
    shown = {claim["sentence"] for judged in judged_items(RESULTS) for claim in judged.claims}
    named = re.compile(r"\b(Fig|Tab|Theorem|Thm|Prop|Proposition|Lemma|Corollary)s?\.? \d")
    for file in sorted(RESULTS.glob("laptop/*/claims.json")):
        for claim in json.loads(file.read_text()):
            source = claim["source"]
            if named.search(source) and "eyond the paper" not in source and "found here" not in source:
                assert claim["sentence"] in shown, source


def test_the_row_shows_the_verdict_that_is_worst_for_the_paper():
    claims = [{"verdict": v, "sentence": v} for v in ("holds", "undecided", "refuted", "not reproduced", "refuted")]
    item = Item("A", "Fig. 1")
    assert [JudgedItem(item, claims[:n], []).worst["verdict"] for n in (1, 2, 3)] == ["holds", "undecided", "refuted"]
    assert JudgedItem(item, claims, []).worst is claims[2]
    assert JudgedItem(item, [claims[1], claims[3]], []).worst["verdict"] == "not reproduced"


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))], ids=lambda p: p.name)
def test_quoted_tables_are_those_of_the_results(page):
    text = page.read_text()
    if "<!-- verdicts -->" in text or "<!-- claims of" in text:
        assert refreshed(text, ROOT) == text, "make tables"


def test_a_changed_verdict_changes_the_page(tmp_path):
    name = "results/laptop/linear-vae"
    shutil.copytree(ROOT / name, tmp_path / name)
    claims = json.loads((tmp_path / name / "claims.json").read_text())
    rows = f"| claim | verdict | measured |\n|---|---|---|\n| {claims[0]['sentence']} | x | y |\n"
    page = f"<!-- claims of {name} -->\n\n{rows}"
    assert f"| {claims[0]['verdict']} | {claims[0]['measured']} |" in refreshed(page, tmp_path)


def test_the_tables_cover_all_experiments():
    sizes = size_table(RESULTS)
    assert "| linear-vae | paper | 60 | none |" in sizes
    assert "MPI3D" in sizes
    assert verdict_table(RESULTS).count("\n") > 35
