"""What every diagnosis has: findings, and a page and a file with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from vaescope.diagnosis.glossary import GLOSSARY, Glosses, anchor
from vaescope.diagnosis.page import FOLDED, PIXELS, VERDICTS
from vaescope.diagnosis.table import LatentTable
from vaescope.diagnosis.text import as_text
from vaescope.findings import Finding, worst_severity
from vaescope.report.figures import svg
from vaescope.report.page import render, versions
from vaescope.runs.files import json_data, write_json, write_text


class Chart(NamedTuple):
    name: str
    figure: Figure
    caption: str

    def drawn(self) -> tuple[Markup, str, int]:
        """The figure as the page takes it: SVG, caption and width."""
        return Markup(svg(self.figure)), self.caption, round(PIXELS * self.figure.get_figwidth())


@dataclass(frozen=True, eq=False, repr=False)
class Reported(ABC):
    """A diagnosis without latents that have posteriors."""

    name: str
    findings: list[Finding]
    samples: int
    skipped: dict[str, str]

    @abstractmethod
    def summary(self) -> LatentTable:
        """The main table."""

    @abstractmethod
    def facts(self) -> list[tuple[str, str]]:
        """Single numbers with their labels."""

    @abstractmethod
    def charts(self) -> Sequence[Chart]:
        """Figures."""

    @abstractmethod
    def numbers(self) -> dict[str, object]:
        """Everything that was measured."""

    @property
    def worst(self) -> str | None:
        """error, warning, note, or None."""
        return worst_severity(self.findings)

    def to_data(self) -> dict[str, object]:
        """Findings and numbers as JSON data."""
        head = {"name": self.name, "samples": self.samples, "worst": self.worst, "skipped": self.skipped}
        data = head | {"findings": [finding.to_data() for finding in self.findings]} | self.numbers()
        return {key: json_data(value) for key, value in data.items()}

    def to_json(self, path: str | Path) -> Path:
        """Write findings and numbers."""
        write_json(Path(path), self.to_data())
        return Path(path)

    def to_html(self, path: str | Path) -> Path:
        """Write the page: one file that loads nothing from the network."""
        write_text(Path(path), self._html())
        return Path(path)

    def _html(self) -> str:
        rows = self.summary()
        words = ("±",)
        return render(
            "diagnosis.html",
            name=self.name,
            samples=self.samples,
            verdict=VERDICTS[self.worst],
            findings=self.findings,
            facts=self.facts(),
            columns=list(rows[0]),
            rows=rows,
            folded=FOLDED,
            legend="How often each code was chosen.",
            unit="codes",
            glossary=[(word, anchor(word), GLOSSARY[word]) for word in words],
            gloss=Glosses(set(GLOSSARY) - set(words)),
            pictures={},
            charts={chart.name: chart.drawn() for chart in self.charts()},
            bounds=[],
            scores=[],
            identified=[],
            skipped=self.skipped,
            about={"samples": str(self.samples)},
            versions=versions(),
        )

    def __repr__(self) -> str:
        return as_text(self.name, self.findings, self.skipped)
