"""Speed of all metrics, and of single ones compared with disent on the same arrays; whether both rank models alike."""

from __future__ import annotations

import time
import warnings

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.optimize import linear_sum_assignment
from scipy.stats import pearsonr, spearmanr

from benchmarks.peers import disent_metric
from benchmarks.timing import best_seconds
from vaescope import metrics
from vaescope.metrics.inputs import read_inputs

LATENTS, FACTORS, CLASSES = 10, 5, 8


def factors(samples: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, CLASSES, (samples, FACTORS)).astype(float)


def codes(v: np.ndarray, *, degrees: float = 0.0, noise: float = 0.1, seed: int = 1) -> np.ndarray:
    """Each factor rotated towards the next by an angle, plus five latents of noise."""
    angle = np.deg2rad(degrees)
    rotated = np.cos(angle) * v + np.sin(angle) * np.roll(v, 1, axis=1)
    wide = np.hstack([rotated, np.zeros((len(v), LATENTS - FACTORS))])
    return wide + noise * np.random.default_rng(seed).normal(size=wide.shape)


CODE_SETTINGS = {  # eight codes of different quality
    "almost perfect": {"noise": 0.02},
    "rotated by 5°": {"degrees": 5.0},
    "rotated by 10°": {"degrees": 10.0},
    "rotated by 15°": {"degrees": 15.0},
    "rotated by 25°": {"degrees": 25.0},
    "noise of 1": {"noise": 1.0},
    "noise of 2": {"noise": 2.0},
    "noise of 20": {"noise": 20.0},
}


def halves(z: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The halves on which vaescope fits and scores, in the layout of disent."""
    fit, test = read_inputs(z, v).halves
    return fit.codes.T, fit.factors.T.astype(int), test.codes.T, test.factors.T.astype(int)


def plain_mcc(z: np.ndarray, v: np.ndarray) -> float:
    """MCC by the usual double loop; disent has no MCC."""
    matrix = np.array([[abs(pearsonr(a, b)[0]) for b in v.T] for a in z.T])
    return float(matrix[linear_sum_assignment(matrix, maximize=True)].mean())


def print_evaluate(console: Console, z: np.ndarray, v: np.ndarray, kind: str) -> None:
    """Wall and processor time of the whole table, with intervals."""
    wall, processor = time.perf_counter(), time.process_time()
    metrics.evaluate(z, v)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    console.print(
        f"evaluate, {kind}, {torch.get_num_threads()} threads: {wall:.1f} s, {processor:.1f} s of processor time"
    )


def main() -> None:
    warnings.filterwarnings("ignore")
    console = Console(width=110)
    v = factors(10_000)
    z = codes(v)
    print_evaluate(console, z, v, "classes")
    uniform = np.random.default_rng(0).uniform(size=v.shape)
    print_evaluate(console, codes(uniform), uniform, "continuous factors")
    dci, mig, sap = (disent_metric(name) for name in ("_dci", "_mig", "_sap"))
    table = Table("10,000 codes x 10 latents x 5 factors", "vaescope", "other", "ratio", box=None)
    comparisons = {
        "DCI (disent, gradient boosting)": (lambda: metrics.dci(z, v), lambda: dci._compute_dci(*halves(z, v)), 1),
        "MCC (a loop over scipy's pearsonr)": (lambda: metrics.mcc(z, v), lambda: plain_mcc(z, v), 5),
        "MIG (disent)": (lambda: metrics.mig(z, v), lambda: mig._compute_mig(z.T, v.T.astype(int)), 5),
        "SAP, classes (disent)": (lambda: metrics.sap(z, v), lambda: sap._compute_sap(*halves(z, v), False), 2),
        "SAP, continuous (disent)": (
            lambda: metrics.sap(z, v, discrete=False),
            lambda: sap._compute_sap(z.T, v.T, None, None, True),
            5,
        ),
    }
    for name, (ours_once, theirs_once, rounds) in comparisons.items():
        ours, theirs = best_seconds(ours_once, rounds=max(rounds, 3)), best_seconds(theirs_once, rounds=rounds)
        table.add_row(name, f"{ours:.4f} s", f"{theirs:.4f} s", f"{theirs / ours:.1f}x")
    console.print(table)

    v = factors(1_000)
    found = {name: codes(v, **options) for name, options in CODE_SETTINGS.items()}
    ours = [metrics.dci(z, v).disentanglement for z in found.values()]
    theirs = [dci._compute_dci(*halves(z, v))["dci.disentanglement"] for z in found.values()]
    for name, a, b in zip(found, ours, theirs, strict=True):
        console.print(f"{name:>15}: disentanglement {a:.3f}, with disent {b:.3f}")
    console.print(f"rank correlation over the codes: {spearmanr(ours, theirs).statistic:.3f}")


if __name__ == "__main__":
    main()
