"""Damage valid files in random ways and read them.

    python damaged_files.py FOLDER COUNT SEED

Every input must be loaded, or rejected with an error of vaescope, within seconds and limited memory. The first input of
every reader is not damaged. Inputs are numbered: the same number and seed give the same input. Files are read in child
processes, so that a crash of a library is recorded and affects one input only. Prints counts as JSON.
"""

import contextlib
import json
import os
import random
import resource
import signal
import struct
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

import vaescope as vs
from vaescope.adapters.run import members_of
from vaescope.core.errors import InputError, RunError
from vaescope.data.files import load
from vaescope.data.files.arrays import open_npz
from vaescope.data.files.official import OFFICIAL_FILES, load_official
from vaescope.jobs.tracking import read_run
from vaescope.runs import RunFolder
from vaescope.runs.store import CheckpointFile
from vaescope.sweeps import Sweep, read_sweep, run_sweep, sweep_status
from vaescope.training import NoProgress

MEMORY_LIMIT = 3 * 2**30  # bytes of address space that reading an input may need
TIME_LIMIT = 20  # seconds per input
SPECIAL_BYTES = [
    b"\x00",
    b"\xff",
    b"\x80",
    b"\x7f",
    b"\xff" * 8,
    b"\x00" * 8,
    struct.pack("<Q", 2**62),
    struct.pack("<i", -1),
]


# valid files and their readers ------------------------------------------------------------------


class Reader(NamedTuple):
    """A function that reads a file, and the valid file that is damaged."""

    name: str
    file: Path
    read: object


def build_readers(folder):
    """Write a valid file for every reader."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 5)).astype("float32")
    images = rng.integers(0, 255, (12, 4, 4, 3)).astype("uint8")
    readers = []

    def add(name, file, write, read):
        path = folder / name / file
        path.parent.mkdir(parents=True)
        write(path)
        readers.append(Reader(name, path, read))

    add("npy", "x.npy", lambda f: np.save(f, x), load)
    add("npy by columns", "x.npy", lambda f: np.save(f, np.asfortranarray(x)), load)
    add("npz", "x.npz", lambda f: np.savez(f, x=x, factors=x[:, :2]), load)
    add("npz compressed", "x.npz", lambda f: np.savez_compressed(f, images=images), load)
    add("pt", "x.pt", lambda f: torch.save({"x": torch.from_numpy(x), "labels": torch.zeros(12, 1)}, f), load)
    add("h5", "x.h5", lambda f: write_hdf5(f, images=images, labels=x[:, :1]), load)
    add("h5ad", "x.h5ad", lambda f: write_hdf5(f, X=x), load)
    add("csv", "x.csv", lambda f: np.savetxt(f, x, delimiter=",", header="a,b,c,d,e", comments=""), load)
    add("parquet", "x.parquet", lambda f: pq.write_table(pa.table({f"c{k}": x[:, k] for k in range(5)}), f), load)
    add("images", "a.png", lambda f: Image.fromarray(images[0]).save(f), lambda f: load(f.parent))
    add("posteriors", "p.npz", lambda f: np.savez(f, mean=x, variance=x**2), read_posteriors)
    grid = {"sizes": (3, 2, 2), "factor_names": ("a", "b", "c")}
    for spec, file, write in (
        (
            replace(OFFICIAL_FILES["dsprites"], pixels=(4, 4), **grid),
            "d.npz",
            lambda f: np.savez(f, imgs=images[..., 0]),
        ),
        (replace(OFFICIAL_FILES["3dshapes"], pixels=(4, 4, 3), **grid), "s.h5", lambda f: write_hdf5(f, images=images)),
        (
            replace(OFFICIAL_FILES["3dfaces"], pixels=(4, 4), **grid),
            "f.pth",
            lambda f: torch.save(torch.from_numpy(images[..., 0].reshape(3, 2, 2, 4, 4)), f),
        ),
    ):
        add(f"official {spec.name}", file, write, lambda f, spec=spec: load_official(spec, f, checksum=False))
    add("sweep file", "s.yaml", lambda f: f.write_text(SWEEP), read_sweep)
    tensors = {"a/w": torch.ones(3), "rest/precision": torch.ones(1)}
    add(
        "checkpoint",
        "s.safetensors",
        lambda f: CheckpointFile(f).save(tensors, '{"belongs_to": "x"}'),
        lambda f: CheckpointFile(f).load(),
    )
    return [*readers, *build_run_readers(folder, x), build_sweep_reader(folder, x)]


def build_run_readers(folder, x):
    """Readers of every file of a run folder; each has its own copy of the folder."""
    run = folder / "original run"
    vs.fit(x, latent_dim=2, hidden=(3,), precision=1.0, epochs=1, compile="never", progress=NoProgress(), out=run)
    (run / "claims.json").write_text('[{"sentence": "It holds.", "holds": true}]')
    cell = {"precision": 1.0, "beta": 1.0, "seed": 0}
    (run / "unfinished.json").write_text(json.dumps([cell]))
    weights = "weights/precision=1_beta=1_seed=0.safetensors"
    config = json.loads((run / "config.json").read_text())
    readers = []
    for name, file, read in (
        ("weights", weights, lambda f: RunFolder(f.parent.parent, config).load_member(cell)),
        ("weights of a member", weights, lambda f: members_of(f.parent.parent)),
        ("config", "config.json", lambda f: members_of(f.parent)),
        ("config of a resumed run", "config.json", lambda f: RunFolder(f.parent, config)),
        ("results", "results.parquet", lambda f: members_of(f.parent)),
        ("tracked history", "history.parquet", lambda f: read_run(f.parent)),
        ("tracked claims", "claims.json", lambda f: read_run(f.parent)),
        ("pending stack", "unfinished.json", lambda f: RunFolder(f.parent, config).pending_stack([cell])),
    ):
        copy_folder(run, folder / name)
        readers.append(Reader(name, folder / name / file, read))
    return readers


def build_sweep_reader(folder, x):
    np.save(folder / "y.npy", x)
    common = {"data": str(folder / "y.npy"), "epochs": 1, "compile": "never", "latent_dim": 2}
    run_sweep(Sweep(common, {"seed": [0]}), folder / "sweep")
    return Reader("sweep status", folder / "sweep" / "sweep.json", lambda f: sweep_status(f.parent))


SWEEP = """
fit: {data: x.npy, latent_dim: 2, seeds: 3, hidden: [8, 8], prior: {kind: uniform, low: -1, high: 1}}
sweep:
  precision: [1, 10.5, 100]
  beta: [1, 4]
out: somewhere
"""


def write_hdf5(file, **arrays):
    with h5py.File(file, "w") as h5:
        for name, array in arrays.items():
            h5.create_dataset(name, data=array, chunks=array.ndim > 2 or None)


def read_posteriors(file):
    stored = [open_npz(file, name) for name in ("mean", "variance")]
    return vs.adapters.from_arrays(*(array.all_rows() for array in stored))


def copy_folder(source, target):
    for file in source.rglob("*"):
        if file.is_file():
            (target / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (target / file.relative_to(source)).write_bytes(file.read_bytes())


# damage -----------------------------------------------------------------------------------------


def damaged(content, others, rng):
    """A valid file with one to four random changes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4))):
        position = rng.randrange(len(data) + 1)
        kind = rng.randrange(9)
        if kind == 0 and data:
            data[position % len(data)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[position:]
        elif kind == 2:
            data[position:position] = rng.choice(SPECIAL_BYTES)
        elif kind == 3:
            special = rng.choice(SPECIAL_BYTES)
            data[position : position + len(special)] = special
        elif kind == 4:
            data[position : position + rng.randrange(1, 64)] = b""
        elif kind == 5:
            start = rng.randrange(len(data) + 1)
            data[position:position] = data[start : start + rng.randrange(1, 200)]
        elif kind == 6:
            other = rng.choice(others)
            data[position:] = other[min(position, len(other)) :]
        elif kind == 7:  # change a digit of a number in a text
            digits = [k for k, byte in enumerate(data) if 48 <= byte <= 57]
            if digits:
                k = rng.choice(digits)
                data[k : k + 1] = rng.choice((b"9999999999", b"-1", b"0", b"1e308", b"", b"x", b"null", b"[]"))
        else:
            data[position : position + 8] = rng.randbytes(8)
    return bytes(data)


# child processes --------------------------------------------------------------------------------


class TooSlow(BaseException):
    pass


def raise_too_slow(*_):
    raise TooSlow


def result_of(read, file):
    """loaded, rejected, or a description of any other result."""
    signal.alarm(TIME_LIMIT)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
            warnings.simplefilter("ignore")
            read(file)
        return "loaded"
    except (InputError, RunError):
        return "rejected"
    except TooSlow:
        return f"took more than {TIME_LIMIT} s"
    except BaseException as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"
    finally:
        signal.alarm(0)


def read_inputs(readers, numbers, seed, pipe):
    """Read inputs one by one; report each before and after."""
    signal.signal(signal.SIGALRM, raise_too_slow)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LIMIT, resource.RLIM_INFINITY))
    contents = [reader.file.read_bytes() for reader in readers]
    for number in numbers:
        os.write(pipe, json.dumps([number, None]).encode() + b"\n")
        reader, content = readers[number % len(readers)], contents[number % len(readers)]
        if number >= len(readers):
            reader.file.write_bytes(damaged(content, contents, random.Random(f"{seed}:{number}")))
        result = result_of(reader.read, reader.file)
        reader.file.write_bytes(content)
        os.write(pipe, json.dumps([number, result]).encode() + b"\n")


def run_child(readers, numbers, seed):
    """The result of every input that a child process reads; it may crash before the last."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        read_inputs(readers, numbers, seed, send)
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as lines:
        results = dict(json.loads(line) for line in lines)
    _, status = os.waitpid(child, 0)
    return {number: f"the process ended ({status})" if result is None else result for number, result in results.items()}


def main(folder, count, seed):
    torch.set_num_threads(1)
    readers = build_readers(folder)
    results = {}
    while len(results) < count:
        found = run_child(readers, range(len(results), count), seed)
        results |= found
        if len(results) < count:  # the child crashed, and its last file is still damaged
            readers = build_readers(folder / f"after {len(results)}")
    counts = {reader.name: {"loaded": 0, "rejected": 0, "failed": 0} for reader in readers}
    failures = []
    for number, result in results.items():
        name = readers[number % len(readers)].name
        counts[name][result if result in ("loaded", "rejected") else "failed"] += 1
        if result not in ("loaded", "rejected"):
            failures.append([number, name, result])
    print(json.dumps({"inputs": count, "seed": seed, "readers": counts, "failures": failures}, ensure_ascii=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
