"""A run folder: settings, a row per member, histories, claims, figures, weights, and a page.

A member's history is written before its weights, and its weights before its row in
`results.parquet`: a row is never without them, and a member with weights is never trained again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from vaescope.errors import InputError, RunError
from vaescope.runs.files import Row, as_run, read_json, read_rows, remove_leftovers, write_bytes, write_json, write_rows
from vaescope.runs.lock import locked

Cell = dict[str, Any]
Identity = tuple[Any, ...]
CHECKPOINT_SECONDS = 60.0  # at least, between two states of an unfinished stack


def cell_key(cell: Mapping[str, Any]) -> str:
    """A name for a cell, good for a file.

    >>> cell_key({"precision": 1000.0, "seed": 3})
    'precision=1000_seed=3'
    """
    return "_".join(f"{name}={_short(value) if isinstance(value, float) else value}" for name, value in cell.items())


def _short(value: float) -> str:
    """Six digits where they are all there is."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


class RunFolder:
    """One experiment's folder, tied to the settings it was made with."""

    def __init__(
        self, path: Path, config: Mapping[str, Any], *, checkpoint_seconds: float = CHECKPOINT_SECONDS
    ) -> None:
        """Open or begin a run; refuse a folder that was made with other settings (more seeds are fine)."""
        if (path / "sweep.json").exists():
            raise RunError(f"{path} holds a sweep; choose another --out.")
        self.path, self.config, self.checkpoint_seconds = path, config, checkpoint_seconds
        file = path / "config.json"
        known = read_json(file) if file.exists() else None
        if known is not None:
            with as_run(file):
                _refuse_other_settings(path, known, config)
        if known != config:
            write_json(file, config)

    @classmethod
    @contextmanager
    def held(
        cls, path: Path, config: Mapping[str, Any], *, checkpoint_seconds: float = CHECKPOINT_SECONDS
    ) -> Iterator[RunFolder]:
        """The folder for one process alone, without what a killed one was just writing."""
        if not (math.isfinite(checkpoint_seconds) and checkpoint_seconds >= 0):
            raise InputError(f"the time between two states must be some seconds, got {checkpoint_seconds}.")
        with locked(path):
            run = cls(path, config, checkpoint_seconds=checkpoint_seconds)
            remove_leftovers(path)
            yield run

    # the stack that is being trained ----------------------------------------------------------

    def begin(self, cells: Sequence[Cell]) -> None:
        """Write down who is trained side by side."""
        write_json(self._begun, list(cells))

    def begun(self, cells: Sequence[Cell]) -> list[Cell]:
        """The stack that was begun and not ended, if it is one of these cells alone and lacks a member."""
        if not self._begun.exists():
            return []
        found = read_json(self._begun)
        sound = isinstance(found, list) and all(isinstance(cell, dict) and cell in cells for cell in found)
        return found if sound and not all(self.has_weights(cell) for cell in found) else []

    def tidy(self) -> None:
        """End a stack whose members are all kept: its process was killed when it was about to."""
        if not self._begun.exists():
            return
        found = read_json(self._begun)
        if isinstance(found, list) and all(isinstance(cell, dict) and self.has_weights(cell) for cell in found):
            self.end()

    def end(self) -> None:
        """All of its members are kept."""
        self.unfinished_state.clear()
        self._begun.unlink(missing_ok=True)

    @property
    def _begun(self) -> Path:
        return self.path / "unfinished.json"

    # tables -----------------------------------------------------------------------------------

    def rows(self, cells: Sequence[Cell], table: str = "results") -> list[Row]:
        """The rows that these cells have in a table, in the order of the cells."""
        columns = list(cells[0]) if cells else []
        known: dict[Identity, list[Row]] = {}
        for row in read_rows(self._table(table)):
            known.setdefault(_identity(row, columns), []).append(row)
        return [row for cell in cells for row in known.get(_identity(cell, columns), [])]

    def unfinished(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells without a row in the results."""
        columns = list(cells[0]) if cells else []
        done = {_identity(row, columns) for row in self.rows(cells)}
        return [cell for cell in cells if _identity(cell, columns) not in done]

    def add(self, rows: Sequence[Row], cells: Sequence[Cell], table: str = "results") -> None:
        """Append the rows of these cells; rows they had before are replaced."""
        columns = list(cells[0])
        renewed = {_identity(cell, columns) for cell in cells}
        kept = [row for row in read_rows(self._table(table)) if _identity(row, columns) not in renewed]
        write_rows(self._table(table), [*kept, *rows])

    def _table(self, name: str) -> Path:
        return self.path / f"{name}.parquet"

    # weights ----------------------------------------------------------------------------------

    def _weights(self, cell: Cell) -> Path:
        return self.path / "weights" / f"{cell_key(cell)}.safetensors"

    @property
    def unfinished_state(self) -> StateFile:
        """Where training keeps its state while it runs."""
        return StateFile(self.path / "unfinished.safetensors", self.checkpoint_seconds)

    def has_weights(self, cell: Cell) -> bool:
        return self._weights(cell).exists()

    def take_over(self, cells: Sequence[Cell], elder: Path) -> None:
        """Members that another experiment of the same settings has trained, if it has: they are not trained twice."""
        file = elder / "config.json"
        if not file.exists() or _differing(read_json(file), self.config):
            return
        other = RunFolder(elder, read_json(file))
        for cell in cells:
            if other.has_weights(cell) and not self.has_weights(cell):
                self.add(other.rows([cell], "history"), [cell], "history")
                self.save_weights(cell, *other.load_weights(cell))

    def save_weights(self, cell: Cell, params: Mapping[str, Tensor], summary: Mapping[str, Any]) -> None:
        """A trained member: its weights, and how its training went, in one file."""
        tensors = {name: value.contiguous() for name, value in params.items()}
        write_bytes(self._weights(cell), save(tensors, metadata={"summary": json.dumps(summary)}))

    def load_weights(self, cell: Cell) -> tuple[dict[str, Tensor], dict[str, Any]]:
        path = self._weights(cell)
        try:
            with safe_open(path, framework="pt") as file:
                params = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (a file, not a dict)
                return params, json.loads(file.metadata()["summary"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError, MemoryError) as error:
            raise RunError(f"cannot read {path}: {error}; remove it to train this member anew.") from None


class StateFile:
    """The state of training that was not finished: one file, replaced as a whole (a `Keeper`)."""

    def __init__(self, path: Path, seconds: float = CHECKPOINT_SECONDS) -> None:
        self.path, self.seconds = path, seconds

    def save(self, tensors: Mapping[str, Tensor], text: str) -> None:
        write_bytes(self.path, save(dict(tensors), metadata={"state": text}))

    def load(self) -> tuple[dict[str, Tensor], str] | None:
        """The state, or None where there is none that can be read."""
        try:
            with safe_open(self.path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()["state"]  # noqa: SIM118
        except (OSError, SafetensorError, KeyError, TypeError, ValueError, RuntimeError, MemoryError):
            return None

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)


def _identity(row: Mapping[str, Any], columns: Sequence[str]) -> Identity:
    """What tells cells apart: the values of their columns."""
    return tuple(row.get(name) for name in columns)


def _refuse_other_settings(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    if old.get("experiment") != new["experiment"]:
        raise RunError(
            f"{path} holds a run of {old.get('experiment')!r}, not of {new['experiment']!r}; choose another --out."
        )
    differing = _differing(old, new)
    if differing:
        raise RunError(
            f"{path} was made with other settings ({'; '.join(differing)}); choose another --out or remove it."
        )


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Settings that differ, in words; more or fewer seeds are no difference."""
    before, after = old.get("settings", {}), new["settings"]
    return [
        f"{name} was {before.get(name)}, is {after.get(name)}"
        for name in {**before, **after}
        if name != "seeds" and before.get(name) != after.get(name)
    ]
