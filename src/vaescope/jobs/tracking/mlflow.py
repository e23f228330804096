"""MLflow: a run per member with its settings, history and results, and a parent run with claims and figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from vaescope.errors import InputError, RunError
from vaescope.extras import require
from vaescope.jobs.tracking.folder import TrackedMember, TrackedRun
from vaescope.plain import Plain

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
