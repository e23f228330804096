"""Experiments side by side: all of them finish, a failure stops nobody else, and nothing differs from one at a time."""

import json

import pytest

from vaescope.cli import dispatch
from vaescope.errors import InputError, RunError
from vaescope.jobs.local import check_jobs
from vaescope.jobs.tasks import Relay
from vaescope.papers.catalogue import find
from vaescope.papers.run import reproduce
from vaescope.runs.files import read_rows, write_json
from vaescope.training import NoProgress

NAMES = ("principal-axes", "beta-precision")


def test_two_at_a_time_give_what_one_at_a_time_gives(tmp_path, capsys):
    assert dispatch(["reproduce", *NAMES, "--jobs", "2", "--seeds", "1", "--out", str(tmp_path / "two")]) == 0
    printed = capsys.readouterr().out
    for name in NAMES:
        assert name in printed
        assert (tmp_path / "two" / name / "report.html").exists()
    assert "index.html" in printed
    axes = find("principal-axes").load()
    reproduce(axes, profile="quick", out=tmp_path / "one", monitor=NoProgress(), seeds=1)
    rows = [read_rows(tmp_path / where / "principal-axes" / "results.parquet")[0] for where in ("one", "two")]
    assert rows[0]["total_variance"] == pytest.approx(rows[1]["total_variance"])
    index = (tmp_path / "two" / "index.html").read_text()
    assert all(f"{name}/report.html" in index for name in NAMES)


def test_one_that_cannot_run_stops_nobody_else(tmp_path):
    write_json(tmp_path / "beta-precision" / "config.json", {"experiment": "something else", "settings": {}})
    with pytest.raises(RunError, match=r"1 of 2 did not finish: beta-precision \(.*holds a run of 'something else'"):
        dispatch(["reproduce", *NAMES, "--jobs", "2", "--seeds", "1", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "principal-axes" / "claims.json").read_text())


def test_workers_pass_on_how_far_they_are():
    said = []

    relay = Relay("x", said.append)
    relay.begin(3, 10)
    relay.epoch(1, training=2, finished=1, diverged=0, elbo=-1.5)
    relay.message("Going on.")
    assert said == [
        ("x", 0, 10, "3 members"),
        ("x", 1, None, "2 training, 1 finished, 0 diverged; ELBO -1.50"),
        ("x", None, None, "Going on."),
    ]


def test_no_jobs_is_a_mistake():
    with pytest.raises(InputError, match="--jobs must be at least 1, got 0"):
        check_jobs(0)
