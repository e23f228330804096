"""Log members to TensorBoard, MLflow or Weights & Biases: rows while they are trained, results when they have finished.

Each tracker has one writer, which logs the rows of a watch (`live`, `live_members`) and finished members
(`export_run`).
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vaescope.core.errors import InputError, RunError, check_installed, require
from vaescope.core.serialization import Plain
from vaescope.products.watch.row import Row as WatchRow
from vaescope.products.watch.watch import WatchedMembers
from vaescope.runs.files import Row, malformed_as_run_error, read_json, write_text
from vaescope.runs.store import read_table, row_key

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch.utils.tensorboard import SummaryWriter

# what a run folder holds ----------------------------------------------------------------------


@dataclass(frozen=True)
class TrackedMember:
    """One row of the results with its epochs."""

    key: str
    settings: Mapping[str, Plain]
    """Of the run and of this member."""
    numbers: Mapping[str, float]
    texts: Mapping[str, str]
    history: Sequence[tuple[int, Mapping[str, float]]]
    """Epochs with what was measured at their end."""


@dataclass(frozen=True)
class TrackedRun:
    """Everything that is finished in a run folder."""

    path: Path
    name: str
    settings: Mapping[str, Plain]
    members: list[TrackedMember]
    claims: list[Mapping[str, Plain]]


def read_run(path: Path) -> TrackedRun:
    """The finished part of a run folder."""
    if not (path / "config.json").exists():
        raise InputError(f"{path} is not a run folder: it has no config.json.")
    with malformed_as_run_error(path):
        config = read_json(path / "config.json")
        if not isinstance(config, dict) or not isinstance(config.get("settings"), dict):
            raise InputError(f"{path / 'config.json'} does not describe a run.")
        claims = read_json(path / "claims.json") if (path / "claims.json").exists() else []
        if not isinstance(claims, list) or not all(isinstance(claim, dict) for claim in claims):
            raise RunError(f"{path / 'claims.json'} is not a list of claims; remove it and run the experiment again.")
        rows, epochs = (read_table(path, name, config) for name in ("results", "history"))
        columns = _cell_columns(rows, epochs)
        histories: dict[str, list[Row]] = {}
        for row in epochs:
            histories.setdefault(row_key(row, columns), []).append(row)
        settings = config["settings"] | {"profile": config.get("profile")}
        members = [_member(row, columns, settings, histories.get(row_key(row, columns), [])) for row in rows]
    return TrackedRun(path, str(config.get("experiment")), settings, members, claims)


def _cell_columns(rows: Sequence[Row], epochs: Sequence[Row]) -> list[str]:
    """The columns that identify members: those before the epoch in histories; without histories, the usual settings."""
    if not rows:
        return []
    if not epochs:
        return [name for name in ("precision", "beta", "seed") if name in rows[0]] or list(rows[0])[:1]
    names = list(epochs[0])
    return [name for name in names[: names.index("epoch")] if name in rows[0]] if "epoch" in names else names[:1]


def _member(row: Row, columns: Sequence[str], settings: Mapping[str, Plain], epochs: Sequence[Row]) -> TrackedMember:
    measured = {name: value for name, value in row.items() if name not in columns and value is not None}
    return TrackedMember(
        key=row_key(row, columns),
        settings={**settings, **{name: row.get(name) for name in columns}},
        numbers=_finite(measured),
        texts={name: str(value) for name, value in measured.items() if isinstance(value, str | bool)},
        history=[
            (int(str(epoch["epoch"])), _finite({k: v for k, v in epoch.items() if k not in (*columns, "epoch")}))
            for epoch in epochs
        ],
    )


def _finite(values: Mapping[str, Plain]) -> dict[str, float]:
    """The finite numbers."""
    return {
        name: float(v)
        for name, v in values.items()
        if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)
    }


# writers --------------------------------------------------------------------------------------


def check_target(target: str) -> tuple[str, str]:
    """The library that a target needs, which is installed, and the folder, project or address there."""
    library, _, place = target.partition(":")
    if library not in ("tensorboard", "wandb"):
        library, place = "mlflow", target
        addresses = ("http://", "https://", "sqlite:", "postgresql", "mysql", "file:", "databricks")
        if not target.startswith(addresses):
            raise InputError(
                f"--track must be tensorboard:FOLDER, wandb:PROJECT or an MLflow address ({', '.join(addresses)}), got "
                f"{target!r}."
            )
    elif not place:
        needed = {"tensorboard": "a folder, such as tensorboard:events", "wandb": "a project, such as wandb:my-vae"}
        raise InputError(f"{library}: needs {needed[library]}.")
    check_installed(library, f"--track {target}")
    return library, place


@contextmanager
def _one_line_errors(target: str) -> Iterator[None]:
    """Errors of a tracker as one line; the run folder is not affected by them."""
    try:
        yield
    except (InputError, RunError):
        raise
    except Exception as error:
        system = error.strerror if isinstance(error, OSError) else None
        reason = (str(system).lower() if system else str(error)).partition("\n")[0][:200]
        raise RunError(
            f"cannot log to {target}: {reason}; the run folder is unchanged, track it again later."
        ) from None


Steps = Sequence[tuple[int, Mapping[str, float]]]
"""Numbers by name, of one or several steps or epochs."""


class Writer(ABC):
    """One run of a tracker; as a function, a logger of a watch."""

    result = "result/"
    """How the names of results begin."""

    def __init__(self, target: str) -> None:
        self.target = target

    @abstractmethod
    def numbers(self, steps: Steps, milliseconds: int = 0) -> None:
        """Log numbers, with the time since the beginning."""

    @abstractmethod
    def text(self, name: str, text: str, step: int) -> None:
        """Log a text."""

    @abstractmethod
    def close(self) -> None:
        """End the connection."""

    def settings(self, values: Mapping[str, Plain]) -> None:
        self.text("settings", json.dumps(values, indent=2, default=str), 0)

    def __call__(self, row: WatchRow) -> None:
        """Log a row of a watch."""
        with _one_line_errors(self.target):
            numbers = {f"watch/{name}": value for name, value in row.numbers().items()}
            self.numbers([(row.step, numbers)], int(1000 * row.seconds))
            for found in row.findings:
                text = f"step {found.step}: {found.title} {found.evidence} {found.advice}"
                self.text(f"finding.{found.code}", text, row.step)

    def member(self, member: TrackedMember) -> None:
        """Log a finished member."""
        end, results = len(member.history), {f"{self.result}{name}": v for name, v in member.numbers.items()}
        self.settings(member.settings)
        self.numbers([*member.history, (end, results)])
        for name, text in member.texts.items():
            self.text(name, text, end)


class TensorBoardWriter(Writer):
    """Event files that TensorBoard reads while they grow."""

    def __init__(self, target: str, folder: Path) -> None:
        super().__init__(target)
        require("tensorboard", "writing event files")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: SummaryWriter = SummaryWriter(str(folder))

    def numbers(self, steps: Steps, milliseconds: int = 0) -> None:
        for step, values in steps:
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

    def text(self, name: str, text: str, step: int) -> None:
        self._writer.add_text(name, text, step)

    def __call__(self, row: WatchRow) -> None:
        super().__call__(row)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbWriter(Writer):
    """A Weights & Biases run; set WANDB_MODE=offline to write files only."""

    def __init__(self, target: str, project: str, name: str) -> None:
        super().__init__(target)
        wandb = require("wandb", "logging to Weights & Biases")
        self._run = wandb.init(project=project, name=name, reinit="create_new")

    def numbers(self, steps: Steps, milliseconds: int = 0) -> None:
        for step, values in steps:
            self._run.log(dict(values), step=step)

    def text(self, name: str, text: str, step: int) -> None:
        self._run.summary[name] = text

    def close(self) -> None:
        self._run.finish()


MEMBER, FOLDER, PARENT = "vaescope.member", "vaescope.folder", "mlflow.parentRunId"  # tags of MLflow runs


class MLflowRuns:
    """The MLflow runs of an experiment that belong to a run folder: one per member, and their parent.

    Args:
        address: of the MLflow server.
        experiment: its name there, without `vaescope/`.
        folder: the run folder; None for a run that belongs to none.
    """

    def __init__(self, address: str, experiment: str, folder: Path | None) -> None:
        mlflow = require("mlflow", "--track with an MLflow address")
        self.entities = require("mlflow.entities", "--track with an MLflow address")
        self.client: MlflowClient = mlflow.MlflowClient(tracking_uri=address)
        self.address, self.experiment = address, self._experiment_id(f"vaescope/{experiment}")
        self.folder = None if folder is None else str(folder.resolve()).replace("'", "_")
        self.finished: dict[str, str] = {}
        """Run ids by member; the parent has the key ""."""
        self.unfinished: dict[str, str] = {}
        """Runs with live rows, and those whose logging was interrupted."""
        token, more = None, folder is not None
        while more:
            page = self.client.search_runs([self.experiment], f"tags.`{FOLDER}` = '{self.folder}'", page_token=token)
            for found in page:
                group = self.finished if found.info.status == "FINISHED" else self.unfinished
                group[found.data.tags.get(MEMBER, "")] = found.info.run_id
            token = page.token
            more = bool(token)

    def _experiment_id(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self.client.create_experiment(name))
            except Exception:  # another process created it meanwhile
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def open(self, member: str, name: str) -> str:
        """The id of the unfinished run of this member, or of a new one."""
        if member in self.unfinished:
            return self.unfinished[member]
        tags = {} if self.folder is None else {MEMBER: member, FOLDER: self.folder}
        return str(self.client.create_run(self.experiment, run_name=name, tags=tags).info.run_id)


class MLflowWriter(Writer):
    """A run of an MLflow server. It stays open until the finished member is logged."""

    result = "result."

    def __init__(self, runs: MLflowRuns, run_id: str) -> None:
        super().__init__(runs.address)
        self._client, self._entities, self._run = runs.client, runs.entities, run_id

    def numbers(self, steps: Steps, milliseconds: int = 0) -> None:
        flat = [(_allowed(name), value, milliseconds, step) for step, row in steps for name, value in row.items()]
        for first in range(0, len(flat), 500):  # a request may have 1000
            metrics = [self._entities.Metric(*values) for values in flat[first : first + 500]]
            self._client.log_batch(self._run, metrics=metrics)

    def text(self, name: str, text: str, step: int) -> None:
        self._client.set_tag(self._run, _allowed(name), text)

    def settings(self, values: Mapping[str, Plain]) -> None:
        texts = {name: v if isinstance(v, str) else json.dumps(v, default=str) for name, v in values.items()}
        parameters = [self._entities.Param(_allowed(name), text[:480]) for name, text in texts.items()]
        for first in range(0, len(parameters), 100):  # a request may have no more
            self._client.log_batch(self._run, params=parameters[first : first + 100])

    def member(self, member: TrackedMember) -> None:
        super().member(member)
        self._client.set_terminated(self._run, "FINISHED")

    def close(self) -> None:
        """Nothing to do: the client holds no connection."""


def _allowed(name: str) -> str:
    """A name with the characters that MLflow allows."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-. /") else "_" for c in name)


# while members are trained --------------------------------------------------------------------


def live(target: str, name: str = "watch") -> Writer:
    """A logger for `vs.Watch(..., loggers=[...])`.

    Args:
        target: `tensorboard:FOLDER`, the address of an MLflow server, or `wandb:PROJECT`.
        name: of the run.
    """
    return _live(target, "watch", None, name)


def live_members(target: str, experiment: str, folder: Path) -> Callable[[str], Writer]:
    """Loggers for the members of a run folder, for `vs.watch.WatchedMembers`.

    They write where `export_run` will put the finished members.

    Args:
        target: as for `live`.
        experiment: `fit`, or the name of an experiment.
        folder: the run folder.
    """
    check_target(target)
    return lambda name: _live(target, experiment, folder, name)


def _live(target: str, experiment: str, folder: Path | None, name: str) -> Writer:
    """A writer of live rows: next to the finished member, if it belongs to a run folder."""
    library, place = check_target(target)
    if library == "tensorboard":
        own = Path(place) / name if folder is None else _events(Path(place), experiment, folder, name) / "live"
        return TensorBoardWriter(target, own)
    if library == "wandb":
        return WandbWriter(target, place, name if folder is None else f"{folder.name}/{name}")
    with _one_line_errors(target):
        runs = MLflowRuns(target, experiment, folder)
        return MLflowWriter(runs, runs.open(name, name))


def _events(root: Path, experiment: str, folder: Path, member: str) -> Path:
    """The folder for the events of a member; a hash of the run's path keeps runs of the same name apart."""
    run = folder.resolve()
    return root / experiment / f"{run.name}-{hashlib.sha256(str(run).encode()).hexdigest()[:6]}" / member


def live_observer(
    target: str | None, experiment: str, folder: Path, message: Callable[[str], object]
) -> WatchedMembers | None:
    """An observer that logs the members of a run folder while they are trained; None without a target.

    Args:
        target: as for `live`.
        experiment: `fit`, or the name of an experiment.
        folder: the run folder.
        message: called with a line per finding.
    """
    if target is None:
        return None
    return WatchedMembers(live_members(target, experiment, folder), message=message)


# when they have finished ----------------------------------------------------------------------


def export_run(folder: str | Path, target: str) -> int:
    """Export the finished members of a run or sweep folder; returns how many were new there.

    Args:
        folder: a run folder or the folder of a sweep.
        target: an MLflow tracking address (`http://127.0.0.1:5000`, `sqlite:///mlflow.db`), or `tensorboard:FOLDER`.
    """
    library, place = check_target(target)
    path = Path(folder)
    if (path / "sweep.json").exists():
        runs = sorted(file.parent for file in (path / "stacks").rglob("config.json"))
        return sum(export_run(run, target) for run in runs)
    run = read_run(path)
    with _one_line_errors(target):
        if library == "tensorboard":
            return _export_events(run, target, Path(place))
        return _export_to_mlflow(run, target) if library == "mlflow" else 0  # wandb has received live rows


def _export_events(run: TrackedRun, target: str, root: Path) -> int:
    """Write the members that have no complete event files yet; returns how many."""
    folders = {member.key: _events(root, run.name, run.path, member.key) for member in run.members}
    done = "finished.txt"  # written last: a folder without it was interrupted and is written again
    new = [member for member in run.members if not (folders[member.key] / done).exists()]
    for member in new:
        for old in folders[member.key].glob("events.*"):
            old.unlink()
        with closing(TensorBoardWriter(target, folders[member.key])) as writer:
            writer.member(member)
            if run.claims:
                lines = [f"* {claim.get('verdict')}: {claim.get('sentence')}" for claim in run.claims]
                writer.text("claims", "\n".join(lines), 0)
        write_text(folders[member.key] / done, member.key + "\n")
    return len(new)


def _export_to_mlflow(run: TrackedRun, address: str) -> int:
    """Log the members that are not finished there; claims and figures of the parent run are updated."""
    runs = MLflowRuns(address, run.name, run.path)
    client, parent = runs.client, runs.finished.get("") or runs.open("", run.name)
    new = [member for member in run.members if member.key not in runs.finished]
    for member in new:
        own = runs.open(member.key, member.key)
        client.set_tag(own, PARENT, parent)
        MLflowWriter(runs, own).member(member)
    if run.claims:
        verdicts = [claim.get("verdict") for claim in run.claims]
        counts = {f"claims.{name}": float(verdicts.count(name)) for name in ("holds", "refuted", "undecided")}
        MLflowWriter(runs, parent).numbers([(0, counts | {"claims": float(len(verdicts))})])
        client.log_dict(parent, {"claims": run.claims}, "claims.json")
    for file in sorted((run.path / "figures").glob("*")):
        client.log_artifact(parent, str(file), "figures")
    if (report := run.path / "report.html").exists():
        client.log_artifact(parent, str(report))
    client.log_dict(parent, dict(run.settings), "settings.json")
    client.set_terminated(parent, "FINISHED")
    return len(new)


__all__ = ["export_run", "live", "live_members"]
