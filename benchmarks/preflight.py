"""What `vs.preflight` predicts beside what trained stacks do.

`python -m benchmarks.preflight [PART …]`, one of `PARTS`. Numbers go to docs/figures/preflight.json, which the docs
quote.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vaescope as vs
from benchmarks.planted_curves import COLUMNS, CURVES, curve
from vaescope.models import VAE, Member
from vaescope.regime import of_model
from vaescope.training import MemberSpec, TrainSettings, train

Array = np.ndarray
RESULTS = Path(__file__).parents[1] / "docs/figures/preflight.json"
SHARES = (0.03, 0.1, 0.3, 1 / 1.5, 1.5)  # β/γ² over λ₁, for curved data
SCORED_SEED = (
    4  # 0 to 3 were looked at while it was decided what is predicted; `THRESHOLDS.found_kl` was chosen on 1 and 2
)


def settings(rows: int, steps: int, batch: int, rate: float) -> TrainSettings:
    epochs = -(-steps * batch // rows)
    return TrainSettings(
        epochs=epochs, batch_size=batch, learning_rate=rate, decay="cosine", patience=epochs, compile="never"
    )


def counts(members: Sequence[Member], x: torch.Tensor, specs: Sequence[MemberSpec]) -> list[tuple[int, float]]:
    """Latents in use and KL of every member, on its own data."""
    regimes = [of_model(m, x[s.data], decoder=False) for m, s in zip(members, specs, strict=True)]
    return [(len(r.used), float(sum(r.kl))) for r in regimes]


def random_spectrum(rng: np.random.Generator, columns: int) -> Array:
    """Eigenvalues with ratios between 2.5 and 6: training needs long to tell closer ones apart."""
    ratios = rng.uniform(np.log(2.5), np.log(6), columns - 1)
    return 10 * np.exp(0.3 * rng.normal() - np.concatenate([[0.0], np.cumsum(ratios)]))


def linear_data(spectra: int, columns: int, samples: int) -> Array:
    """Gaussian data with random spectra and axes."""
    rng = np.random.default_rng(0)
    return np.stack(
        [
            rng.normal(size=(samples, columns))
            * np.sqrt(random_spectrum(rng, columns))
            @ np.linalg.qr(rng.normal(size=(columns, columns)))[0]
            for _ in range(spectra)
        ]
    )


def linear(spectra: int = 20, columns: int = 3, steps: int = 6000, first: int = 20) -> dict[str, object]:
    """Linear-Gaussian data, linear networks: a cell between every two eigenvalues, and two around the collapse line.

    The theory is about the covariance of the samples that are trained on, so these also choose the best epoch, and
    latents are judged on them: with others, an epoch of little KL may be kept by chance.
    """
    x = torch.from_numpy(linear_data(first + spectra, columns, 2500)[first:]).float()
    found = [vs.preflight(rows) for rows in x]
    specs = [
        MemberSpec(seed=k, precision=float(1 / variance), data=k)
        for k, one in enumerate(found)
        for variance in _between(one.spectrum.eigenvalues)
    ]
    model = VAE.mlp(columns, columns, hidden=(), activation="identity")
    members = train(model, x, x, specs, settings(2500, steps, 250, 1e-2))
    trained = counts(members, x, specs)
    cells = [(found[s.data].active(s.precision), *t, s, found[s.data]) for s, t in zip(specs, trained, strict=True)]
    edges = [
        float(np.log(variance * np.exp(2 * kl) / one.collapse_variance))
        for used, _, kl, s, one in cells
        if used == 1 and (variance := 1 / s.precision) > 0.5 * one.collapse_variance
    ]
    return {
        "spectra": [first, first + spectra - 1],
        "cells": len(cells),
        "converged": sum(bool(m.converged) for m in members),
        "equal": sum(predicted == used for predicted, used, *_ in cells),
        "KL, largest difference": max(abs(kl - one.kl(s.precision)) for _, _, kl, s, one in cells),
        "boundary, largest factor": float(np.exp(np.abs(edges).max())),
    }


def _between(eigenvalues: Array) -> list[float]:
    """β/γ² half-way between eigenvalues, at 0.6 and 1.4 of the largest, and at a third of the smallest."""
    inner = np.sqrt(eigenvalues[1:] * eigenvalues[:-1]).tolist()
    return [0.6 * eigenvalues[0], 1.4 * eigenvalues[0], *inner, eigenvalues[-1] / 3]


def curved(names: Sequence[str], steps: int = 4000, latents: int = 12, seed: int = SCORED_SEED) -> dict[str, object]:
    """Curved planted data, small MLPs, with so many samples that they do not overfit.

    A latent near the collapse line gains a few hundredths of a nat, less than a small sample costs.

    Args:
        names: of the data sets.
        steps: of training.
        latents: of every model.
        seed: of the data.
    """
    x = torch.from_numpy(np.stack([curve(name, 12_000, seed) for name in names])).float()
    train_data, held_out = x[:, 2000:], x[:, :2000]
    found = [vs.preflight(rows, latent_dim=latents) for rows in train_data]
    specs = [
        MemberSpec(seed=k, precision=float(1 / (share * one.collapse_variance)), data=k)
        for k, one in enumerate(found)
        for share in SHARES
    ]
    model = VAE.mlp(COLUMNS, latents, hidden=(32, 32))
    members = train(model, train_data, held_out, specs, settings(10_000, steps, 64, 5e-3))
    rows = [
        {
            "data": names[s.data],
            "d": CURVES[names[s.data]][0],
            "intrinsic": found[s.data].dimension.value,
            "curved": found[s.data].dimension.curved,
            "share of λ₁": 1 / s.precision / found[s.data].collapse_variance,
            "linear": int((found[s.data].spectrum.eigenvalues > 1 / s.precision).sum()),
            "predicted": found[s.data].active(s.precision),
            "predicted, any KL": found[s.data].active(s.precision, least_kl=0.0),
            "used": used,
            "KL": kl,
            "converged": bool(m.converged),
        }
        for s, m, (used, kl) in zip(specs, members, counts(members, held_out, specs), strict=True)
    ]
    return {"seed": seed, "steps": steps, **_summary(rows), "cells": rows}


def _summary(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Counts over converged models."""
    done = [row for row in rows if row["converged"]]
    above, below = ([row for row in done if (row["share of λ₁"] > 1) == side] for side in (True, False))
    near = [row for row in below if row["share of λ₁"] > 0.5]
    return {
        "models": len(rows),
        "converged": len(done),
        "within one": sum(abs(row["predicted"] - row["used"]) <= 1 for row in done),
        "within one, any KL": sum(abs(row["predicted, any KL"] - row["used"]) <= 1 for row in done),
        "linear within one": sum(abs(row["linear"] - row["used"]) <= 1 for row in done),
        "above the line": len(above),
        "above the line, collapsed": sum(row["used"] == 0 for row in above),
        "below the line": len(near),
        "below the line, in use": sum(row["used"] > 0 for row in near),
    }


def _by_dimension(low: int, high: int) -> list[str]:
    return [name for name, (d, _) in CURVES.items() if low <= d <= high]


def real() -> dict[str, object]:
    """Data that ship with scikit-learn and scanpy: the grid of `confirm=True`."""
    results = {}
    for name, load in _real_data().items():
        found = vs.preflight(load(), confirm=True, name=name)
        grid = found.confirmation
        assert grid is not None
        results[name] = {
            "rows": found.rows,
            "columns": found.columns,
            "scaling": found.kind.scaling,
            "curved": None if found.dimension is None else found.dimension.curved,
            "within one": grid.within_one,
            "factor": grid.factor,
            "boundary": grid.boundary / grid.collapse_variance,
            "cells": [
                (c.variance / grid.collapse_variance, c.latents, c.predicted, c.used, c.converged) for c in grid.cells
            ],
        }
        print(name, results[name], flush=True)
    return results


def _real_data() -> dict[str, Callable[[], object]]:
    from sklearn import datasets

    loads: dict[str, Callable[[], object]] = {
        "digits": lambda: datasets.load_digits().images.astype(np.float32),
        "wine": lambda: datasets.load_wine(as_frame=True).data,
        "breast cancer": lambda: datasets.load_breast_cancer(as_frame=True).data,
        "diabetes": lambda: datasets.load_diabetes(as_frame=True).data,
    }
    path = _pbmc_path()
    return loads if path is None else loads | {"pbmc68k_reduced": lambda: _dense(path)}


def _pbmc_path() -> Path | None:
    """The file inside scanpy, which need not be imported: that takes longer than the whole analysis."""
    found = importlib.util.find_spec("scanpy")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "datasets/10x_pbmc68k_reduced.h5ad"
    return path if path.exists() else None


def _dense(path: Path) -> Array:
    import anndata

    return np.asarray(anndata.read_h5ad(path).X, np.float32)


def speed() -> dict[str, object]:
    """Seconds for 60,000 x 784 in memory, and memory for a file of 1,000,000 x 50 beside one of 100,000."""
    images = np.random.default_rng(0).random((60_000, 784), dtype=np.float32)
    start, wall = time.process_time(), time.time()
    vs.preflight(images)
    taken = time.process_time() - start, time.time() - wall
    del images
    small, large = _streamed(100_000), _streamed(1_000_000)
    return {
        "60,000 x 784, CPU seconds": taken[0],
        "60,000 x 784, seconds": taken[1],
        "1,000,000 x 50, CPU seconds": large["seconds"],
        "1,000,000 x 50, MB allocated at most": large["MB"],
        "100,000 x 50, MB allocated at most": small["MB"],
        "1,000,000 x 50, MB of the file": 200.0,
    }


def _streamed(rows: int) -> dict[str, float]:
    """CPU seconds and largest allocated memory of a preflight of a file; pages of the mapped file are not counted."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, 50))
        for first in range(0, rows, 100_000):
            file[first : first + 100_000] = np.random.default_rng(first).normal(size=(100_000, 50))
        file.flush()
        del file
        context = multiprocessing.get_context("spawn")
        with context.Pool(1) as pool:
            return pool.apply(_measure, (str(path),))


def _measure(path: str) -> dict[str, float]:
    start = time.process_time()
    tracemalloc.start()
    vs.preflight(path)
    peak = tracemalloc.get_traced_memory()[1]
    return {"seconds": time.process_time() - start, "MB": peak / 2**20}


PARTS: dict[str, Callable[[], dict[str, object]]] = {
    "linear": linear,
    "curved, d = 2 to 4": lambda: curved(_by_dimension(2, 4)),
    "curved, d = 5 to 8": lambda: curved(_by_dimension(5, 8)),
    "real": real,
    "speed": speed,
}


def main() -> None:
    for part in sys.argv[1:] or PARTS:
        result = PARTS[part]()
        stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(stored | {part: result}, indent=1, ensure_ascii=False) + "\n")
        print(part, json.dumps(result, indent=1, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
