"""Progress of several tasks where there is no terminal."""

import io

import pytest
from rich.console import Console

from vaescope.jobs import tasks
from vaescope.jobs.tasks import ProgressEvent, ProgressLines


@pytest.mark.parametrize(("seconds", "lines"), [(-1.0, 3), (1000.0, 0)])
def test_a_log_file_gets_a_line_per_task_from_time_to_time(monkeypatch, seconds, lines):
    monkeypatch.setattr(tasks, "SECONDS_BETWEEN_LINES", seconds)
    console = Console(file=io.StringIO(), width=100)
    with ProgressLines(console) as shown:
        shown.show(ProgressEvent("sprites 1 of 2", 0, 32, "1 members"))
        shown.show(ProgressEvent("sprites 1 of 2", 5, None, "1 training, 0 finished, 0 diverged"))
        shown.show(ProgressEvent("sprites 2 of 2", 7, None, "1 training, 0 finished, 0 diverged"))
        shown.show(ProgressEvent("sprites 2 of 2", None, None, "a message"))
    printed = console.file.getvalue().splitlines()
    assert printed[-1] == "sprites 2 of 2: a message"
    assert len(printed) == lines + 1
    if lines:
        assert "sprites 1 of 2: epoch 5 of 32, 1 training, 0 finished, 0 diverged" in printed
