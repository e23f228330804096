"""HTML pages: one per experiment and an index of all. Self-contained: no scripts, no network requests."""

from __future__ import annotations

import base64
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

import vaescope
from vaescope.core.serialization import Plain

VERDICTS = ("holds", "refuted", "undecided")
MARKS = {"holds": "✓ holds", "refuted": "✗ refuted", "undecided": "? undecided"}
_ENVIRONMENT = Environment(
    loader=PackageLoader("vaescope.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)


def number(value: object) -> str:
    """A value for a table cell: four significant digits for numbers, text unchanged."""
    if isinstance(value, float):
        plain = value == 0 or 1e-3 <= abs(value) < 1e5
        return f"{value:.4g}" if plain else f"{value:.2e}"
    return "–" if value is None else str(value)


def setting(value: object) -> str:
    """A setting for people: 10000 instead of 10000.0, lists without brackets."""
    if isinstance(value, list | tuple):
        return ", ".join(setting(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


_ENVIRONMENT.filters.update(number=number, setting=setting)
_ENVIRONMENT.globals.update(marks=MARKS)


@dataclass(frozen=True)
class Drawing:
    """A figure on a page: SVG (or an `img` element, for an animation) made by this package, and a caption."""

    name: str
    svg: str
    caption: str


def gif_image(gif: bytes, description: str) -> str:
    """An `img` element that contains the animation itself."""
    source = "data:image/gif;base64," + base64.b64encode(gif).decode()
    return str(Markup('<img src="{}" alt="{}">').format(source, description))


@dataclass(frozen=True)
class ExperimentPage:
    """Everything a page shows."""

    name: str
    title: str
    source: str
    about: str
    profile: str
    claims: Sequence[Mapping[str, Plain]]
    drawings: Sequence[Drawing]
    tables: Mapping[str, Sequence[Mapping[str, object]]]
    settings: Mapping[str, Plain]
    published_settings: Mapping[str, Plain]
    problems: Sequence[str] = ()
    seconds: float | None = None
    versions: Mapping[str, str] = field(default_factory=lambda: versions())


def versions() -> dict[str, str]:
    """The versions of the packages that made a page."""
    packages = ("torch", "numpy", "scipy", "scikit-learn")
    own = {"python": platform.python_version(), "vaescope": vaescope.__version__}
    return own | {name: metadata.version(name) for name in packages}


def experiment_page(page: ExperimentPage) -> str:
    drawings = [(d.name, Markup(d.svg), d.caption) for d in page.drawings]
    return render("experiment.html", page=page, drawings=drawings)


@dataclass(frozen=True)
class IndexEntry:
    """One entry of the index: an experiment and, once it has run, its claims."""

    name: str
    title: str
    source: str
    claims: Sequence[Mapping[str, Plain]] | None = None
    figure: str | None = None

    @property
    def counts(self) -> list[tuple[str, int]]:
        """How many claims have each verdict."""
        found = [str(claim["verdict"]) for claim in self.claims or ()]
        return [(verdict, found.count(verdict)) for verdict in VERDICTS if found.count(verdict)]


def render(template: str, **values: object) -> str:
    """A page from a template; all text is escaped."""
    return _ENVIRONMENT.get_template(template).render(**values)


def index_page(entries: Sequence[IndexEntry], profile: str, *, comparison: bool = False) -> str:
    return render("index.html", entries=entries, profile=profile, versions=versions(), comparison=comparison)


def comparison_page(compared: Sequence[tuple[IndexEntry, Sequence[Mapping[str, Plain]]]], profile: str) -> str:
    """Our values next to the published ones: a section per experiment, a table per published panel."""
    return render("comparison.html", compared=compared, profile=profile, versions=versions())
