"""`Report`: what every public analysis returns, with one way to print it, tabulate it and write it to files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vaescope.core.tables import Table
from vaescope.report.findings import Finding, worst_severity
from vaescope.report.page import Drawing
from vaescope.runs.files import json_data, write_json, write_text


class Report(ABC):
    """Findings and numbers about models or data.

    `print(report)` shows a short text, a notebook shows HTML, `summary()` is a table of rows, `to_frame` the same as a
    data frame, and `to_json` and `to_html` write files.
    """

    @property
    def findings(self) -> Sequence[Finding]:
        """What deserves attention, most severe first."""
        return ()

    @property
    def skipped(self) -> Mapping[str, str]:
        """Analyses that could not be made, and why."""
        return {}

    @property
    def worst(self) -> str | None:
        """error, warning, note, or None without findings."""
        return worst_severity(self.findings)

    @abstractmethod
    def summary(self) -> Table:
        """The main numbers, a row each; prints as a table."""

    @abstractmethod
    def content(self) -> Mapping[str, object]:
        """Everything that `to_json` writes, as numbers, arrays, dataclasses and text."""

    @abstractmethod
    def page(self) -> str:
        """The HTML page."""

    def figures(self) -> list[Drawing]:
        """The figures of the page, as SVG with captions."""
        return []

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
        """What a notebook shows: the table; products with more to show override this."""
        return self.summary().to_html()
