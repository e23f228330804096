"""Do the intervals of `vs.leakage` cover nats that are known, and how does it compare with scores of batch mixing?

    python -m benchmarks.leakage docs/figures/leakage.json gaussian 300
    python -m benchmarks.leakage docs/figures/leakage.json peers FOLDER

Every replication draws its own problem: number of classes, latents and samples, and 0 to 2 nats. Kinds: `gaussian`
(classes that differ in means, some also in variances), `counts` (codes are logarithms of Poisson or negative binomial
sums of genes), `confounded` (nats given a variable that the nuisance is associated with), `continuous` (a monotone
function of a variable that is correlated with codes), `nothing` (no nats, for false alarms). A run of that many seconds
continues where the last one ended. For `peers`, `FOLDER` receives data sets; `benchmarks/leakage_peers.py` scores them
with scib-metrics in an environment of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from scipy.special import logsumexp

from vaescope.metrics.nats import Nats, nats_held, permutation_null, read_variable

DRAWS = 60_000  # for the exact information, whose standard error is then about 0.003 nats
Array = np.ndarray


def information(log_p: Array, n: Array, shares: Array) -> float:
    """I(Z; N) from log p(z|n) of all classes (draws, classes) at draws with their own classes n."""
    joint = log_p + np.log(shares)
    return float((joint[np.arange(len(n)), n] - logsumexp(joint, 1) - np.log(shares[n])).mean())


def scaled_to(nats: float, of_scale: Callable[[float], float]) -> float:
    """The scale of the differences at which the information is as wanted, by bisection."""
    low, high = 0.0, 8.0
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if of_scale(middle) < nats else (low, middle)
    return (low + high) / 2


def problem(rng: np.random.Generator) -> tuple[int, int, int, Array, float]:
    """Classes, latents, samples, shares of classes and nats."""
    classes, latents = int(rng.integers(2, 5)), int(rng.integers(1, 5))
    shares = rng.dirichlet(np.full(classes, 8.0))
    entropy = float(-(shares * np.log(shares)).sum())
    nats = min(2.0, 0.9 * entropy) * float(rng.random())
    return classes, latents, int(rng.integers(400, 801)), shares, nats


def gaussian(rng: np.random.Generator) -> tuple[Array, Array, None, float]:
    classes, latents, count, shares, nats = problem(rng)
    direction = rng.normal(size=(classes, latents))
    spread = np.exp(rng.normal(size=(classes, latents)) * float(rng.choice([0.0, 0.3])))

    def draw(scale: float, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        n = rng.choice(classes, count, p=shares)
        return scale * direction[n] + spread[n] ** min(1.0, scale) * rng.normal(size=(count, latents)), n

    def exact(scale: float, draws: int = DRAWS // 6) -> float:
        z, n = draw(scale, draws, np.random.default_rng(0))
        deviations = spread ** min(1.0, scale)
        log_p = [stats.norm.logpdf(z, scale * m, s).sum(1) for m, s in zip(direction, deviations, strict=True)]
        return information(np.stack(log_p, 1), n, shares)

    scale = scaled_to(nats, exact)
    return (*draw(scale, count, rng), None, exact(scale, DRAWS))


def counts(rng: np.random.Generator) -> tuple[Array, Array, None, float]:
    classes, latents, count, shares, nats = problem(rng)
    direction = rng.normal(size=(classes, latents))
    depth = np.exp(rng.uniform(1.0, 4.0, latents))
    shape = float(rng.choice([2.0, 10.0, 1e6]))  # 1e6: Poisson

    def success(scale: float) -> Array:
        return shape / (shape + depth * np.exp(scale * direction))

    def draw(scale: float, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        n = rng.choice(classes, count, p=shares)
        return rng.negative_binomial(shape, success(scale)[n]).astype(float), n

    def exact(scale: float, draws: int = DRAWS // 6) -> float:
        x, n = draw(scale, draws, np.random.default_rng(0))
        log_p = [stats.nbinom.logpmf(x, shape, p).sum(1) for p in success(scale)]
        return information(np.stack(log_p, 1), n, shares)

    scale = scaled_to(nats, exact)
    x, n = draw(scale, count, rng)
    return np.log1p(x), n, None, exact(scale, DRAWS)


def confounded(rng: np.random.Generator) -> tuple[Array, Array, Array, float]:
    """Codes depend on K and on N, which is associated with K; nats of N given K."""
    groups, latents, count = int(rng.integers(2, 5)), int(rng.integers(2, 5)), int(rng.integers(400, 801))
    table = rng.dirichlet(np.full(3, 2.0), size=groups)  # p(n|k)
    of_group, of_batch = 2 * rng.normal(size=(groups, latents)), rng.normal(size=(3, latents))
    nats = 0.5 * float(rng.random())

    def draw(scale: float, count: int, rng: np.random.Generator) -> tuple[Array, Array, Array]:
        k = rng.integers(0, groups, count)
        n = (rng.random(count)[:, None] > table[k].cumsum(1)).sum(1)
        return of_group[k] + scale * of_batch[n] + rng.normal(size=(count, latents)), n, k

    def exact(scale: float, draws: int = DRAWS // 6) -> float:
        z, n, k = draw(scale, draws, np.random.default_rng(0))
        rest = z - of_group[k]
        log_p = np.stack([stats.norm.logpdf(rest, scale * m).sum(1) for m in of_batch], 1) + np.log(table[k])
        rows = np.arange(draws)
        return float((log_p[rows, n] - logsumexp(log_p, 1) - np.log(table[k, n])).mean())

    scale = scaled_to(nats, exact)
    return (*draw(scale, count, rng), exact(scale, DRAWS))


def continuous(rng: np.random.Generator) -> tuple[Array, Array, None, float]:
    latents, count, nats = int(rng.integers(1, 5)), int(rng.integers(400, 801)), 2 * float(rng.random())
    rho = np.sqrt(1 - np.exp(-2 * nats))
    z = rng.normal(size=(count, latents))
    direction = rng.normal(size=latents)
    n = rho * z @ direction / np.linalg.norm(direction) + np.sqrt(1 - rho**2) * rng.normal(size=count)
    return z, np.exp(n), None, nats


def nothing(rng: np.random.Generator) -> tuple[Array, Array, None, float]:
    classes, latents, count, shares, _ = problem(rng)
    n = rng.choice(classes, count, p=shares) if rng.random() < 0.7 else rng.normal(size=count)
    return rng.standard_t(4, size=(count, latents)), n, None, 0.0


KINDS: dict[str, Callable[[np.random.Generator], tuple[Array, Array, Array | None, float]]] = {
    "gaussian": gaussian,
    "counts": counts,
    "confounded": confounded,
    "continuous": continuous,
    "nothing": nothing,
}


def replicate(kind: str, seed: int) -> tuple[float, Nats, float]:
    """True nats, the estimate, and the p-value of independence."""
    z, n, k, exact = KINDS[kind](np.random.default_rng([sorted(KINDS).index(kind), 1000 + seed]))
    target, rows = read_variable(n, "n")
    given = None if k is None else read_variable(k, "k")[0][rows]
    found = nats_held(z[rows], target, given=given, seed=seed)
    p = permutation_null(z[rows], target, given=given, permutations=39, seed=seed).p_value
    return exact, found, p


def run(out: Path, kind: str, seconds: float) -> None:
    stored: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    old = stored.setdefault(kind, {"replications": 0, "inside": 0, "below": 0, "above": 0, "alarms": 0})
    error = old.get("mean error", 0.0) * old["replications"]
    absolute = old.get("mean absolute error", 0.0) * old["replications"]
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        exact, found, p = replicate(kind, old["replications"])
        old["replications"] += 1
        old["inside"] += bool(found.low <= exact <= found.high)
        old["below"] += bool(found.high < exact)
        old["above"] += bool(found.low > exact)
        old["alarms"] += bool(p <= 0.05)
        error, absolute = error + found.value - exact, absolute + abs(found.value - exact)
    count = old["replications"]
    old |= {"mean error": round(error / count, 5), "mean absolute error": round(absolute / count, 5)}
    stored = (json.loads(out.read_text()) if out.exists() else {}) | {kind: old}
    out.write_text(json.dumps(stored, indent=1) + "\n")
    print(kind, old)


def peers(out: Path, folder: Path, count: int = 80) -> None:
    """Data sets of 1,000 samples for other scores; or, if these are there already, rank correlations with the truth."""
    folder.mkdir(parents=True, exist_ok=True)
    scores = folder / "scores.json"
    if not scores.exists():
        for seed in range(count):
            rng = np.random.default_rng([77, seed])
            z, n, _, exact = (counts if seed % 2 else gaussian)(rng)
            rows = np.flatnonzero(np.isin(n, np.flatnonzero(np.bincount(n) >= 30)))
            np.savez(folder / f"{seed:03d}.npz", z=z[rows], n=n[rows], exact=exact)
        print(f"now run benchmarks/leakage_peers.py {folder} where scib-metrics is installed, then this again")
        return
    files = sorted(folder.glob("*.npz"))
    exact = [float(np.load(file)["exact"]) for file in files]
    found: dict[str, Any] = json.loads(scores.read_text())
    ours = []
    for file in files:
        data = np.load(file)
        ours.append(nats_held(data["z"], read_variable(data["n"], "n")[0]).value)
    ranks = {name: abs(float(stats.spearmanr(values, exact).statistic)) for name, values in found.items()}
    ranks["vaescope"] = float(stats.spearmanr(ours, exact).statistic)
    stored = json.loads(out.read_text()) if out.exists() else {}
    stored["peers"] = {"data sets": len(files), "rank correlation": {k: round(v, 3) for k, v in ranks.items()}}
    out.write_text(json.dumps(stored, indent=1) + "\n")
    print(stored["peers"])


if __name__ == "__main__":
    target, what = Path(sys.argv[1]), sys.argv[2]
    if what == "peers":
        peers(target, Path(sys.argv[3]))
    else:
        run(target, what, float(sys.argv[3]))
