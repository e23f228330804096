"""Which members are trained side by side, and keeping them in the order that a crash cannot spoil.

A stack is written down before it is trained. After a crash the same members are trained side by side again, from the
state that was kept: numbers of a stack may depend, in their last bits, on how many members it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vaescope.models import VAE, Member
from vaescope.runs.store import Cell, RunFolder


def stacks(run: RunFolder, model: VAE, cells: Sequence[Cell], most: int | None = None) -> Iterator[list[Cell]]:
    """What has to be trained, a stack at a time (of so many members at most): first the one that was begun, if any.

    Where members train one by one anyway, each is a stack of its own.
    """
    run.tidy()
    begun = run.begun(cells)
    rest = [cell for cell in cells if cell not in begun and not run.has_weights(cell)]
    size = (most or len(rest) or 1) if model.stacked else 1
    for group in [begun] * bool(begun) + [rest[first : first + size] for first in range(0, len(rest), size)]:
        run.begin(group)
        yield group


def keep_members(run: RunFolder, cells: Sequence[Cell], members: Sequence[Member]) -> None:
    """History, then weights; only then is the state of their training let go."""
    new = [pair for pair in zip(cells, members, strict=True) if not run.has_weights(pair[0])]
    if new:
        run.add([row for cell, member in new for row in member.epochs(cell)], [cell for cell, _ in new], "history")
    for cell, member in new:
        run.save_weights(cell, member.params, member.summary())
    run.end()
