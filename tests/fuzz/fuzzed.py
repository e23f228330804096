"""Damage valid files in every way that comes to mind, and read them.

    python fuzzed.py FOLDER COUNT SEED

Every input has to be loaded, or refused with one of vaescope's own errors, within seconds and bounded memory.
Inputs are numbered: number and seed make the same input again. Work is done by children, so that a crash of a library
is seen and costs one input. Prints counts as JSON.
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

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image
from vaescope.data.files.arrays import open_npz

import vaescope as vs
from vaescope.adapters.run import members_of
from vaescope.data.files import load
from vaescope.data.files.official import DSPRITES, FACES3D, SHAPES3D, load_official
from vaescope.errors import InputError, RunError
from vaescope.jobs.tracking.folder import finished_run
from vaescope.runs import RunFolder
from vaescope.runs.store import CheckpointFile
from vaescope.sweeps import read_sweep, status, sweep
from vaescope.sweeps.sweep import Sweep
from vaescope.training import NoProgress, TrainSettings

MEMORY = 3 * 2**30  # bytes of address space that an input may make a child take, beyond what it had
SECONDS = 20
INTERESTING = [
    b"\x00",
    b"\xff",
    b"\x80",
    b"\x7f",
    b"\xff" * 8,
    b"\x00" * 8,
    struct.pack("<Q", 2**62),
    struct.pack("<i", -1),
]


# valid files, and who reads them ----------------------------------------------------------------


def build(folder):
    """(name, file that is damaged, reader of its folder) of every reader."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 5)).astype("float32")
    pictures = rng.integers(0, 255, (12, 4, 4, 3)).astype("uint8")
    readers = []

    def add(name, file, write, read):
        place = folder / name
        place.mkdir(parents=True)
        write(place / file)
        readers.append((name, place / file, read))

    add("npy", "x.npy", lambda f: np.save(f, x), load)
    add("npy by columns", "x.npy", lambda f: np.save(f, np.asfortranarray(x)), load)
    add("npz", "x.npz", lambda f: np.savez(f, x=x, factors=x[:, :2]), load)
    add("npz compressed", "x.npz", lambda f: np.savez_compressed(f, images=pictures), load)
    add("pt", "x.pt", lambda f: torch.save({"x": torch.from_numpy(x), "labels": torch.zeros(12, 1)}, f), load)
    add("h5", "x.h5", lambda f: _h5(f, images=pictures, labels=x[:, :1]), load)
    add("h5ad", "x.h5ad", lambda f: _h5(f, X=x), load)
    add("parquet", "x.parquet", lambda f: pq.write_table(pa.table({f"c{k}": x[:, k] for k in range(5)}), f), load)
    add("images", "a.png", lambda f: Image.fromarray(pictures[0]).save(f), lambda f: load(f.parent))
    add("posteriors", "p.npz", lambda f: np.savez(f, mean=x, variance=x**2), _posteriors)
    few = {"sizes": (3, 2, 2), "names": ("a", "b", "c")}
    for spec, file, write in (
        (replace(DSPRITES, pixels=(4, 4), **few), "d.npz", lambda f: np.savez(f, imgs=pictures[..., 0])),
        (replace(SHAPES3D, pixels=(4, 4, 3), **few), "s.h5", lambda f: _h5(f, images=pictures)),
        (
            replace(FACES3D, pixels=(4, 4), **few),
            "f.pth",
            lambda f: torch.save(torch.from_numpy(pictures[..., 0].reshape(3, 2, 2, 4, 4)), f),
        ),
    ):
        add(f"official {spec.name}", file, write, lambda f, spec=spec: load_official(spec, f, checksum=False))
    add("sweep file", "s.yaml", lambda f: f.write_text(SWEEP), read_sweep)

    run = folder / "run of which"
    settings = TrainSettings(epochs=1, compile="never")
    vs.fit(x, latent_dim=2, hidden=(3,), precision=1.0, settings=settings, monitor=NoProgress(), out=run)
    (run / "claims.json").write_text('[{"sentence": "It holds.", "holds": true}]')
    cell = {"precision": 1.0, "beta": 1.0, "seed": 0}
    weights = Path("weights") / "precision=1_beta=1_seed=0.safetensors"
    config = json.loads((run / "config.json").read_text())
    for name, damaged, read in (
        ("weights", weights, lambda f: RunFolder(f.parent.parent, config).load_member(cell)),
        ("weights of a member", weights, lambda f: members_of(f.parent.parent)),
        ("config", Path("config.json"), lambda f: members_of(f.parent)),
        ("config, going on", Path("config.json"), lambda f: RunFolder(f.parent, config)),
        ("results", Path("results.parquet"), lambda f: members_of(f.parent)),
        ("history, tracked", Path("history.parquet"), lambda f: finished_run(f.parent)),
        ("claims, tracked", Path("claims.json"), lambda f: finished_run(f.parent)),
        ("begun stack", Path("unfinished.json"), lambda f: RunFolder(f.parent, config).pending_stack([cell])),
    ):
        place = folder / name
        _copy(run, place)
        (place / "unfinished.json").write_text(json.dumps([cell]))
        readers.append((name, place / damaged, read))
    state = {"a/w": torch.ones(3), "rest/precision": torch.ones(1)}
    add(
        "state",
        "s.safetensors",
        lambda f: CheckpointFile(f).save(state, '{"belongs_to": "x"}'),
        lambda f: CheckpointFile(f).load(),
    )
    np.save(folder / "y.npy", x)
    swept = Sweep({"data": str(folder / "y.npy"), "epochs": 1, "compile": "never", "latent_dim": 2}, {"seed": [0]})
    sweep(
        swept,
        folder / "a sweep",
        run=lambda tasks: [t.work(t.argument, t.out, NoProgress()) and _done(t) for t in tasks],
    )
    readers.append(("status", folder / "a sweep" / "sweep.json", lambda f: status(f.parent)))
    return readers


def _done(task):
    from vaescope.jobs import Outcome

    return Outcome(task.name)


SWEEP = """
fit: {data: x.npy, latent_dim: 2, seeds: 3, hidden: [8, 8], prior: {kind: uniform, low: -1, high: 1}}
sweep:
  precision: [1, 10.5, 100]
  beta: [1, 4]
out: somewhere
"""


def _h5(file, **arrays):
    with h5py.File(file, "w") as h5:
        for name, array in arrays.items():
            h5.create_dataset(name, data=array, chunks=array.ndim > 2 or None)


def _posteriors(file):
    sources = [open_npz(file, name) for name in ("mean", "variance")]
    return vs.adapters.from_arrays(*(source.rows(np.arange(len(source))) for source in sources))


def _copy(source, place):
    for file in source.rglob("*"):
        if file.is_file():
            (place / file.relative_to(source)).parent.mkdir(parents=True, exist_ok=True)
            (place / file.relative_to(source)).write_bytes(file.read_bytes())


# damage -----------------------------------------------------------------------------------------


def damaged(content, others, chance):
    """One to four changes to a valid file."""
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 4))):
        place = chance.randrange(len(data) + 1)
        kind = chance.randrange(9)
        if kind == 0 and data:
            data[place % len(data)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[place:]
        elif kind == 2:
            data[place:place] = chance.choice(INTERESTING)
        elif kind == 3:
            piece = chance.choice(INTERESTING)
            data[place : place + len(piece)] = piece
        elif kind == 4:
            data[place : place + chance.randrange(1, 64)] = b""
        elif kind == 5:
            start = chance.randrange(len(data) + 1)
            data[place:place] = data[start : start + chance.randrange(1, 200)]
        elif kind == 6:
            other = chance.choice(others)
            data[place:] = other[min(place, len(other)) :]
        elif kind == 7:  # numbers in texts become other numbers
            digits = [k for k, byte in enumerate(data) if 48 <= byte <= 57]
            if digits:
                k = chance.choice(digits)
                data[k : k + 1] = chance.choice((b"9999999999", b"-1", b"0", b"1e308", b"", b"x", b"null", b"[]"))
        else:
            data[place : place + 8] = chance.randbytes(8)
    return bytes(data)


# children ---------------------------------------------------------------------------------------


def read_one(read, file):
    """ok, refused, or what came instead."""
    signal.alarm(SECONDS)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
            warnings.simplefilter("ignore")
            read(file)
        return "loaded"
    except (InputError, RunError):
        return "refused"
    except TooLong:
        return "took too long"
    except BaseException as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:150]}"
    finally:
        signal.alarm(0)


class TooLong(BaseException):
    pass


def stop(*_):
    raise TooLong


def work(readers, numbers, seed, tell):
    """Inputs one after another; each is announced before it is read."""
    signal.signal(signal.SIGALRM, stop)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, resource.RLIM_INFINITY))
    contents = [file.read_bytes() for _, file, _ in readers]
    for number in numbers:
        os.write(tell, json.dumps(["begin", number]).encode() + b"\n")
        name, file, read = readers[number % len(readers)]
        chance = random.Random(f"{seed}:{number}")
        file.write_bytes(damaged(contents[number % len(readers)], contents, chance))
        found = read_one(read, file)
        file.write_bytes(contents[number % len(readers)])
        os.write(tell, json.dumps(["end", number, name, found]).encode() + b"\n")


def main(folder, count, seed):
    torch.set_num_threads(1)
    readers = build(folder)
    total, wrong, first = {}, [], 0
    while first < count:
        heard, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(heard)
            work(readers, range(first, count), seed, tell)
            os._exit(0)
        os.close(tell)
        begun = None
        with os.fdopen(heard) as lines:
            for line in lines:
                said = json.loads(line)
                if said[0] == "begin":
                    begun = said[1]
                    continue
                begun, first = None, said[1] + 1
                kind = said[3] if said[3] in ("loaded", "refused") else "wrong"
                counted = total.setdefault(said[2], {"loaded": 0, "refused": 0, "wrong": 0})
                counted[kind] += 1
                if kind == "wrong":
                    wrong.append([said[1], said[2], said[3]])
        _, how = os.waitpid(child, 0)
        if begun is not None:
            name = readers[begun % len(readers)][0]
            wrong.append([begun, name, f"the process ended ({how})"])
            total.setdefault(name, {"loaded": 0, "refused": 0, "wrong": 0})["wrong"] += 1
            first = begun + 1
            readers[begun % len(readers)][1].parent.mkdir(parents=True, exist_ok=True)
            rebuilt = build(folder / f"again {begun}")
            readers = rebuilt
    print(json.dumps({"inputs": count, "seed": seed, "readers": total, "wrong": wrong}, ensure_ascii=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
