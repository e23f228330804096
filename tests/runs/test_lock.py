"""One process at a time in a folder, and a full disk that costs nothing that was finished."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

import vaescope as vs
from vaescope.errors import InputError, RunError
from vaescope.runs import RunFolder, lock
from vaescope.runs.files import read_rows
from vaescope.runs.lock import is_locked, locked
from vaescope.training import NoProgress, TrainSettings

HOLD = """
import sys, time
from pathlib import Path
from vaescope.runs.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_told_who_is_there(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    assert is_locked(tmp_path)
    with pytest.raises(RunError, match=f"is in use by process {holder.pid} on .* since .*; wait for it, stop it"):
        vs.fit(np.zeros((20, 3)), latent_dim=1, out=tmp_path)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    time.sleep(0.1)
    assert not is_locked(tmp_path)  # however it went
    with locked(tmp_path):
        assert is_locked(tmp_path)


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    (tmp_path / "weights").mkdir()
    for place in (tmp_path / ".config.json.abc.unfinished", tmp_path / "weights" / ".w.safetensors.x.unfinished"):
        place.write_bytes(b"half of")
    with RunFolder.held(tmp_path, {"experiment": "toy", "settings": {}}):
        pass
    assert list(tmp_path.rglob("*.unfinished")) == []


def test_the_files_of_a_run_inside_are_left_alone(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / ".x.unfinished").write_bytes(b"being written")
    with RunFolder.held(tmp_path, {"experiment": "toy", "settings": {}}):
        pass
    assert (inner / ".x.unfinished").exists()


def test_storage_without_locks_says_so(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", none)
    with pytest.raises(RunError, match="cannot be locked: function not implemented"), locked(tmp_path):
        pass


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(tmp_path, seconds):
    held = RunFolder.held(tmp_path, {"experiment": "toy", "settings": {}}, checkpoint_seconds=seconds)
    with pytest.raises(InputError, match="must be some seconds"), held:
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


def test_a_full_disk_stops_cleanly_and_keeps_what_was_finished(tmp_path):
    done = subprocess.run([sys.executable, "-c", FILL, str(tmp_path), "12000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "cannot write" in done.stdout
    assert "file too large; what was finished is kept" in done.stdout
    assert len(read_rows(tmp_path / "small" / "results.parquet")) == 1
    assert list(tmp_path.rglob("*.unfinished")) == []
    x = np.random.default_rng(0).normal(size=(60, 4))
    settings = TrainSettings(epochs=3, compile="never")
    again = vs.fit(x, latent_dim=2, hidden=(64, 64), settings=settings, progress=NoProgress(), out=tmp_path / "large")
    assert again.best.status == "finished"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        x = np.random.default_rng(0).normal(size=(60, 4))
        settings = TrainSettings(epochs=3, compile="never")
        kept = vs.fit(x, latent_dim=2, hidden=(4,), settings=settings, progress=NoProgress(), out=disk / "small")
        with pytest.raises(RunError, match="no space left on device; what was finished is kept"):
            vs.fit(x, latent_dim=2, hidden=(128, 128), settings=settings, progress=NoProgress(), out=disk / "large")
        assert len(kept) == len(read_rows(disk / "small" / "results.parquet"))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
