"""Which members train together, and storing them in an order that survives a crash.

A stack is written to the run folder before it is trained. After a crash the same members train together again, from
their checkpoint, because the last bits of a stack's numbers may depend on its number of members.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vaescope.models import VAE, Member
from vaescope.runs.store import Cell, RunFolder


def pending_stacks(
    run: RunFolder, model: VAE, cells: Sequence[Cell], max_members: int | None = None
) -> Iterator[list[Cell]]:
    """Cells that remain to be trained, one stack at a time: first an interrupted stack, if there is one.

    Args:
        run: the run folder.
        model: of all cells; members that do not gain from stacking form stacks of one.
        cells: all cells that should be trained.
        max_members: largest size of a stack.
    """
    run.discard_finished_stack()
    pending = run.pending_stack(cells)
    rest = [cell for cell in cells if cell not in pending and not run.has_weights(cell)]
    size = (max_members or len(rest) or 1) if model.networks.stackable else 1
    for stack in [pending] * bool(pending) + [rest[first : first + size] for first in range(0, len(rest), size)]:
        run.start_stack(stack)
        yield stack


def save_members(run: RunFolder, cells: Sequence[Cell], members: Sequence[Member]) -> None:
    """Save histories, then weights, and only then delete the checkpoint."""
    new = [(cell, member) for cell, member in zip(cells, members, strict=True) if not run.has_weights(cell)]
    if new:
        rows = [row for cell, member in new for row in member.history_rows(cell)]
        run.add_rows(rows, [cell for cell, _ in new], "history")
    for cell, member in new:
        run.save_member(cell, member.params, member.summary())
    run.finish_stack()
