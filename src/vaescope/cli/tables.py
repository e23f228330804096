"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


def console() -> Console:
    return Console(highlight=False)


def table(*headings: str, title: str | None = None) -> Table:
    """Columns without lines around them."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(heading)
    return made


def rows_table(rows: Sequence[dict[str, Any]]) -> Table:
    """A row per dictionary, numbers in three digits."""
    made = table(*(rows[0] if rows else ()))
    for row in rows:
        made.add_row(*(_shown(value) for value in row.values()))
    return made


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "–" if value is None else escape(str(value))
