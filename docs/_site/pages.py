"""Pages that are made from other files: project files, the API reference, tutorials and the gallery."""

from __future__ import annotations

import ast
import html
import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
SECTIONS = {"": "How do I…", "questions": "How do I…", "concepts": "Concepts", "papers": "Papers"}
PROJECT_FILES = {
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "conduct.md": "CODE_OF_CONDUCT.md",
    "support.md": "SUPPORT.md",
    "security.md": "SECURITY.md",
}


# navigation -----------------------------------------------------------------------------------


def complete_navigation(nav: list[dict[str, object]], pages: list[str]) -> list[dict[str, object]]:
    """Append pages that are not listed to the section of their folder."""
    listed = set(re.findall(r"[\w/-]+\.md", json.dumps(nav)))
    for page in sorted(set(pages) - listed):
        section = SECTIONS.get(str(Path(page).parent).strip("."))
        for entry in nav:
            if section in entry:
                entry[section].append(page)  # type: ignore[attr-defined]
    return nav


# links ----------------------------------------------------------------------------------------


def from_the_root(text: str) -> str:
    """A file of the root as a page of the site: links to docs/ lose that folder."""
    text = text.replace("](docs/", "](").replace("](CODE_OF_CONDUCT.md", "](conduct.md")
    text = text.replace("](SUPPORT.md", "](support.md").replace("](SECURITY.md", "](security.md")
    return text.replace("](CONTRIBUTING.md", "](contributing.md").replace("](CHANGELOG.md", "](changelog.md")


def to_results(text: str) -> str:
    """Links to committed results, which the site has one folder lower than the repository."""
    return text.replace("](../../results/", "](../results/").replace("](../CONTRIBUTING.md", "](contributing.md")


# API reference --------------------------------------------------------------------------------


def public_names(file: Path) -> dict[str, str]:
    """Every name in `__all__` of a package, and where it is defined."""
    tree = ast.parse(file.read_text())
    module = ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    origin = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    names = next((ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign) and _is_all(n)), [])
    return {name: origin.get(name, f"{module}.{name}") for name in names}


def _is_all(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets)


def reference_pages() -> dict[str, str]:
    """A page per public package, the top level first."""
    pages = {}
    for file in sorted(SOURCE.rglob("*.py")):
        if names := public_names(file):
            module = ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
            about = (ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0]
            entries = "\n\n".join(f"::: {origin}" for origin in names.values())
            pages[f"reference/{module}.md"] = f"# {module.replace('vaescope', 'vs', 1)}\n\n{about}\n\n{entries}\n"
    return dict(sorted(pages.items(), key=lambda page: page[0].removesuffix(".md")))


# gallery --------------------------------------------------------------------------------------


def gallery_of_experiments(results: Path) -> str:
    """Every committed figure, with the command that draws it."""
    parts = []
    for claims in sorted(results.glob("*/claims.json")):
        folder = claims.parent
        figures = sorted(folder.glob("figures/*.svg"))
        where = folder.relative_to(ROOT)
        shown = "".join(
            f'<figure><a href="{where}/report.html"><img src="{where}/figures/{f.name}" loading="lazy" '
            f'alt="{html.escape(f.stem.replace("_", " "))}"></a><figcaption>{html.escape(f.stem.replace("_", " "))}'
            "</figcaption></figure>"
            for f in figures
        )
        command = f"vaescope reproduce {folder.name} --profile {results.name}"
        parts.append(f'### {folder.name}\n\n```sh\n{command}\n```\n\n<div class="gallery">{shown}</div>\n')
    return "\n".join(parts)
