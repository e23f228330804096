"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
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
        made.add_row(*(f"{v:.3g}" if isinstance(v, float) else "–" if v is None else str(v) for v in row.values()))
    return made
