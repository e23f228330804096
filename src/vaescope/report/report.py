"""`Report`: what every public analysis returns, with one way to print it, tabulate it and write it to files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from markupsafe import Markup

from vaescope.core.tables import Table, to_html
from vaescope.report.findings import RENAMED_CODES, Finding, worst_severity
from vaescope.report.page import Drawing, render, versions
from vaescope.report.wording import VERDICTS, Glosses
from vaescope.runs.files import json_data, write_json, write_text

T = TypeVar("T")


class _Default(Generic[T]):
    """The value of an attribute that a subclass neither sets nor declares; not a default value of a dataclass field."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __get__(self, instance: object | None, owner: type) -> T:
        if instance is None:
            raise AttributeError
        return self.value


class Report(ABC):
    """Findings and numbers about models or data.

    `print(report)` shows a short text, a notebook shows HTML, `summary()` is a table of rows, `to_frame` the same as a
    data frame, and `to_json` and `to_html` write files. `name`, `findings` and `skipped` may be fields of a dataclass
    (with `repr=False`) or properties.
    """

    label: ClassVar[str] = ""
    """What the report is called; the name of the class if empty."""
    unit: ClassVar[str] = "latents"
    """What the rows of the summary are about."""
    legend: str = ""
    """What the columns of the summary mean, for the page."""

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """What the report is about, such as the name of a model."""

        @property
        def findings(self) -> Sequence[Finding]:
            """What deserves attention, most severe first."""

        @property
        def skipped(self) -> Mapping[str, str]:
            """Analyses that could not be made, and why."""

    else:
        name, findings, skipped = _Default("model"), _Default(()), _Default({})

    @property
    def worst(self) -> str | None:
        """error, warning, note, or None without findings."""
        return worst_severity(self.findings)

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        return VERDICTS[self.worst]

    def coverage(self) -> str:
        """What was judged, and what was not and why, in a sentence each; empty if that is not in question."""
        return ""

    def find(self, code: str) -> Finding | None:
        """The first finding with this code; None if there is none.

        Args:
            code: such as `collapsed`; former codes are accepted for one release.
        """
        codes = (code, RENAMED_CODES.get(code))
        return next((finding for finding in self.findings if finding.code in codes), None)

    @abstractmethod
    def summary(self) -> Table:
        """The main numbers, a row each; prints as a table."""

    @abstractmethod
    def content(self) -> Mapping[str, object]:
        """Everything that `to_json` writes, as numbers, arrays, dataclasses and text."""

    def facts(self) -> list[tuple[str, str]]:
        """Single numbers with their labels."""
        return []

    def figures(self) -> list[Drawing]:
        """The figures of the page, as SVG with captions."""
        return []

    def page(self) -> str:
        """The HTML page."""
        return render("report.html", **self.page_values())

    def page_values(self) -> dict[str, object]:
        """What the template of the page shows; products with more to show add to it."""
        rows = self.summary()
        return {
            "kind": self._kind().lower(),
            "name": self.name,
            "verdict": self.verdict,
            "coverage": self.coverage(),
            "sentences": [],
            "findings": self.findings,
            "facts": self.facts(),
            "drawings": self.figures(),
            "columns": list(rows[0]) if rows else [],
            "rows": rows,
            "unit": self.unit,
            "legend": self.legend,
            "skipped": self.skipped,
            "gloss": Glosses(),
            "versions": versions(),
        }

    def to_frame(self, kind: str = "pandas") -> Any:
        """The rows of `summary` as a data frame.

        Args:
            kind: pandas, polars or arrow.
        """
        return self.summary().to_frame(kind)

    def to_data(self) -> dict[str, object]:
        """Everything as JSON data."""
        return {key: json_data(value) for key, value in self.content().items()}

    def to_json(self, path: str | Path) -> Path:
        """Write everything as JSON.

        Args:
            path: the file.
        """
        write_json(Path(path), self.to_data())
        return Path(path)

    def to_html(self, path: str | Path) -> Path:
        """Write the page: one file that loads nothing from the network.

        Args:
            path: the file.
        """
        write_text(Path(path), self.page())
        return Path(path)

    def _repr_html_(self) -> str:
        """What a notebook shows: verdict, findings with advice, and the table."""
        item = Markup("<li><b>{}</b>: {} {} <i>{}</i></li>")
        findings = Markup().join(item.format(f.severity, f.title, f.evidence, f.advice) for f in self.findings)
        verdict = f"{self.verdict} {self.coverage()}".strip()
        head = Markup("<div><b>{} of {}</b>: {}<ul>{}</ul>").format(self._kind(), self.name, verdict, findings)
        return f"{head}{to_html(self.summary())}</div>"

    def __repr__(self) -> str:
        count = len(self.findings)
        lines = [f"{self._kind()} of {self.name}: {count or 'no'} finding{'s' * (count != 1)}"]
        for f in self.findings:
            lines += [f"  {f.severity}: {f.title} ({f.code})", f"    {f.evidence}", f"    What to do: {f.advice}"]
            lines += [f"        {line}" for line in f.line.splitlines()]
        lines += [f"  {self.coverage()}"] if self.coverage() else []
        return "\n".join(lines + [f"  left out: {what} ({why})" for what, why in self.skipped.items()])

    def _kind(self) -> str:
        return self.label or type(self).__name__
