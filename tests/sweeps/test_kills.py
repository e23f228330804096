"""Killed at any moment, a sweep goes on and ends as if nothing had happened."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from vaescope.runs.files import read_rows

KILLS = int(os.environ.get("VAESCOPE_KILLS", "8"))
SEED = int(os.environ.get("VAESCOPE_SEED", "0"))


def test_killed_sweeps_are_bit_identical(tmp_path):
    script = Path(__file__).parent / "killed.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "work"), str(KILLS), str(SEED)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    print(found)
    assert found["kills"] == KILLS
    assert found["wrong"] == []


SWEEP = """
fit: {{data: {x}, epochs: 40, patience: 40, seeds: 3, compile: never}}
sweep: {{latent_dim: [2, 3]}}
"""


@pytest.mark.skipif(KILLS < 30, reason="takes a minute and a half; part of make test-long")
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_command_line_killed_with_its_workers(tmp_path, jobs):
    """The whole group of processes at once, as a machine that goes down."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(3000, 6)).astype("float32"))
    (tmp_path / "s.yaml").write_text(SWEEP.format(x=tmp_path / "x.npy"))
    chance, kills = random.Random(SEED + jobs), 0

    def command(out):
        return [
            *(sys.executable, "-c", "from vaescope.cli import main; main()", "sweep", str(tmp_path / "s.yaml")),
            *("--out", str(tmp_path / out), "--jobs", str(jobs), "--checkpoint-seconds", "0"),
        ]

    for _ in range(3):
        child = subprocess.Popen(command("killed"), start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            child.wait(timeout=4 + 4 * chance.random())
            break
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            kills += 1
            time.sleep(0.5)  # workers see that their parent is gone
    for out in ("killed", "whole"):
        done = subprocess.run(command(out), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    rows = [read_rows(tmp_path / out / "results.parquet") for out in ("killed", "whole")]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 6
    assert kills > 0
    for name in sorted((tmp_path / "whole").rglob("*.safetensors")):
        assert name.read_bytes() == (tmp_path / "killed" / name.relative_to(tmp_path / "whole")).read_bytes()
