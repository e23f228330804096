"""One process at a time per folder; a full disk does not damage finished results."""

import fcntl
import os
import subprocess
import sys
import time

import numpy as np
import pytest

import vaescope as vs
from vaescope.core.errors import InputError, RunError
from vaescope.runs import RunFolder
from vaescope.runs.files import is_locked, locked, read_rows
from vaescope.training import NoProgress, TrainSettings

HOLD = """
import sys, time
from pathlib import Path
from vaescope.runs.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_link_to_a_folder_that_does_not_exist_is_followed(tmp_path):
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    vs.fit(np.zeros((20, 3)), latent_dim=1, epochs=1, out=tmp_path / "run", progress=NoProgress())
    assert (tmp_path / "elsewhere" / "results.parquet").exists()


def test_a_second_process_learns_who_holds_the_lock(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    assert is_locked(tmp_path)
    with pytest.raises(RunError, match=f"is in use by process {holder.pid} on .* since .*; wait for it, stop it"):
        vs.fit(np.zeros((20, 3)), latent_dim=1, out=tmp_path)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    time.sleep(0.1)
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        assert is_locked(tmp_path)


def test_partial_files_of_a_killed_process_are_removed(tmp_path):
    (tmp_path / "weights").mkdir()
    for file in (tmp_path / ".config.json.abc.unfinished", tmp_path / "weights" / ".w.safetensors.x.unfinished"):
        file.write_bytes(b"half of")
    with RunFolder.locked(tmp_path, {"experiment": "toy", "settings": {}}):
        pass
    assert list(tmp_path.rglob("*.unfinished")) == []


def test_files_of_nested_runs_are_not_touched(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / ".x.unfinished").write_bytes(b"being written")
    with RunFolder.locked(tmp_path, {"experiment": "toy", "settings": {}}):
        pass
    assert (inner / ".x.unfinished").exists()


def test_storage_without_locks_is_reported(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(RunError, match="cannot be locked: function not implemented"), locked(tmp_path):
        pass


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_an_impossible_interval_is_refused(tmp_path, seconds):
    opening = RunFolder.locked(tmp_path, {"experiment": "toy", "settings": {}}, checkpoint_seconds=seconds)
    with pytest.raises(InputError, match="checkpoint_seconds must be at least 0"), opening:
        pass


FILL = """
import os, resource, sys
import numpy as np, torch
import vaescope as vs
from vaescope.training import NoProgress, TrainSettings
torch.set_num_threads(1)
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails, as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
settings = TrainSettings(epochs=3, compile="never")
for hidden, name in (((4,), "small"), ((64, 64), "large")):
    try:
        x = np.random.default_rng(0).normal(size=(60, 4))
        out = os.path.join(sys.argv[1], name)
        vs.fit(x, latent_dim=2, hidden=hidden, settings=settings, progress=NoProgress(), out=out)
    except vs.RunError as error:
        print(error)
"""


def test_a_full_disk_is_reported_and_finished_results_are_intact(tmp_path):
    done = subprocess.run([sys.executable, "-c", FILL, str(tmp_path), "12000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "cannot write" in done.stdout
    assert "file too large; finished results are intact" in done.stdout
    assert len(read_rows(tmp_path / "small" / "results.parquet")) == 1
    assert list(tmp_path.rglob("*.unfinished")) == []
    x = np.random.default_rng(0).normal(size=(60, 4))
    settings = TrainSettings(epochs=3, compile="never")
    again = vs.fit(x, latent_dim=2, hidden=(64, 64), settings=settings, progress=NoProgress(), out=tmp_path / "large")
    assert again.best.status == "finished"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_file_system_that_is_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("cannot mount a file system")
    try:
        x = np.random.default_rng(0).normal(size=(60, 4))
        settings = TrainSettings(epochs=3, compile="never")
        finished = vs.fit(x, latent_dim=2, hidden=(4,), settings=settings, progress=NoProgress(), out=disk / "small")
        with pytest.raises(RunError, match="no space left on device; finished results are intact"):
            vs.fit(x, latent_dim=2, hidden=(128, 128), settings=settings, progress=NoProgress(), out=disk / "large")
        assert len(finished) == len(read_rows(disk / "small" / "results.parquet"))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
