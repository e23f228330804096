"""Processes of this machine: all tasks come to an end, killed ones are begun again, failures are told."""

import os
import signal
from pathlib import Path

import pytest

from vaescope.errors import InputError, RunError
from vaescope.jobs import Task, local, run_in_processes


def square(number: int, out: Path, progress) -> int:
    progress.begin(1, 2)
    progress.epoch(1, training=1, finished=0, diverged=0, elbo=-1.0)
    return number**2


def fail(kind: str, out: Path, progress) -> None:
    if kind == "input":
        raise InputError("three was expected, got two.")
    raise KeyError("weights")


def die_at_first(times: int, out: Path, progress) -> str:
    """Killed so many times, then done."""
    before = len(list(out.glob("*")))
    if before < times:
        (out / str(before)).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"


def test_every_task_gives_its_value(tmp_path):
    tasks = [Task(str(n), square, n, tmp_path) for n in range(3)]
    found = {outcome.name: outcome.value for outcome in run_in_processes(tasks, jobs=2)}
    assert found == {str(n): n**2 for n in range(3)}


def test_a_killed_process_is_begun_again_and_no_one_else_notices(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(local, "MAX_ATTEMPTS", 2)
    (tmp_path / "a").mkdir()
    tasks = [Task("dies", die_at_first, 1, tmp_path / "a"), Task("lives", square, 3, tmp_path)]
    found = {outcome.name: outcome.value for outcome in run_in_processes(tasks, jobs=2)}
    assert found == {"dies": "done", "lives": 9}
    assert "the worker process was killed by signal 9; restarting" in capsys.readouterr().err
    (tmp_path / "b").mkdir()
    (outcome,) = run_in_processes([Task("dies", die_at_first, 9, tmp_path / "b")], jobs=1)
    assert isinstance(outcome.error, RunError)
    assert "killed by signal 9, 2 times" in str(outcome.error)


def test_failures_are_told_in_one_line(tmp_path):
    tasks = [Task(kind, fail, kind, tmp_path) for kind in ("input", "other")]
    found = {outcome.name: outcome.error for outcome in run_in_processes(tasks, jobs=2)}
    assert isinstance(found["input"], InputError)
    assert str(found["input"]) == "three was expected, got two."
    assert str(found["other"]) == "KeyError: 'weights'"
    with pytest.raises(InputError, match="jobs must be at least 1"):
        list(run_in_processes(tasks, jobs=0))
