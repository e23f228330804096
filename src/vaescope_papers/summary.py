"""The tables of the README: every numbered item of the papers with its verdicts, and what was run at which size."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from vaescope.core.serialization import Plain, plain_fields
from vaescope.report.page import setting
from vaescope.runs.files import read_json, write_text
from vaescope.runs.store import read_table
from vaescope_papers.catalogue import experiments
from vaescope_papers.claims import Verdict, count_verdicts
from vaescope_papers.verify import run_folders

PAPERS = ("embrace_the_gap", "polarised_regime", "why_vaes_disentangle")


@dataclass(frozen=True)
class Item:
    """A numbered figure, table or statement of a paper."""

    paper: str
    name: str
    sources: tuple[str, ...] = ()
    """Parts of the sources of claims about it."""
    instead: str = ""
    """What there is, if no claim."""


def items(paper: str) -> list[Item]:
    """The items of a paper; `paper` is the name of its folder.

    >>> [item.name for item in items("polarised_regime")][:2]
    ['Fig. 1', 'Fig. 2']
    """
    data = _declared(paper)
    return [
        Item(data["paper"], own["name"], tuple(own.get("sources", ())), own.get("instead", "")) for own in data["items"]
    ]


def _declared(paper: str) -> dict[str, Any]:
    return tomllib.loads(files("vaescope_papers").joinpath(paper, "items.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class JudgedItem:
    """An item with all claims about it in a profile folder, and those of another one."""

    item: Item
    claims: Sequence[Mapping[str, Plain]]
    published_settings: Sequence[Mapping[str, Plain]]

    @property
    def worst(self) -> Mapping[str, Plain]:
        """The first claim with the verdict that is worst for the paper."""
        worst_first = (Verdict.REFUTED, Verdict.NOT_REPRODUCED, Verdict.UNDECIDED, Verdict.HOLDS)
        return min(self.claims, key=lambda claim: worst_first.index(Verdict(str(claim["verdict"]))))


def judged_items(results: Path) -> list[JudgedItem]:
    """All items of all papers, with the claims of `laptop` and `paper` in a folder of results."""
    laptop, paper = (_stored_claims(results / profile) for profile in ("laptop", "paper"))
    return [JudgedItem(item, _about(item, laptop), _about(item, paper)) for folder in PAPERS for item in items(folder)]


def _stored_claims(folder: Path) -> list[Mapping[str, Plain]]:
    """The claims of all experiments of a profile folder, in the order of the catalogue, each with its page."""
    order = [info.name for info in experiments()]
    found = sorted(run_folders(folder), key=lambda path: order.index(path.name))
    pages = {path: f"results/{folder.name}/{path.name}/report.html" for path in found}
    return [claim | {"page": pages[path]} for path in found for claim in read_json(path / "claims.json")]


def _about(item: Item, claims: Sequence[Mapping[str, Plain]]) -> list[Mapping[str, Plain]]:
    """The paper's own claims about an item."""
    return [
        claim
        for claim in claims
        if item.paper in str(claim["source"])
        and any(part in str(claim["source"]) for part in item.sources)
        and not any(part in str(claim["source"]) for part in ("eyond the paper", "found here"))
    ]


def verdict_table(results: Path) -> str:
    """A row for every item, in Markdown: the worst verdict with its claim, and how many there are of each.

    Where an item has several claims, the row shows the first of those whose verdict is worst for the paper.
    """
    lines = [
        "| where | claim | verdict | ours | published | page | all claims about it | at the published settings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    paper = ""
    for judged in judged_items(results):
        item = judged.item
        name, paper = (item.name if item.paper == paper else f"{item.paper}, {item.name}"), item.paper
        if not judged.claims:
            lines.append(f"| {name} | {item.instead} | – | – | – | – | – | – |")
            continue
        worst = judged.worst
        page = str(worst["page"])
        cells = [
            name,
            str(worst["sentence"]),
            str(worst["verdict"]),
            str(worst["measured"]),
            str(worst["published"] or "–"),
            f"[{Path(page).parent.name}]({page})",
            count_verdicts([str(claim["verdict"]) for claim in judged.claims]),
            count_verdicts([str(c["verdict"]) for c in judged.published_settings])
            if judged.published_settings
            else "–",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def size_table(results: Path) -> str:
    """What was run and at which size beside the published one: every setting that differs, in Markdown."""
    lines = ["| experiment | profile | cells | settings that differ: here (published) |", "|---|---|---|---|"]
    for info in experiments():
        published = plain_fields(info.load().paper)
        ran = [profile for profile in ("laptop", "paper") if (results / profile / info.name / "config.json").exists()]
        for profile in ran:
            folder = results / profile / info.name
            own = read_json(folder / "config.json")["settings"]
            rows = len(read_table(folder, "results"))
            other = [
                f"{name.replace('_', ' ')} {setting(value)} ({setting(published.get(name))})"
                for name, value in own.items()
                if value != published.get(name)
            ]
            lines.append(f"| {info.name} | {profile} | {rows} | {'; '.join(other) or 'none'} |")
        if not ran:
            lines.append(f"| {info.name} | not run | – | – |")
    missing = [f"- {text}." for folder in PAPERS for text in _declared(folder).get("not_run", ())]
    return "\n".join([*lines, "", "Not run:", "", *missing])


# pages that quote them ------------------------------------------------------------------------


def refreshed(text: str, root: Path) -> str:
    """A Markdown page with the tables that it quotes as the committed results have them.

    `<!-- verdicts -->` and `<!-- sizes -->` stand before the two tables of the README and end at the next heading;
    `<!-- claims of results/PROFILE/NAME -->` before rows of sentence, verdict and measured value.

    Args:
        text: of the page.
        root: the folder that holds `results`.
    """
    for mark, table in (("verdicts", verdict_table), ("sizes", size_table)):
        begin, found, rest = text.partition(f"<!-- {mark} -->\n")
        if found:
            after = rest.index("\n\n#")
            text = f"{begin}{found}{table(root / 'results')}{rest[after:]}"
    return re.sub(r"<!-- claims of (results/[\w/-]+) -->\n+((?:\|.*\n)+)", lambda found: _quoted(found, root), text)


def _quoted(found: re.Match[str], root: Path) -> str:
    """A quoted table with the verdict and the measured value of every sentence that the results still have."""
    claims = {claim["sentence"]: claim for claim in read_json(root / found[1] / "claims.json")}
    lines = found[0].splitlines()
    for index, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and (claim := claims.get(cells[0])):
            cells[1:3] = str(claim["verdict"]), str(claim["measured"])
            lines[index] = f"| {' | '.join(cells)} |"
    return "\n".join(lines) + "\n"


def refresh_pages(root: Path) -> list[Path]:
    """Refresh the README and all pages of `docs`; which of them have changed."""
    changed = []
    for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        old = page.read_text(encoding="utf-8")
        if (new := refreshed(old, root)) != old:
            write_text(page, new)
            changed.append(page)
    return changed
