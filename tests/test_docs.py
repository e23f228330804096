"""Every Python block in the README and the docs runs."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
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


def test_the_planted_scores_shown_are_what_the_metrics_say():
    spec = importlib.util.spec_from_file_location("planted_figure", ROOT / "docs/figures/planted.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    shown = json.loads((ROOT / "docs/figures/planted_scores.json").read_text())
    found = script.scores()
    assert {case: list(row) for case, row in found.items()} == {case: list(row) for case, row in shown.items()}
    for case, row in found.items():
        assert row == pytest.approx(shown[case], abs=0.03)
