"""Rows of results as a data frame of the library that a user works with, or as HTML for a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from vaescope.checks import choice
from vaescope.extras import require

FRAMES = ("pandas", "polars", "arrow")


def to_frame(rows: Sequence[Mapping[str, object]], kind: str = "pandas") -> Any:
    """A data frame with a row per mapping; a column that a row does not have is empty there.

    Args:
        rows: results, such as `Diagnosis.summary()` or `Evaluation.rows`.
        kind: pandas, polars or arrow.

    >>> to_frame([{"latent": 0, "kl": 2.5}], "arrow").column_names
    ['latent', 'kl']
    """
    choice("kind", kind, FRAMES)
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
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row.values())}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "–" if value is None else html.escape(str(value))
