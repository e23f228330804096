"""Which members train together, and storing them in an order that survives a crash.

A stack is written to the run folder before it is trained. After a crash the same members train together again, from
their checkpoint, because the last bits of a stack's numbers may depend on its number of members.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

from vaescope.core.errors import RunError
from vaescope.models import VAE, Member
from vaescope.models.networks import Params
from vaescope.runs.files import malformed_as_run_error
from vaescope.runs.store import Cell, RunFolder, cell_key, row_key
from vaescope.training import MemberSpec


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
        run.adopt_checkpoint(stack)
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


def load_members(run: RunFolder, model: VAE, cells: Sequence[Cell], specs: Sequence[MemberSpec]) -> list[Member]:
    """The saved members of these cells, with their histories; refused if they do not fit the model."""
    histories, initial = _histories(run, cells), model.init([0])
    members = []
    for cell, spec in zip(cells, specs, strict=True):
        params, summary = run.load_member(cell)
        history = histories.get(cell_key(cell), {})
        _check_weights(run, cell, params, initial)
        _check_epochs(run, cell, history.pop("epoch", None), summary.epochs)
        members.append(
            Member(model, params, spec.seed, spec.beta, summary.used_precision, training=summary, history=history)
        )
    return members


def _check_weights(run: RunFolder, cell: Cell, params: Params, initial: Params) -> None:
    """Weights of version 0.2.0 have no checksum: check names, shapes, types and that all numbers are finite."""
    fits = all(name in params and params[name].shape == like.shape for name, like in initial.items())
    dtypes = {like.dtype for like in initial.values()}
    if not fits or not all(value.dtype in dtypes and bool(value.isfinite().all()) for value in params.values()):
        raise RunError(
            f"the weights of member {cell_key(cell)} in {run.path} are not those of the model in config.json; "
            "remove its .safetensors file to train it again."
        )


def _check_epochs(run: RunFolder, cell: Cell, found: Sequence[float] | None, epochs: int) -> None:
    if found is not None and list(found) != list(range(1, epochs + 1)):
        raise RunError(
            f"{run.path / 'history.parquet'} does not have epochs 1 to {epochs} of member {cell_key(cell)} in order; "
            "remove it to open the run without histories."
        )


def _histories(run: RunFolder, cells: Sequence[Cell]) -> dict[str, dict[str, list[float]]]:
    """The columns of `history.parquet` of every cell, by its key; the table is read once."""
    found: dict[str, dict[str, list[float]]] = {}
    names = list(cells[0]) if cells else []
    with malformed_as_run_error(run.path / "history.parquet"):
        for row in run.rows(cells, "history"):
            columns = found.setdefault(row_key(row, names), {})
            for name, value in row.items():
                if name not in names:
                    number = value if value is None else float(cast("float", value))
                    columns.setdefault(name, []).append(cast("float", number))
    return found
