"""MLflow: a run per member with its settings, history and results; one for the whole with claims and figures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

from vaescope.errors import InputError, RunError
from vaescope.jobs.tracking.folder import Finished, TrackedMember

KEY = "vaescope.member"
FOLDER = "vaescope.folder"
AT_ONCE = 500  # numbers in one request
LONGEST = 480  # characters of a parameter


def log_members(run: Finished, address: str) -> int:
    """Log members that this folder has not logged before; claims and figures go with the whole, and are renewed."""
    client, entities = _client(address)
    with _told(address):
        experiment = _experiment(client, run.name)
        known, begun = _known(client, experiment, run)
        for key, there in begun.items():
            if key:  # a member that was interrupted is logged anew
                client.delete_run(there)
        whole = known.get("") or begun.get("") or _begin(client, experiment, run, "", run.name, None)
        new = [member for member in run.members if member.key not in known]
        for member in new:
            _log(client, entities, run, member, _begin(client, experiment, run, member.key, member.key, whole))
        _log_whole(client, run, whole)
    return len(new)


def _client(address: str) -> tuple[Any, Any]:
    try:
        import mlflow.entities
        from mlflow import MlflowClient
    except ImportError:
        raise InputError(
            "MLflow is not installed; install vaescope's extra for it: pip install 'vaescope[track]'."
        ) from None
    with _told(address):
        return MlflowClient(tracking_uri=address), mlflow.entities


@contextmanager
def _told(address: str) -> Iterator[None]:
    """What MLflow raises, in one line; runs are kept whatever happens to their log."""
    try:
        yield
    except (InputError, RunError):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        raise RunError(f"cannot log to {address}: {reason}; the run itself is kept, track it again later.") from None


def _experiment(client: Any, name: str) -> str:
    found = client.get_experiment_by_name(f"vaescope/{name}")
    return str(found.experiment_id if found is not None else client.create_experiment(f"vaescope/{name}"))


def _known(client: Any, experiment: str, run: Finished) -> tuple[dict[str, str], dict[str, str]]:
    """Runs that are finished there and such that are not, by the member that they are of; the whole has no name."""
    finished: dict[str, str] = {}
    begun: dict[str, str] = {}
    token = None
    while True:
        page = client.search_runs([experiment], f"tags.`{FOLDER}` = '{_folder(run)}'", page_token=token)
        for one in page:
            known = finished if one.info.status == "FINISHED" else begun
            known[one.data.tags.get(KEY, "")] = one.info.run_id
        token = page.token
        if not token:
            return finished, begun


def _folder(run: Finished) -> str:
    return str(run.path.resolve()).replace("'", "_")


def _begin(client: Any, experiment: str, run: Finished, key: str, name: str, parent: str | None) -> str:
    tags = {KEY: key, FOLDER: _folder(run)} | ({"mlflow.parentRunId": parent} if parent else {})
    return str(client.create_run(experiment, run_name=name, tags=tags).info.run_id)


def _log(client: Any, entities: Any, run: Finished, member: TrackedMember, there: str) -> None:
    for some in _parts(_parameters({**run.settings, **member.cell}), 100):
        client.log_batch(there, params=[entities.Param(name, value) for name, value in some])
    metrics = [
        entities.Metric(_name(name), value, 0, epoch)
        for epoch, numbers in member.history
        for name, value in numbers.items()
    ]
    metrics += [entities.Metric(f"result.{_name(n)}", v, 0, len(member.history)) for n, v in member.numbers.items()]
    for some in _parts(metrics, AT_ONCE):
        client.log_batch(there, metrics=some)
    for name, value in member.words.items():
        client.set_tag(there, _name(name), value)
    client.set_terminated(there, "FINISHED")


def _log_whole(client: Any, run: Finished, there: str) -> None:
    if run.claims:
        client.log_dict(there, {"claims": run.claims}, "claims.json")
        client.log_metric(there, "claims.hold", float(sum(bool(c.get("holds")) for c in run.claims)))
        client.log_metric(there, "claims", float(len(run.claims)))
    for file in run.figures:
        client.log_artifact(there, str(file), "figures")
    if run.report is not None:
        client.log_artifact(there, str(run.report))
    client.log_dict(there, dict(run.settings), "settings.json")
    client.set_terminated(there, "FINISHED")


def _parameters(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(_name(name), _text(value)) for name, value in settings.items()]


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value, default=str))[:LONGEST]


def _name(name: str) -> str:
    """As MLflow takes names."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-. /") else "_" for c in name)


def _parts(values: list[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(values)
    while part := list(islice(rest, size)):
        yield part
