"""Size and power of `vs.check` on models whose posterior is exact, and of peers on the same draws.

    python -m benchmarks.check docs/figures/check.json size linear 100
    python -m benchmarks.check docs/figures/check.json power "wrong link" 20

Size: the share of data sets of the model itself (200 samples) with a finding, which should be 5 %; data sets that are
simulated: 39. Power: the share of data sets with a planted misfit that have one. Peers: the
posterior predictive checks of scvi-tools' criticism (R² between the coefficients of variation of x and of posterior
predictive draws over dimensions, below 0.4, the limit that its report warns at), and the plain posterior predictive
p-value of the variance and of the zero fraction, both at 5 %, two-sided, with Bonferroni's correction. A run of that
many seconds continues where the last one ended.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.check.planted import MISFITS, TRUTHS
from torch import Tensor

import vaescope as vs
from vaescope.analysis.likelihood import draw_observations, draw_posterior
from vaescope.analysis.models import repair
from vaescope.core import randomness

SAMPLES, SIMULATIONS = 200, 39
FIRST_SEED = 10_000  # none of the seeds that the tests use


def posterior_predictive(model: vs.LatentModel, x: Tensor, seed: int) -> dict[str, bool]:
    """Whether two checks that use x twice find something."""
    sample = repair(model, x, None, len(x)).sample
    generator = randomness.generator(seed, "peer")
    draws = np.stack(
        [
            draw_observations(sample.model, draw_posterior(sample, k), generator).flatten(1).double().numpy()
            for k in range(100)
        ]
    )
    observed = x.double().numpy()
    functions = (lambda v: v.var(-2).mean(-1), lambda v: (v == 0).mean((-2, -1)))
    p = []
    for function in functions:
        low = float((function(draws) <= function(observed)).mean())
        high = float((function(draws) >= function(observed)).mean())
        p.append(min(1.0, 2 * min(low, high)))
    flags = {"posterior predictive p-values": min(p) <= 0.025}
    if observed.min() < 0:  # coefficients of variation are of counts
        return flags
    variation = [v.std(-2) / np.maximum(np.abs(v.mean(-2)), 1e-9) for v in (observed, draws)]
    predicted = variation[1].mean(0)
    total = np.square(variation[0] - variation[0].mean()).sum()
    r2 = 1 - np.square(variation[0] - predicted).sum() / total
    return flags | {"R² of coefficients of variation": bool(r2 < 0.4)}


def run(out: Path, part: str, case: str, seconds: float) -> None:
    build, draw = (TRUTHS if part == "size" else MISFITS)[case]
    stored: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {}
    counts = stored.get(part, {}).get(case, {"replications": 0, "vs.check": 0})
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        seed = FIRST_SEED + counts["replications"]
        model, x = build(), draw(SAMPLES, seed)
        found = vs.check(model, x, samples=SAMPLES, simulations=SIMULATIONS, seed=seed, budget=1e6, progress=None)
        counts["replications"] += 1
        counts["vs.check"] += bool(found.findings)
        counts["vs.check, classifier alone"] = counts.get("vs.check, classifier alone", 0) + found.distinguishable
        for name, flagged in posterior_predictive(model, x, seed).items():
            counts[name] = counts.get(name, 0) + bool(flagged)
    stored = json.loads(out.read_text()) if out.exists() else {}
    stored.setdefault(part, {})[case] = counts
    out.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    print(part, case, counts)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
