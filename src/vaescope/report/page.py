"""HTML pages: one per experiment and an index of all. Self-contained, no script, no network."""

from __future__ import annotations

import base64
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

_ENVIRONMENT = Environment(
    loader=PackageLoader("vaescope.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


def number(value: Any) -> str:
    """A value for a table cell: four significant digits for numbers, text as it is."""
    if isinstance(value, float):
        plain = value == 0 or 1e-3 <= abs(value) < 1e5
        return f"{value:.4g}" if plain else f"{value:.2e}"
    return "–" if value is None else str(value)


def setting(value: Any) -> str:
    """A setting for people: 10000.0 is 10000, lists without brackets."""
    if isinstance(value, list | tuple):
        return ", ".join(setting(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


_ENVIRONMENT.filters.update(number=number, setting=setting)


@dataclass(frozen=True)
class Drawing:
    """A figure on a page: SVG (or, if it moves, an `img`) made by this package, and a caption."""

    name: str
    svg: str
    caption: str


def moving(gif: bytes, words: str) -> str:
    """An animation inside a page."""
    source = "data:image/gif;base64," + base64.b64encode(gif).decode()
    return str(Markup('<img src="{}" alt="{}">').format(source, words))


@dataclass(frozen=True)
class ExperimentPage:
    """Everything a page shows."""

    name: str
    title: str
    source: str
    about: str
    profile: str
    claims: Sequence[Mapping[str, Any]]
    drawings: Sequence[Drawing]
    tables: Mapping[str, Sequence[Mapping[str, Any]]]
    settings: Mapping[str, Any]
    published_settings: Mapping[str, Any]
    trouble: Sequence[str] = ()
    seconds: float | None = None
    versions: Mapping[str, str] = field(default_factory=lambda: versions())


def versions() -> dict[str, str]:
    """What made this page."""
    packages = ("vaescope", "torch", "numpy", "scipy", "scikit-learn")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}}


def experiment_page(page: ExperimentPage) -> str:
    drawings = [(d.name, Markup(d.svg), d.caption) for d in page.drawings]
    return render("experiment.html", page=page, drawings=drawings)


@dataclass(frozen=True)
class IndexEntry:
    """One line of the index: an experiment, and what it found once it has run."""

    name: str
    title: str
    source: str
    claims: Sequence[Mapping[str, Any]] | None = None
    figure: str | None = None

    @property
    def held(self) -> int:
        return sum(bool(claim["holds"]) for claim in self.claims or ())


def render(template: str, **values: Any) -> str:
    """A page from a template; all text is escaped."""
    return _ENVIRONMENT.get_template(template).render(**values)


def index_page(entries: Sequence[IndexEntry], profile: str, *, comparison: bool = False) -> str:
    return render("index.html", entries=entries, profile=profile, versions=versions(), comparison=comparison)


def comparison_page(compared: Sequence[tuple[IndexEntry, Sequence[Mapping[str, Any]]]], profile: str) -> str:
    """Ours beside the published values: a section per experiment, a table per published panel."""
    return render("comparison.html", compared=compared, profile=profile, versions=versions())
