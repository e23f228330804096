"""Do the intervals of `vs.compare` cover known differences? On linear VAEs, whose expected log p(x) is in closed form.

python -m benchmarks.compare docs/figures/compare.json
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vaescope import theory
from vaescope.products.compare.measure import Paired, paired_differences

DRAWS = 1000
SAMPLES = (60, 200)
TRIPLES = range(20, 26)  # seeds of three models and of the covariance of the data; 3 to 8 were used in development
PAIRS = ((0, 1), (0, 2), (1, 2))


def models(seed: int) -> tuple[list[tuple[Tensor, float]], Tensor]:
    """Three linear VAEs, and the covariance of the data, which is that of none of them."""
    generator = torch.Generator().manual_seed(seed)
    found = [(torch.randn(4, 2, generator=generator, dtype=torch.float64), precision) for precision in (2.0, 3.0, 5.0)]
    root = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    return found, root @ root.T + 0.3 * torch.eye(4, dtype=torch.float64)


def expected(W: Tensor, precision: float, covariance: Tensor) -> float:
    """E log p(x) of a linear VAE."""
    own = W @ W.T + torch.eye(len(W), dtype=torch.float64) / precision
    fit = torch.linalg.solve(own, covariance).trace() + torch.linalg.slogdet(own).logabsdet
    return -0.5 * float(fit + len(W) * math.log(2 * math.pi))


def coverage(seed: int, samples: int) -> list[tuple[float, float]]:
    """Per pair, share of draws whose interval contains the truth: as it is, and with Student's quantile alone."""
    compared, covariance = models(seed)
    truth = np.array([expected(*model, covariance) for model in compared])
    truth = truth[:, None] - truth[None]
    noise = torch.randn(DRAWS * samples, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = noise @ torch.linalg.cholesky(covariance).T
    values = torch.stack([theory.linear.log_likelihood(x, *model) for model in compared], 1).numpy()
    found = [paired_differences(part) for part in np.split(values, DRAWS)]
    return [(_inside(found, truth, pair), _inside(found, truth, pair, plain=True)) for pair in PAIRS]


def _inside(found: list[Paired], truth: np.ndarray, pair: tuple[int, int], *, plain: bool = False) -> float:
    widths = [f.half_width[pair] / (f.inflation[pair] if plain else 1.0) for f in found]
    errors = [abs(f.difference[pair] - truth[pair]) for f in found]
    return float(np.mean(np.array(errors) <= np.array(widths)))


def main() -> None:
    result: dict[str, object] = {"draws": DRAWS, "pairs": len(TRIPLES) * len(PAIRS)}
    for samples in SAMPLES:
        shares = np.array([share for seed in TRIPLES for share in coverage(seed, samples)])
        for column, name in enumerate(("coverage", "coverage of Student's interval")):
            own = shares[:, column]
            result[f"{name}, {samples} samples"] = {
                "lowest": round(float(own.min()), 3),
                "mean": round(float(own.mean()), 4),
                "highest": round(float(own.max()), 3),
            }
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
