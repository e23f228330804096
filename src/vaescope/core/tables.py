"""Rows of results: printed with aligned columns, as HTML for notebooks, as a data frame of any library."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from vaescope.core.checks import choice
from vaescope.core.errors import require

SHOWN = 20  # rows that are printed


class Table(list[dict[str, object]]):
    """Rows as dictionaries with the same columns.

    Args:
        rows: results with the same columns.
        note: a sentence below the table.

    >>> Table([{"latent": 3, "KL": 1.25}, {"latent": 0, "KL": None}], note="In nats.")
    latent    KL
    3       1.25
    0          –
    In nats.
    """

    def __init__(self, rows: Iterable[dict[str, object]] = (), note: str = "") -> None:
        super().__init__(rows)
        self.note = note

    def __repr__(self) -> str:
        if not self:
            return "\n".join(["no rows", *([self.note] if self.note else [])])
        lines = [list(self[0]), *([_cell(value) for value in row.values()] for row in self[:SHOWN])]
        widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
        text = [
            "  ".join(c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        ]
        rest = [f"… and {len(self) - SHOWN} more"] if len(self) > SHOWN else []
        return "\n".join(line.rstrip() for line in text + rest + ([self.note] if self.note else []))

    def to_frame(self, kind: str = "pandas") -> Any:
        """The rows as a data frame.

        Args:
            kind: pandas, polars or arrow.
        """
        return to_frame(self, kind)

    def to_html(self) -> str:
        """The rows as an HTML table, text escaped."""
        return to_html(self) + (f"<p>{html.escape(self.note)}</p>" if self.note else "")

    _repr_html_ = to_html


def to_frame(rows: Sequence[Mapping[str, object]], kind: str = "pandas") -> Any:
    """A data frame with a row per mapping; a column that a row does not have is empty there.

    Args:
        rows: results, such as `Diagnosis.summary()` or `Evaluation.rows`.
        kind: pandas, polars or arrow.

    >>> to_frame([{"latent": 0, "kl": 2.5}], "arrow").column_names
    ['latent', 'kl']
    """
    choice("kind", kind, ("pandas", "polars", "arrow"))
    if kind == "pandas":
        return require("pandas", "to_frame()").DataFrame(list(rows))
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    return table if kind == "arrow" else require("polars", "to_frame('polars')").from_arrow(table)


def to_html(rows: Sequence[Mapping[str, object]]) -> str:
    """An HTML table for notebooks; numbers with three digits, text escaped.

    Args:
        rows: results with the same columns.

    >>> to_html([{"latent": 0, "kl": 2.5, "kind": "<active>"}])[-66:]
    '<td>0</td><td>2.5</td><td>&lt;active&gt;</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{html.escape(name)}</th>" for name in (rows[0] if rows else ()))
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(_cell(v))}</td>' for v in row.values())}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
