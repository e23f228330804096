"""Keeping trained members in a run folder, in the order that a crash cannot spoil."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from vaescope.models import VAE, Member
from vaescope.runs.store import Cell, RunFolder

T = TypeVar("T")


def keep_members(run: RunFolder, cells: Sequence[Cell], members: Sequence[Member]) -> None:
    """History, then weights; only then is the state of their training let go."""
    pairs = list(zip(cells, members, strict=True))
    run.add([row for cell, member in pairs for row in member.epochs(cell)], cells, "history")
    for cell, member in pairs:
        run.save_weights(cell, member.params, member.summary())
    run.unfinished_state.clear()


def trained_together(model: VAE, missing: Sequence[T]) -> list[list[T]]:
    """What is trained before anything is kept: a whole stack, or, where members train one by one, each alone."""
    if not missing:
        return []
    return [list(missing)] if model.stacked else [[one] for one in missing]
