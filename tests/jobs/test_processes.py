"""Processes of this machine: all tasks come to an end, killed ones are begun again, failures are told."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vaescope.core.errors import InputError, RunError
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


def test_a_line_that_cannot_be_printed_is_no_end_of_a_worker(tmp_path, monkeypatch):
    def full(self, event):
        raise OSError("No space left on device")

    monkeypatch.setattr(local.ProgressLines, "show", full)
    with pytest.raises(OSError, match="No space left"):
        list(run_in_processes([Task("a", square, 2, tmp_path)], jobs=1))


def test_processes_share_the_cores_that_may_be_used(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [local._threads(jobs) for jobs in (1, 2, 3, 20)] == [8, 4, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [local._threads(jobs) for jobs in (1, 2, 3, 20)] == [3, 3, 2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "all")
    assert local._threads(2) == 4


def test_failures_are_told_in_one_line(tmp_path):
    tasks = [Task(kind, fail, kind, tmp_path) for kind in ("input", "other")]
    found = {outcome.name: outcome.error for outcome in run_in_processes(tasks, jobs=2)}
    assert isinstance(found["input"], InputError)
    assert str(found["input"]) == "three was expected, got two."
    assert str(found["other"]) == "KeyError: 'weights'"
    with pytest.raises(InputError, match="jobs must be at least 1"):
        list(run_in_processes(tasks, jobs=0))


INTERRUPTED = """
import signal
import sys
from pathlib import Path
from tests.jobs.test_processes import wait
from vaescope.jobs import Task, run_in_processes

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell inherit that it is ignored
    out = Path(sys.argv[1])
    try:
        list(run_in_processes([Task(name, wait, name, out) for name in ("a", "b")], jobs=2))
    except KeyboardInterrupt:
        sys.exit(130)
"""


def wait(name: str, out: Path, progress) -> None:
    time.sleep(60)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="lists processes as Linux does")
def test_ctrl_c_ends_all_processes_without_a_traceback(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    command = [sys.executable, str(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True, env=environment)
    while len(_children(process.pid)) < 3:  # two workers, and the one that cleans up after them
        time.sleep(0.01)
    time.sleep(0.5)  # in the middle of importing
    workers = _children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    until = time.monotonic() + 30
    while any(map(_runs, workers)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(_runs, workers))


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
