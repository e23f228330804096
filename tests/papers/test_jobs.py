"""Experiments as tasks: several at a time give the same results as one, and a failure does not stop the others."""

import json

import pytest

from vaescope.cli import dispatch
from vaescope.core.errors import RunError
from vaescope.jobs.tasks import ProgressRelay
from vaescope.runs.files import read_rows, write_json
from vaescope.training import NoProgress
from vaescope_papers.catalogue import find_experiment
from vaescope_papers.experiment import RunOptions
from vaescope_papers.run import reproduce

NAMES = ("principal-axes", "beta-precision")


def test_two_at_a_time_give_the_same_results_as_one(tmp_path, capsys):
    assert dispatch(["reproduce", *NAMES, "--jobs", "2", "--seeds", "1", "--out", str(tmp_path / "two")]) == 0
    printed = capsys.readouterr().out
    for name in NAMES:
        assert name in printed
        assert (tmp_path / "two" / name / "report.html").exists()
    assert "index.html" in printed
    axes = find_experiment("principal-axes").load()
    reproduce(axes, RunOptions(seeds=1), out=tmp_path / "one", progress=NoProgress())
    rows = [read_rows(tmp_path / where / "principal-axes" / "results.parquet")[0] for where in ("one", "two")]
    assert rows[0]["total_variance"] == pytest.approx(rows[1]["total_variance"])
    index = (tmp_path / "two" / "index.html").read_text()
    assert all(f"{name}/report.html" in index for name in NAMES)


def test_a_failing_experiment_does_not_stop_the_others(tmp_path):
    config = {"version": 3, "experiment": "something else", "settings": {}}
    write_json(tmp_path / "beta-precision" / "config.json", config)
    with pytest.raises(RunError, match=r"1 of 2 did not finish: beta-precision \(.*holds a run of 'something else'"):
        dispatch(["reproduce", *NAMES, "--jobs", "2", "--seeds", "1", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "principal-axes" / "claims.json").read_text())


def test_workers_send_their_progress():
    events = []
    relay = ProgressRelay("x", events.append)
    relay.begin(3, 10)
    relay.epoch(1, training=2, finished=1, diverged=0, elbo=-1.5)
    relay.message("Resuming.")
    assert events == [
        ("x", 0, 10, "3 members"),
        ("x", 1, None, "2 training, 1 finished, 0 diverged; ELBO -1.50"),
        ("x", None, None, "Resuming."),
    ]


def test_the_index_is_written_once_per_experiment(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("vaescope_papers.run.write_index", lambda out, profile: written.append(profile) or out)
    assert dispatch(["reproduce", "principal-axes", "--seeds", "1", "--out", str(tmp_path)]) == 0
    assert written == ["quick"]
