"""Export run folders to experiment trackers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from vaescope.core.errors import InputError, RunError, check_installed, require
from vaescope.core.serialization import Plain
from vaescope.products.watch.row import Row as Row_live
from vaescope.products.watch.watch import WatchedMembers
from vaescope.runs.files import Row, malformed_as_run_error, read_json, read_rows, write_text
from vaescope.runs.store import cell_key


@dataclass(frozen=True)
class TrackedMember:
    """One row of the results with its epochs."""

    key: str
    cell: Mapping[str, Plain]
    numbers: Mapping[str, float]
    texts: Mapping[str, str]
    history: Sequence[tuple[int, Mapping[str, float]]]


@dataclass(frozen=True)
class TrackedRun:
    """Everything that is finished in a run folder."""

    path: Path
    name: str
    settings: Mapping[str, Plain]
    members: list[TrackedMember]
    claims: list[Mapping[str, Plain]]

    @property
    def figures(self) -> list[Path]:
        return sorted((self.path / "figures").glob("*"))

    @property
    def report(self) -> Path | None:
        return found if (found := self.path / "report.html").exists() else None


def read_run(path: Path) -> TrackedRun:
    """The finished part of a run folder."""
    if not (path / "config.json").exists():
        raise InputError(f"{path} is not a run folder: it has no config.json.")
    with malformed_as_run_error(path):
        return _read(path)


def _read(path: Path) -> TrackedRun:
    config = read_json(path / "config.json")
    if not isinstance(config, dict) or not isinstance(config.get("settings"), dict):
        raise InputError(f"{path / 'config.json'} does not describe a run.")
    rows, epochs = read_rows(path / "results.parquet"), read_rows(path / "history.parquet")
    columns = _cell_columns(rows, epochs)
    by_cell: dict[str, list[Row]] = {}
    for row in epochs:
        by_cell.setdefault(_key(row, columns), []).append(row)
    claims = read_json(path / "claims.json") if (path / "claims.json").exists() else []
    if not isinstance(claims, list) or not all(isinstance(claim, dict) for claim in claims):
        raise RunError(f"{path / 'claims.json'} is not a list of claims; remove it and run the experiment again.")
    return TrackedRun(
        path,
        str(config.get("experiment")),
        config["settings"] | {"profile": config.get("profile")},
        [_member(row, columns, by_cell) for row in rows],
        claims,
    )


def _cell_columns(rows: Sequence[Row], epochs: Sequence[Row]) -> list[str]:
    """The columns that identify members: those before the epoch in histories; without histories, the usual settings."""
    if not rows:
        return []
    if not epochs:
        return [name for name in ("precision", "beta", "seed") if name in rows[0]] or list(rows[0])[:1]
    names = list(epochs[0])
    return [name for name in names[: names.index("epoch")] if name in rows[0]] if "epoch" in names else names[:1]


def _member(row: Row, columns: Sequence[str], by_cell: Mapping[str, list[Row]]) -> TrackedMember:
    cell, key = {name: row.get(name) for name in columns}, _key(row, columns)
    rest = {name: value for name, value in row.items() if name not in columns and value is not None}
    history = [
        (int(str(epoch["epoch"])), _finite({k: v for k, v in epoch.items() if k not in (*columns, "epoch")}))
        for epoch in by_cell.get(key, [])
    ]
    texts = {name: str(value) for name, value in rest.items() if isinstance(value, str | bool)}
    return TrackedMember(key, cell, _finite(rest), texts, history)


def _key(row: Row, columns: Sequence[str]) -> str:
    return cell_key({name: value for name in columns if isinstance(value := row.get(name), str | int | float)})


def _finite(values: Mapping[str, Plain]) -> dict[str, float]:
    """The finite numbers."""
    return {
        name: float(v)
        for name, v in values.items()
        if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)
    }


TENSORBOARD = "tensorboard:"
WANDB = "wandb:"
MLFLOW = ("http://", "https://", "sqlite:", "postgresql", "mysql", "file:", "databricks")


def export_run(folder: str | Path, target: str) -> int:
    """Export the finished members of a run or sweep folder; returns how many were new there.

    Args:
        folder: a run folder or the folder of a sweep.
        target: an MLflow tracking address (`http://127.0.0.1:5000`, `sqlite:///mlflow.db`), or `tensorboard:FOLDER`.
    """
    check_target(target)
    if (Path(folder) / "sweep.json").exists():
        return sum(export_run(run, target) for run in runs_of_sweep(Path(folder)))
    run = read_run(Path(folder))
    if target.startswith(WANDB):  # it receives rows while members are trained
        return 0
    if target.startswith(TENSORBOARD):
        return write_events(run, Path(target.removeprefix(TENSORBOARD)))

    return log_members(run, target)


def check_target(target: str) -> None:
    """The target is one that is supported, and its library is installed."""
    if target.startswith(TENSORBOARD):
        if target == TENSORBOARD:
            raise InputError("tensorboard: needs a folder, such as tensorboard:events.")
        needed = "tensorboard"
    elif target.startswith(WANDB):
        if target == WANDB:
            raise InputError("wandb: needs a project, such as wandb:my-vae.")
        needed = "wandb"
    else:
        if not target.startswith(MLFLOW):
            raise InputError(
                f"--track must be tensorboard:FOLDER, wandb:PROJECT or an MLflow address ({', '.join(MLFLOW)}), got "
                f"{target!r}."
            )
        needed = "mlflow"
    check_installed(needed, f"--track {target}")


def runs_of_sweep(folder: Path) -> list[Path]:
    """The run folders of a sweep that were started."""
    return sorted(file.parent for file in (folder / "stacks").rglob("config.json"))


PREFIX = "watch"


class TensorBoardRows:
    """Event files that TensorBoard reads while they grow."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def __call__(self, row: Row_live) -> None:
        for name, value in row.numbers().items():
            self._writer.add_scalar(f"{PREFIX}/{name}", value, row.step)
        for finding in row.findings:
            self._writer.add_text("findings", f"{finding.title} {finding.evidence} {finding.advice}", row.step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflowRows:
    """Metrics of a run of an MLflow server."""

    def __init__(self, address: str, experiment: str, name: str, tags: dict[str, str]) -> None:

        self._client, self._entities, self._run = open_run(address, experiment, name, tags)

    def __call__(self, row: Row_live) -> None:
        metrics = [
            self._entities.Metric(f"{PREFIX}/{name}", value, int(1000 * row.seconds), row.step)
            for name, value in row.numbers().items()
        ]
        tags = [
            self._entities.RunTag(f"finding.{finding.code}", f"step {finding.step}: {finding.title}")
            for finding in row.findings
        ]
        self._client.log_batch(self._run, metrics=metrics, tags=tags)

    def close(self) -> None:
        """The run stays open: the export of the finished member completes it."""


class WandbRows:
    """Metrics of a Weights & Biases run; set WANDB_MODE=offline to write files only."""

    def __init__(self, project: str, name: str) -> None:
        wandb = require("wandb", "logging to Weights & Biases")
        self._run: Any = wandb.init(project=project, name=name, reinit="create_new")

    def __call__(self, row: Row_live) -> None:
        self._run.log({f"{PREFIX}/{name}": value for name, value in row.numbers().items()}, step=row.step)
        for finding in row.findings:
            self._run.summary[f"findings/{finding.code}"] = f"step {finding.step}: {finding.title}"

    def close(self) -> None:
        self._run.finish()


Rows = TensorBoardRows | MLflowRows | WandbRows


def live(target: str, name: str = "watch") -> Rows:
    """A logger for `vs.Watch(..., loggers=[...])`.

    Args:
        target: `tensorboard:FOLDER`, the address of an MLflow server, or `wandb:PROJECT`.
        name: of the run.
    """
    check_target(target)
    if target.startswith(TENSORBOARD):
        return TensorBoardRows(Path(target.removeprefix(TENSORBOARD)) / name)
    if target.startswith(WANDB):
        return WandbRows(target.removeprefix(WANDB), name)
    return MLflowRows(target, "vaescope/watch", name, {})


def live_members(target: str, experiment: str, folder: Path) -> Callable[[str], Rows]:
    """Loggers for the members of a run folder, for `vs.watch.WatchedMembers`.

    They write where `export_run` will put the finished members.

    Args:
        target: as for `live`.
        experiment: `fit`, or the name of an experiment.
        folder: the run folder.
    """
    check_target(target)

    def logger(name: str) -> Rows:
        if target.startswith(TENSORBOARD):
            root = Path(target.removeprefix(TENSORBOARD))
            return TensorBoardRows(root / experiment / folder_name(folder) / name / "live")
        if target.startswith(WANDB):
            return WandbRows(target.removeprefix(WANDB), f"{folder.name}/{name}")

        return MLflowRows(target, f"vaescope/{experiment}", name, member_tags(folder, name))

    return logger


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


VERDICTS = ("holds", "refuted", "undecided")
KEY = "vaescope.member"
FOLDER = "vaescope.folder"
PARENT = "mlflow.parentRunId"
METRICS_PER_REQUEST = 500
PARAMETERS_PER_REQUEST = 100
MAX_PARAMETER_LENGTH = 480
T = TypeVar("T")


def log_members(run: TrackedRun, address: str) -> int:
    """Log the members that this folder has not logged before; claims and figures of the parent run are updated."""
    client, entities = _client(address)
    with _one_line_errors(address):
        experiment = _experiment(client, f"vaescope/{run.name}")
        finished, unfinished = _logged_runs(client, experiment, run)
        parent = finished.get("") or unfinished.get("") or _create(client, experiment, run, "", run.name, None)
        new = [member for member in run.members if member.key not in finished]
        for member in new:
            # a run with live rows, or one whose logging was interrupted, is completed
            begun = unfinished.get(member.key) or _create(client, experiment, run, member.key, member.key, parent)
            client.set_tag(begun, PARENT, parent)
            _log(client, entities, run, member, begun)
        _log_parent(client, run, parent)
    return len(new)


def _client(address: str) -> tuple[Any, Any]:
    mlflow = require("mlflow", "--track with an MLflow address")
    entities = require("mlflow.entities", "--track with an MLflow address")
    with _one_line_errors(address):
        return mlflow.MlflowClient(tracking_uri=address), entities


@contextmanager
def _one_line_errors(address: str) -> Iterator[None]:
    """Errors of MLflow as one line; the run folder is not affected by them."""
    try:
        yield
    except (InputError, RunError):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        raise RunError(
            f"cannot log to {address}: {reason}; the run folder is unchanged, track it again later."
        ) from None


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name))
        except Exception:  # another process created it meanwhile
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


def _logged_runs(client: Any, experiment: str, run: TrackedRun) -> tuple[dict[str, str], dict[str, str]]:
    """MLflow runs of this folder by member, the finished ones and the others; the parent run has the key ""."""
    finished: dict[str, str] = {}
    unfinished: dict[str, str] = {}
    token = None
    while True:
        page = client.search_runs([experiment], f"tags.`{FOLDER}` = '{_path_text(run.path)}'", page_token=token)
        for found in page:
            group = finished if found.info.status == "FINISHED" else unfinished
            group[found.data.tags.get(KEY, "")] = found.info.run_id
        token = page.token
        if not token:
            return finished, unfinished


def _path_text(folder: Path) -> str:
    return str(folder.resolve()).replace("'", "_")


def _create(client: Any, experiment: str, run: TrackedRun, key: str, name: str, parent: str | None) -> str:
    tags = member_tags(run.path, key) | ({PARENT: parent} if parent else {})
    return str(client.create_run(experiment, run_name=name, tags=tags).info.run_id)


def member_tags(folder: Path, key: str) -> dict[str, str]:
    """The tags by which the run of a member is found again; the parent run has the key ""."""
    return {KEY: key, FOLDER: _path_text(folder)}


def open_run(address: str, experiment: str, name: str, tags: Mapping[str, str]) -> tuple[Any, Any, str]:
    """A client, MLflow's entities, and a run for live rows: an unfinished one with the same tags, or a new one."""
    client, entities = _client(address)
    with _one_line_errors(address):
        experiment_id = _experiment(client, experiment)
        wanted = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        found = client.search_runs([experiment_id], f"attributes.status = 'RUNNING' and {wanted}") if tags else []
        run = found[0] if found else client.create_run(experiment_id, run_name=name, tags=dict(tags))
        return client, entities, str(run.info.run_id)


def _log(client: Any, entities: Any, run: TrackedRun, member: TrackedMember, run_id: str) -> None:
    for part in _parts(_parameters({**run.settings, **member.cell}), PARAMETERS_PER_REQUEST):
        client.log_batch(run_id, params=[entities.Param(name, value) for name, value in part])
    metrics = [
        entities.Metric(_name(name), value, 0, epoch)
        for epoch, numbers in member.history
        for name, value in numbers.items()
    ]
    metrics += [entities.Metric(f"result.{_name(n)}", v, 0, len(member.history)) for n, v in member.numbers.items()]
    for part in _parts(metrics, METRICS_PER_REQUEST):
        client.log_batch(run_id, metrics=part)
    for name, value in member.texts.items():
        client.set_tag(run_id, _name(name), value)
    client.set_terminated(run_id, "FINISHED")


def _log_parent(client: Any, run: TrackedRun, run_id: str) -> None:
    if run.claims:
        client.log_dict(run_id, {"claims": run.claims}, "claims.json")
        for verdict in VERDICTS:
            count = sum(claim.get("verdict") == verdict for claim in run.claims)
            client.log_metric(run_id, f"claims.{verdict}", float(count))
        client.log_metric(run_id, "claims", float(len(run.claims)))
    for file in run.figures:
        client.log_artifact(run_id, str(file), "figures")
    if run.report is not None:
        client.log_artifact(run_id, str(run.report))
    client.log_dict(run_id, dict(run.settings), "settings.json")
    client.set_terminated(run_id, "FINISHED")


def _parameters(settings: Mapping[str, Plain]) -> list[tuple[str, str]]:
    return [(_name(name), _text(value)) for name, value in settings.items()]


def _text(value: Plain) -> str:
    return (value if isinstance(value, str) else json.dumps(value, default=str))[:MAX_PARAMETER_LENGTH]


def _name(name: str) -> str:
    """A name with the characters that MLflow allows."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-. /") else "_" for c in name)


def _parts(values: list[T], size: int) -> Iterator[list[T]]:
    rest = iter(values)
    while part := list(islice(rest, size)):
        yield part


DONE = "finished.txt"  # written last: a folder without it was interrupted and is written again


def write_events(run: TrackedRun, folder: Path) -> int:
    """Write the members that have no complete event files yet; returns how many."""
    require("tensorboard", "writing event files")
    from torch.utils.tensorboard import SummaryWriter

    new = 0
    for member in run.members:
        events = folder / run.name / folder_name(run.path) / member.key
        if (events / DONE).exists():
            continue
        try:
            for old in events.glob("events.*"):
                old.unlink()
            _write(SummaryWriter(str(events)), run, member)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise RunError(
                f"cannot write {events}: {reason}; the run folder is unchanged, track it again later."
            ) from None
        write_text(events / DONE, member.key + "\n")
        new += 1
    return new


def folder_name(folder: Path) -> str:
    """The name of a run folder with a hash of its path, so that folders of the same name stay apart."""
    path = str(folder.resolve())
    return f"{folder.resolve().name}-{hashlib.sha256(path.encode()).hexdigest()[:6]}"


def _write(writer: Any, run: TrackedRun, member: TrackedMember) -> None:
    with writer:
        writer.add_text("settings", json.dumps({**run.settings, **member.cell}, indent=2, default=str))
        if run.claims:
            lines = [f"* {c.get('verdict')}: {c.get('sentence')}" for c in run.claims]
            writer.add_text("claims", "\n".join(lines))
        for epoch, numbers in member.history:
            for name, value in numbers.items():
                writer.add_scalar(name, value, epoch)
        for name, value in member.numbers.items():
            writer.add_scalar(f"result/{name}", value, len(member.history))


__all__ = ["export_run", "live", "live_members"]
