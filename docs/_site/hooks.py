"""What MkDocs calls while it builds the site."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "src")]
import equations
import pages
import scripts

ROOT = pages.ROOT
RESULT_FILES = ("*.html", "*.svg", "*.gif")


def on_config(config: Any) -> Any:
    docs = Path(config.docs_dir)
    written = [str(file.relative_to(docs)) for file in docs.rglob("*.md")]
    for entry in config.nav:
        if "Tutorials" in entry:
            entry["Tutorials"] += [f"tutorials/{f.stem}.md" for f in sorted((docs / "tutorials").glob("*.py"))]
        if "API" in entry:
            entry["API"] = [{_title(page): page} for page in pages.reference_pages()]
        if "More" in entry:
            entry["More"].append("conduct.md")
    config.nav = pages.complete_navigation(config.nav, written)
    return config


def _title(page: str) -> str:
    return Path(page).name.removesuffix(".md").replace("vaescope", "vs", 1)


def on_files(files: Files, config: Any) -> Files:
    docs = Path(config.docs_dir)
    made = {page: pages.from_the_root((ROOT / file).read_text()) for page, file in pages.PROJECT_FILES.items()}
    made["index.md"] = pages.from_the_root((ROOT / "README.md").read_text())
    made |= pages.reference_pages()
    made |= {f"tutorials/{f.stem}.md": scripts.page(f.read_text()) for f in sorted((docs / "tutorials").glob("*.py"))}
    made["gallery.md"] = _gallery(docs)
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "CITATION.cff", abs_src_path=str(ROOT / "CITATION.cff")))
    for pattern in RESULT_FILES:
        for file in sorted((ROOT / "results").rglob(pattern)):
            files.append(File.generated(config, str(file.relative_to(ROOT)), abs_src_path=str(file)))
    return files


def _gallery(docs: Path) -> str:
    """The gallery of analyses, which is run, and the figures of the experiments."""
    script = scripts.page((docs / "_site" / "gallery.py").read_text())
    experiments = [pages.gallery_of_experiments(ROOT / "results" / profile) for profile in ("laptop", "paper")]
    head = "## Figures of the experiments\n\nA click leads to the page with the claims."
    return "\n\n".join([script, head, *experiments])


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    return equations.with_equations(pages.to_results(markdown))
