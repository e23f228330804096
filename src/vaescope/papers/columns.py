"""Reading rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vaescope.runs.files import Row


def column(rows: Sequence[Row], name: str, **where: Any) -> list[Any]:
    """The values of one column in the rows that match, without missing ones.

    >>> column([{"a": 1, "b": 2}, {"a": 1, "b": None}, {"a": 2, "b": 5}], "b", a=1)
    [2]
    """
    matching = (row for row in rows if all(row.get(key) == value for key, value in where.items()))
    return [row[name] for row in matching if row.get(name) is not None]
