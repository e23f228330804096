"""Progress in a terminal and in a log file."""

import io

import pytest
from rich.console import Console

from vaescope.training import progress as progress_module
from vaescope.training.progress import ProgressBar


@pytest.mark.parametrize(("seconds", "lines"), [(-1.0, 3), (3600.0, 0)])
def test_a_log_file_gets_a_line_from_time_to_time(monkeypatch, seconds, lines):
    monkeypatch.setattr(progress_module, "SECONDS_BETWEEN_LINES", seconds)
    out = io.StringIO()
    with ProgressBar("fit", Console(file=out, width=120)) as bar:
        bar.begin(2, 3)
        for epoch in (1, 2, 3):
            bar.epoch(epoch, training=2, finished=0, diverged=0, elbo=-1.5)
    printed = [line for line in out.getvalue().splitlines() if line]  # older versions of rich end with an empty line
    assert len(printed) == lines
    assert all("of 3, 2 training, 0 finished, 0 diverged; ELBO -1.50" in line for line in printed)
