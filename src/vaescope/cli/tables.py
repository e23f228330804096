"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def console() -> Console:
    return Console(highlight=False)


def table(*headings: str, title: str | None = None) -> Table:
    """A table without borders."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading)
    return made


def rows_table(rows: Sequence[Mapping[str, object]]) -> Table:
    """A table with a row per mapping, numbers with three digits."""
    made = table(*(rows[0] if rows else ()))
    for row in rows:
        made.add_row(*(_cell_text(value) for value in row.values()))
    return made


def _cell_text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "–" if value is None else escape(str(value))
