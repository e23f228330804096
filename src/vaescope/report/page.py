"""HTML pages from templates: self-contained, without network requests."""

from __future__ import annotations

import base64
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

import vaescope
from vaescope.core.serialization import Plain

MARKS = {"holds": "✓ holds", "refuted": "✗ refuted", "not reproduced": "✗ not reproduced", "undecided": "? undecided"}
COLOURS = ("#1f5fa8", "#d1592b", "#2c8a5b", "#8150a8", "#b08a1e", "#5d6b78")
"""Of curves, in this order."""
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


@dataclass(frozen=True)
class Drawing:
    """A figure on a page: SVG (or an `img` element, for an animation) made by this package, and a caption."""

    name: str
    svg: str
    caption: str
    width: int | None = None
    """In pixels, at most; None for the width of the page."""
    least: int | None = None
    """Pixels below which it would not be legible: on narrower screens it is scrolled."""


def sentences(text: str) -> tuple[str, str]:
    """The first sentence of a text, and the rest.

    >>> sentences("ELBO* of Fig. 4, cf. Eq. 13. It converges. Slowly.")
    ('ELBO* of Fig. 4, cf. Eq. 13.', 'It converges. Slowly.')
    """
    found = re.match(r"(.*?(?<!\bcf)(?<!\bal)[.:]) (?=[A-Z|‖])(.*)", text, flags=re.DOTALL)
    return (text, "") if found is None else (found[1], found[2])


_ENVIRONMENT.filters.update(number=number, setting=setting, sentences=sentences)
_ENVIRONMENT.globals.update(marks=MARKS, escape=escape)


def embedded_image(content: bytes, kind: str, description: str) -> str:
    """An `img` element that contains the image itself, in which no script can run.

    Args:
        content: of the image file.
        kind: "gif" or "svg+xml".
        description: shown where images are not.
    """
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
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
    registered: str = ""
    """When settings and claims were stored, in words."""
    comparisons: Sequence[Mapping[str, Plain]] = ()
    """Published panels with our values, a table each."""
    versions: Mapping[str, str] = field(default_factory=lambda: versions())

    @property
    def counts(self) -> list[tuple[str, int]]:
        """How many claims have each verdict."""
        return verdict_counts(self.claims)

    @property
    def numbers(self) -> list[dict[str, str]]:
        """What the page shows first: published numbers beside ours, at most six.

        Of claims with a published number; if there are none, of the published panels; if there are none either, our
        values of the first claims.
        """
        printed = [c for c in self.claims if re.match(r"[-−<>≥≤]?\d", str(c["published"] or ""))]
        entries = [
            (panel, entry)
            for panel in self.comparisons
            for entry in cast(Sequence[Mapping[str, Plain]], panel["entries"])
        ]
        if printed or not entries:
            return [
                {
                    "what": str(c["sentence"]),
                    "paper": str(c["published"]) if printed else "",
                    "ours": str(c["measured"]),
                    "verdict": str(c["verdict"]),
                }
                for c in (printed or self.claims)[:6]
            ]
        return [
            {
                "what": f"{panel['figure']}: {panel['quantity']}, {entry['setting']}",
                "paper": number(entry["published"]),
                "ours": number(entry["ours"]),
                "verdict": "",
            }
            for panel, entry in entries[:6]
        ]


def verdict_counts(claims: Sequence[Mapping[str, Plain]]) -> list[tuple[str, int]]:
    """How many claims have each verdict, for verdicts that occur."""
    found = [str(claim["verdict"]) for claim in claims]
    return [(verdict, found.count(verdict)) for verdict in MARKS if verdict in found]


def versions() -> dict[str, str]:
    """The versions of the packages that made a page."""
    packages = ("torch", "numpy", "scipy", "scikit-learn")
    own = {"python": platform.python_version(), "vaescope": vaescope.__version__}
    return own | {name: metadata.version(name) for name in packages}


def experiment_page(page: ExperimentPage) -> str:
    return render("experiment.html", page=page)


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
        return verdict_counts(self.claims or ())


def render(template: str, **values: object) -> str:
    """A page from a template; all text is escaped."""
    return _ENVIRONMENT.get_template(template).render(**values)


def index_page(entries: Sequence[IndexEntry], profile: str, *, comparison: bool = False) -> str:
    return render("index.html", entries=entries, profile=profile, versions=versions(), comparison=comparison)


def comparison_page(compared: Sequence[tuple[IndexEntry, Sequence[Mapping[str, Plain]]]], profile: str) -> str:
    """Our values next to the published ones: a section per experiment, a table per published panel."""
    return render("comparison.html", compared=compared, profile=profile, versions=versions())


def datasets_page() -> str:
    """The page of data sets: sample images, factors and official files."""
    import torch

    from vaescope.data.catalogue import DATASETS
    from vaescope.report.figures import contact_sheet, png_data_uri

    cards, samples = [], 32  # images of each data set
    for entry in DATASETS:
        renderer, official, picture = None if entry.renderer is None else entry.renderer(), entry.official, None
        factors: list[tuple[str, int, float, float]] = []
        if renderer is not None:
            factors = [(f.name, len(f.values), f.low, f.high) for f in renderer.factors]
            rows = torch.randint(len(renderer), (samples,), generator=torch.Generator().manual_seed(0))
            picture = png_data_uri(contact_sheet(renderer.images_at(rows).images, columns=samples // 2))
        elif official is not None:
            sizes = zip(official.factor_names, official.sizes, strict=True)
            factors = [(name, size, 0.0, size - 1.0) for name, size in sizes]
        description = entry.description[0].upper() + entry.description[1:]
        cards.append((entry.name, description, official, picture, factors))
    return render("datasets.html", cards=cards, samples=samples)
