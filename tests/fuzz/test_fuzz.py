"""Damaged files of every format, and pickles that would run code, for every reader."""

import contextlib
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vaescope import cli
from vaescope.adapters.run import members_of
from vaescope.core.errors import InputError, RunError
from vaescope.data.files import load
from vaescope.runs.store import CheckpointFile, RunFolder
from vaescope.sweeps import read_sweep, sweep_status

INPUTS = int(os.environ.get("VAESCOPE_FUZZ", "2000"))
SEED = int(os.environ.get("VAESCOPE_SEED", "0"))


def test_damaged_files_are_loaded_or_rejected(tmp_path):
    script = Path(__file__).parent / "damaged_files.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "work"), str(INPUTS), str(SEED)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    print(f"{found['inputs']} inputs, seed {found['seed']}: {found['readers']}")
    assert found["failures"] == []
    assert sum(sum(counts.values()) for counts in found["readers"].values()) == INPUTS
    assert all(counts["loaded"] for counts in found["readers"].values())  # at least the undamaged file


class Payload:
    """Would write a file if it were unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (Path.touch, (self.file,))


def write_payload(file, marker):
    """Write a pickle, in the format of the file's suffix if that is possible."""
    suffix = file.suffix
    if suffix == ".npy":
        np.save(file, np.array([Payload(marker)], dtype=object), allow_pickle=True)
    elif suffix == ".npz":
        np.savez(file, x=np.array([Payload(marker)], dtype=object), mean=np.array([Payload(marker)], dtype=object))
    elif suffix in (".pt", ".pth"):
        torch.save({"x": Payload(marker)}, file)
    else:
        file.write_bytes(pickle.dumps(Payload(marker)))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".pth", ".h5", ".hdf5", ".h5ad", ".parquet", ".png"])
@pytest.mark.parametrize("bare", [False, True])
def test_a_pickle_in_a_data_file_is_rejected_and_never_run(tmp_path, suffix, bare):
    marker, file = tmp_path / "executed", tmp_path / f"x{suffix}"
    write_payload(file, marker)
    if bare:
        file.write_bytes(pickle.dumps(Payload(marker)))
    target = tmp_path if suffix == ".png" else file
    with pytest.raises(InputError):
        load(target)
    if suffix == ".npz":
        with pytest.raises(InputError):
            cli.dispatch(["diagnose", str(file)])
    assert not marker.exists()
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.exists()  # unpickling runs the code


def test_a_pickle_in_a_run_folder_is_rejected_and_never_run(tmp_path):
    marker, content = tmp_path / "executed", pickle.dumps(Payload(tmp_path / "executed"))
    cell = {"precision": 1.0, "beta": 1.0, "seed": 0}
    run = RunFolder(tmp_path / "run", {"experiment": "fit", "settings": {}})
    (tmp_path / "run" / "weights").mkdir()
    (tmp_path / "run" / "weights" / "precision=1_beta=1_seed=0.safetensors").write_bytes(content)
    for name in ("results.parquet", "unfinished.json"):
        (tmp_path / "run" / name).write_bytes(content)
    for read in (lambda: run.load_member(cell), lambda: run.rows([cell])):
        with pytest.raises(RunError):
            read()
    assert run.pending_stack([cell]) == []  # an unreadable stack is formed again from the settings
    (tmp_path / "run" / "config.json").write_bytes(content)
    with pytest.raises(RunError):
        members_of(tmp_path / "run")
    (tmp_path / "state").write_bytes(content)
    with pytest.raises(RunError):
        CheckpointFile(tmp_path / "state").load()
    (tmp_path / "s.yaml").write_bytes(content)
    (tmp_path / "sweep.json").write_bytes(content)
    with pytest.raises(InputError):
        read_sweep(tmp_path / "s.yaml")
    with pytest.raises(RunError):
        sweep_status(tmp_path)
    assert not marker.exists()


DTYPES = st.one_of(
    arrays.scalar_dtypes(), arrays.unicode_string_dtypes(), arrays.datetime64_dtypes(), arrays.array_dtypes()
)
SHAPES = arrays.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)


@pytest.mark.filterwarnings("ignore:Stored array")
@settings(max_examples=300, derandomize=True, suppress_health_check=list(HealthCheck))
@given(array=DTYPES.flatmap(lambda dtype: arrays.arrays(dtype, SHAPES)))
def test_arrays_of_any_dtype_and_shape(array, tmp_path_factory):
    folder = tmp_path_factory.mktemp("any")
    np.save(folder / "x.npy", array)
    np.savez(folder / "x.npz", x=array)
    for name in ("x.npy", "x.npz"):
        with contextlib.suppress(InputError):
            found = load(folder / name)
            assert found.x.shape[0] == len(array)
            assert bool(found.x.isfinite().all())


def test_a_zip_bomb_is_rejected_before_it_is_decompressed(tmp_path):
    """A few kilobytes that declare a terabyte."""
    import zipfile

    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 262144), }"
    header += b" " * (127 - len(header)) + b"\n"
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header + bytes(10_000_000))
    with pytest.raises(InputError, match="GB of memory"):
        load(tmp_path / "x.npz")
    with pytest.raises(InputError, match="is truncated"):
        load(tmp_path / "x.npz", rows=5)


def test_sixteen_bit_images_keep_their_precision(tmp_path):
    from PIL import Image

    levels = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(levels).save(tmp_path / "a.png")
    found = load(tmp_path).x
    assert len(found.unique()) == 256
    assert float(found.max()) == pytest.approx(1)


def test_missing_rows_are_detected(tmp_path, monkeypatch):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from vaescope.data.files.tables import open_parquet

    pq.write_table(pa.table({"a": np.arange(10.0), "b": np.arange(10.0)}), tmp_path / "x.parquet")
    stored = open_parquet(tmp_path / "x.parquet")
    declared = replace(stored, shape=(15, 2))
    with pytest.raises(InputError, match="is truncated: it has 10 rows, but declares 15"):
        declared.rows(np.arange(12))
