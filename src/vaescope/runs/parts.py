"""Parts of a run: shares of its members that several processes train at a time, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

PARTS = "parts"
T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """Every `count`-th member of a run, from `index` on: neighbouring members take about the same time."""

    index: int
    count: int

    def folder(self, run: Path) -> Path:
        """The folder of this part.

        Args:
            run: the folder of the whole run.
        """
        return run / PARTS / f"{self.index}-of-{self.count}"

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """What belongs to this part.

        Args:
            items: something for every member of the run.

        >>> Part(1, 2).share("abcde")
        'bd'
        """
        return items[self.index :: self.count]


def part_folders(run: Path) -> list[Path]:
    """The folders of all parts that were started.

    Args:
        run: the folder of the whole run.
    """
    return sorted(file.parent for file in run.glob(f"{PARTS}/*/config.json"))
