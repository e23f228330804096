"""A run folder: settings, results, histories, weights, checkpoint, and what a report adds.

A member's history is written before its weights, and its weights before its row in `results.parquet`: a row always has
weights, and a member with weights is never trained again.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError, RunError
from vaescope.models import TrainingSummary
from vaescope.runs.files import (
    Row,
    exists,
    is_locked,
    locked,
    malformed_as_run_error,
    one_line,
    read_json,
    read_rows,
    read_tensors,
    remove_partial_files,
    write_json,
    write_rows,
    write_tensors,
)
from vaescope.settings import CHECKPOINT_SECONDS

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


FORMAT_VERSION = 3
CellValue = str | int | float | bool
Cell = Mapping[str, CellValue]
"""One setting of an experiment: column names with values."""


def cell_key(cell: Cell) -> str:
    """A name for a cell that can be part of a file name.

    >>> cell_key({"precision": 1000.0, "seed": 3})
    'precision=1000_seed=3'
    """
    return "_".join(f"{name}={_format(value) if isinstance(value, float) else value}" for name, value in cell.items())


def row_key(row: Row, columns: Sequence[str]) -> str:
    """The name of the cell that a row of a table belongs to.

    Args:
        row: of results or of a history.
        columns: those that identify cells; others, and values that no cell can have, are ignored.

    >>> row_key({"seed": 3, "epoch": 1, "elbo": -2.0}, ["seed"])
    'seed=3'
    """
    return cell_key({name: value for name in columns if isinstance(value := row.get(name), str | int | float)})


def _format(value: float) -> str:
    """Six digits if they are exact, otherwise all."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


class RunFolder:
    """The folder of one experiment, bound to its settings.

    Opening a folder that was made with other settings, or by another version of the format, raises `RunError`; a
    different number of seeds is allowed.

    Args:
        path: the folder; it is created if necessary.
        config: `experiment`, `settings` and further plain data; written to `config.json`.
        checkpoint_seconds: seconds between two checkpoints, at least.
    """

    def __init__(
        self, path: Path, config: Mapping[str, object], *, checkpoint_seconds: float = CHECKPOINT_SECONDS
    ) -> None:
        if (path / "sweep.json").exists():
            raise RunError(f"{path} holds a sweep; choose another --out.")
        self.path, self.checkpoint_seconds = path, checkpoint_seconds
        self.config: Mapping[str, object] = {"version": FORMAT_VERSION, **config}
        file = path / "config.json"
        stored = read_config(path) if exists(file) else None
        if stored is not None:
            with malformed_as_run_error(file):
                _refuse_other_settings(path, stored, self.config)
        if stored != self.config:
            write_json(file, self.config)

    @classmethod
    @contextmanager
    def locked(
        cls, path: Path, config: Mapping[str, object], *, checkpoint_seconds: float = CHECKPOINT_SECONDS
    ) -> Iterator[RunFolder]:
        """The folder with its lock held, without partial files of killed processes."""
        validation.number("checkpoint_seconds", checkpoint_seconds, minimum=0.0)
        with locked(path):
            run = cls(path, config, checkpoint_seconds=checkpoint_seconds)
            remove_partial_files(path)
            yield run

    # the stack in training --------------------------------------------------------------------

    @property
    def _stack_file(self) -> Path:
        return self.path / "unfinished.json"

    @property
    def checkpoint_store(self) -> CheckpointFile:
        """Where the stack in training stores its checkpoint."""
        return CheckpointFile(self.path / "unfinished.safetensors", self.checkpoint_seconds)

    def start_stack(self, cells: Sequence[Cell]) -> None:
        """Write down which cells train together."""
        write_json(self._stack_file, [dict(cell) for cell in cells])

    def pending_stack(self, cells: Sequence[Cell]) -> list[Cell]:
        """The interrupted stack, if it consists of these cells and lacks a member; otherwise empty."""
        stack = self._read_stack()
        if stack is None or not all(cell in cells for cell in stack) or self._has_all_weights(stack):
            return []
        return list({cell_key(cell): cell for cell in stack}.values())

    def adopt_checkpoint(self, cells: Sequence[Cell]) -> None:
        """Continue this stack from where a part of this run was interrupted in training it, if one was."""
        own = self.checkpoint_store.path
        for folder in part_folders(self.path):
            if not own.exists() and self.has_same_settings(folder) and not is_locked(folder):
                part = RunFolder(folder, read_config(folder))
                if part._read_stack() == list(cells) and part.checkpoint_store.path.exists():
                    part.checkpoint_store.path.replace(own)

    def discard_finished_stack(self) -> None:
        """Finish an interrupted stack all of whose members were saved."""
        stack = self._read_stack()
        if stack is not None and self._has_all_weights(stack):
            self.finish_stack()

    def finish_stack(self) -> None:
        """Delete checkpoint and list of the stack; call after all of its members are saved."""
        self.checkpoint_store.clear()
        self._stack_file.unlink(missing_ok=True)

    def _read_stack(self) -> list[Cell] | None:
        """The cells written by `start_stack`; None if there are none or the file cannot be read."""
        try:
            found = read_json(self._stack_file) if exists(self._stack_file) else None
        except RunError:
            return None
        return found if isinstance(found, list) and all(isinstance(cell, dict) for cell in found) else None

    def _has_all_weights(self, cells: Sequence[Cell]) -> bool:
        return all(self.has_weights(cell) for cell in cells)

    # tables -----------------------------------------------------------------------------------

    def _table(self, name: str) -> Path:
        return self.path / f"{name}.parquet"

    def rows(self, cells: Sequence[Cell], table: str = "results") -> list[dict[str, object]]:
        """The rows of these cells in a table, in the order of the cells."""
        columns = list(cells[0]) if cells else []
        by_cell: dict[tuple[object, ...], list[dict[str, object]]] = {}
        with malformed_as_run_error(self._table(table)):
            for row in read_table(self.path, table, self.config):
                by_cell.setdefault(_identity(row, columns), []).append(row)
        return [row for cell in cells for row in by_cell.get(_identity(cell, columns), [])]

    def cells_without_results(self, cells: Sequence[Cell]) -> list[Cell]:
        """The cells that have no row in the results."""
        columns = list(cells[0]) if cells else []
        done = {_identity(row, columns) for row in self.rows(cells)}
        return [cell for cell in cells if _identity(cell, columns) not in done]

    def add_rows(self, rows: Sequence[Row], cells: Sequence[Cell], table: str = "results") -> None:
        """Append rows of these cells to a table; their earlier rows are replaced."""
        columns = list(cells[0])
        replaced = {_identity(cell, columns) for cell in cells}
        with malformed_as_run_error(self._table(table)):  # such as text in a column of numbers
            stored = read_table(self.path, table, self.config)
            others = [row for row in stored if _identity(row, columns) not in replaced]
            write_rows(self._table(table), [*others, *rows], _owner_of_tables(self.config))

    # members ----------------------------------------------------------------------------------

    def _weights(self, cell: Cell) -> Path:
        return self.path / "weights" / f"{cell_key(cell)}.safetensors"

    def has_weights(self, cell: Cell) -> bool:
        return self._weights(cell).exists()

    def save_member(self, cell: Cell, params: Mapping[str, Tensor], summary: TrainingSummary) -> None:
        """Weights and training summary of a member, in one file that names the member and the settings."""
        write_tensors(self._weights(cell), params, {"summary": json.dumps(summary.to_dict()), **self._owner(cell)})

    def _owner(self, cell: Cell) -> dict[str, str]:
        """What weights belong to, so that files that were swapped or copied from elsewhere are noticed."""
        return {"member": cell_key(cell), "settings": _settings_hash(self.config)}

    def load_member(self, cell: Cell) -> tuple[dict[str, Tensor], TrainingSummary]:
        """Weights and training summary of a member."""
        path = self._weights(cell)
        params, metadata = read_tensors(path)
        for name, owner in self._owner(cell).items():
            if metadata.get(name, owner) != owner:  # files of version 0.2.0 do not name it
                other = f"member {metadata[name]}" if name == "member" else "a run with other settings"
                raise RunError(f"{path} has the weights of {other}; remove it to train this member again.")
        try:
            return params, TrainingSummary.from_dict(json.loads(metadata["summary"]))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            reason = one_line(error)
            raise RunError(f"cannot read {path}: {reason}; remove it to train this member again.") from None

    def import_members(self, cells: Sequence[Cell], source: Path) -> None:
        """Copy members that another run with the same settings has trained; does nothing if there is no such run."""
        if not (source / "config.json").exists() or _differences(read_config(source), self.config):
            return
        other = RunFolder(source, read_config(source))
        for cell in cells:
            if other.has_weights(cell) and not self.has_weights(cell):
                self.add_rows(other.rows([cell], "history"), [cell], "history")
                self.save_member(cell, *other.load_member(cell))

    def has_same_settings(self, source: Path) -> bool:
        """Whether a folder holds a run of the same experiment with the same settings; any other folder does not."""
        return has_settings(source, self.config)

    def remove_imported(self, cells: Sequence[Cell], source: Path) -> None:
        """Delete the folder of a part, unless it has results or a member, finished or not, that this folder lacks.

        A part that another process solves is left alone.

        Args:
            cells: some of this experiment; the columns of a cell identify the rows of results.
            source: the folder of the part.
        """
        if is_locked(source):
            return
        part, columns = RunFolder(source, read_config(source)), list(cells[0])
        weights = [path.name for path in (source / "weights").glob("*.safetensors")]
        measured = {_identity(row, columns) for row in read_table(self.path, "results", self.config)}
        if (
            self._has_all_weights(part._read_stack() or [])
            and all((self.path / "weights" / name).exists() for name in weights)
            and all(_identity(row, columns) in measured for row in read_table(source, "results", part.config))
        ):
            shutil.rmtree(source, ignore_errors=True)  # what cannot be deleted was imported all the same


class CheckpointFile:
    """A `CheckpointStore` in one file that is replaced atomically."""

    def __init__(self, path: Path, interval_seconds: float = CHECKPOINT_SECONDS) -> None:
        self.path, self.interval_seconds = path, interval_seconds

    def save(self, tensors: Mapping[str, Tensor], text: str) -> None:
        write_tensors(self.path, tensors, {"state": text})

    def load(self) -> tuple[dict[str, Tensor], str] | None:
        if not exists(self.path):
            return None
        tensors, metadata = read_tensors(self.path, needs_checksum=True)
        return tensors, metadata.get("state", "")

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)


# settings of a folder -------------------------------------------------------------------------


def has_settings(folder: Path, config: Mapping[str, object]) -> bool:
    """Whether a folder holds a run of the same experiment with the same settings; any other folder does not."""
    try:
        stored = read_config(folder)
        return stored.get("experiment") == config["experiment"] and not _differences(stored, config)
    except (RunError, InputError):
        return False


def read_table(folder: Path, name: str, config: Mapping[str, object] | None = None) -> list[dict[str, object]]:
    """The rows of a table of a run folder, none if it does not exist; refused if they are of other settings.

    Args:
        folder: of the run.
        name: `results` or `history`.
        config: of the run; by default that of the folder.
    """
    path = folder / f"{name}.parquet"
    if not exists(path):
        return []
    with malformed_as_run_error(folder / "config.json"):
        owner = _owner_of_tables(read_json(folder / "config.json") if config is None else config)
    return read_rows(path, owner)


def _owner_of_tables(config: Mapping[str, object]) -> str:
    return f"{config.get('experiment')} {_settings_hash(config)}"


def _settings_hash(config: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(_compared(config), sort_keys=True).encode()).hexdigest()


def read_config(folder: Path) -> dict[str, object]:
    """The content of `config.json`; refuses other versions of the format."""
    file = folder / "config.json"
    config = read_json(file)
    if not isinstance(config, dict):
        raise RunError(f"{file} does not hold the settings of a run; choose another --out or remove it.")
    version = config.get("version", 1)
    if version != FORMAT_VERSION:
        raise RunError(
            f"{folder} was written by {_age(version)} version of vaescope (format {version}); "
            "choose another --out or remove it."
        )
    return config


def _age(version: object) -> str:
    return "a later" if isinstance(version, int) and version > FORMAT_VERSION else "an earlier"


def _identity(row: Mapping[str, object], columns: Sequence[str]) -> tuple[object, ...]:
    """The values that identify a cell."""
    return tuple(row.get(name) for name in columns)


def _refuse_other_settings(path: Path, old: Mapping[str, object], new: Mapping[str, object]) -> None:
    if old.get("experiment") != new["experiment"]:
        raise RunError(
            f"{path} holds a run of {old.get('experiment')!r}, not of {new['experiment']!r}; choose another --out."
        )
    if differences := _differences(old, new):
        raise RunError(
            f"{path} was made with other settings ({'; '.join(differences)}); choose another --out or remove it."
        )


def _differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Settings that differ, as text."""
    before, after = _compared(old), _compared(new)
    return [
        f"{name} was {before.get(name)}, is {after.get(name)}"
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _compared(config: Mapping[str, object]) -> dict[str, object]:
    """The settings that all work in a folder must share, by dotted names: all but the number of seeds.

    >>> _compared({"settings": {"seeds": 2, "model": {"beta": 1.0}, "patience": None}})
    {'model.beta': 1}
    """
    flat = _flattened(_settings(config))
    return {name: _plain(value) for name, value in flat.items() if name != "seeds" and value is not None}


def _plain(value: object) -> object:
    """The value, with whole numbers as integers: 1.0 and 1 are the same setting."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _flattened(settings: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested settings by their dotted names."""
    flat: dict[str, object] = {}
    for name, value in settings.items():
        flat |= _flattened(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _settings(config: Mapping[str, object]) -> Mapping[str, object]:
    settings = config.get("settings", {})
    if not isinstance(settings, Mapping):
        raise InputError(f"the settings of a run must be a mapping, got {type(settings).__name__}.")
    return settings
