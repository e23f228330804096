"""Do two runs of the same experiments agree? For changes that must not change numbers.

    python -m benchmarks.same_results OLD NEW [--rename old=new ...]

OLD and NEW are folders that `vaescope reproduce --out` wrote. Columns of `results.parquet` are flattened to one number
each ("limits.variance.0"; a list column equals columns with the index at the end of their name), then compared row by
row. The exit code is 1 if a value differs by more than 1e-6 of its size.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

TOLERANCE = 1e-6


def flat(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Names and scalars of a nested value."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from flat(f"{name}.{key}", part)
    elif isinstance(value, list):
        for k, part in enumerate(value):
            yield from flat(f"{name}.{k}", part)
    else:
        yield re.sub(r"_(\d+)$", r".\1", name), value


def rows(folder: Path, renamed: dict[str, str]) -> list[dict[str, object]]:
    """Flattened rows of an experiment, with old names replaced by new ones."""

    def new_name(name: str) -> str:
        return next((new + name[len(old) :] for old, new in renamed.items() if name.startswith(old)), name)

    table = pq.read_table(folder / "results.parquet").to_pylist()
    return [dict(pair for name, value in row.items() for pair in flat(new_name(name), value)) for row in table]


def difference(a: object, b: object) -> float:
    """Relative difference of two cells; 0 where they are the same value, inf where they cannot be compared."""
    if a == b:
        return 0.0
    if not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
        return math.inf
    if math.isnan(a) and math.isnan(b):
        return 0.0
    return abs(a - b) / max(abs(a), abs(b))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument(
        "--rename", nargs="*", default=[], metavar="OLD=NEW", help="columns, by the start of their name"
    )
    arguments = parser.parse_args()
    renamed = dict(pair.split("=", 1) for pair in arguments.rename)
    table = Table(
        "experiment", "rows", "values", "same bits", "largest difference", "column of it", "missing", box=None
    )
    worst_of_all = 0.0
    for folder in sorted(p.parent for p in arguments.old.glob("*/results.parquet")):
        old, new = rows(folder, renamed), rows(arguments.new / folder.name, {})
        if len(old) != len(new):
            sys.exit(f"{folder.name}: {len(old)} rows in {arguments.old}, {len(new)} in {arguments.new}.")
        filled, known = (list(dict.fromkeys(n for row in own for n in row if row[n] is not None)) for own in (old, new))
        names, missing = [n for n in filled if n in known], [n for n in filled if n not in known]
        found = [(difference(a.get(n), b.get(n)), n) for a, b in zip(old, new, strict=True) for n in names]
        worst, where = max(found)
        worst_of_all = max(worst_of_all, worst, math.inf if missing else 0.0)
        same = sum(d == 0 for d, _ in found)
        table.add_row(
            folder.name,
            str(len(old)),
            str(len(found)),
            str(same),
            f"{worst:.1e}",
            where if worst else "",
            ", ".join(missing),
        )
    Console(width=150).print(table)
    sys.exit(worst_of_all > TOLERANCE)


if __name__ == "__main__":
    main()
