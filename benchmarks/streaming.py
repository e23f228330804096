"""Memory of training on a file that is larger than memory: images of 64 x 64 x 3 bytes, 12 GB of them.

Prints what the training process uses at most, and what it uses before it opens the file: the interpreter, PyTorch and
vaescope. Pages of the file that are mapped count too, although the system may take them back.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np

import vaescope as vs
from vaescope.training import NoProgress

SHAPE, BLOCK, BATCH = (64, 64, 3), 4096, 256
GB = 1e9


def write_images(path: Path, rows: int) -> None:
    images = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(rows, *SHAPE))
    block = np.random.default_rng(0).integers(0, 256, (BLOCK, *SHAPE), dtype=np.uint8)
    for first in range(0, rows, BLOCK):
        part = images[first : first + BLOCK]
        part[:] = block[: len(part)]


def train(path: Path, ready: Event, begin: Event) -> None:
    ready.set()
    begin.wait()
    vs.fit(path, latent_dim=10, epochs=1, batch_size=BATCH, progress=NoProgress())


def memory(pid: int) -> dict[str, float]:
    """Resident memory in GB: of everything, and of the pages of files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return {name: int(values[key].split()[0]) * 1024 / GB for name, key in (("all", "VmRSS"), ("files", "RssFile"))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=180.0, help="of training that are watched")
    chosen = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npy"
        write_images(path, chosen.rows)
        print(f"{path.stat().st_size / GB:.1f} GB, batches of {BATCH}", flush=True)
        ready, begin = context.Event(), context.Event()
        process = context.Process(target=train, args=(path, ready, begin))
        process.start()
        assert process.pid is not None
        ready.wait()
        before, peaks = memory(process.pid), []
        begin.set()
        end = time.monotonic() + chosen.seconds
        while process.is_alive() and time.monotonic() < end:
            peaks.append(memory(process.pid))
            time.sleep(0.1)
        process.kill()
        process.join()
    highest = max(peaks, key=lambda found: found["all"])
    late = max(found["all"] for found in peaks[-len(peaks) // 3 :])
    print(f"before the file is opened: {before['all']:.2f} GB")
    print(f"at most: {highest['all']:.2f} GB, {highest['files']:.2f} of them pages of files")
    print(f"over the last third of {len(peaks) / 10:.0f} s at most: {late:.2f} GB")
    print(f"beside the interpreter: {highest['all'] - before['all']:.2f} GB")


if __name__ == "__main__":
    main()
