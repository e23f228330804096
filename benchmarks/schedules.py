"""KL schedules against collapse: one stack per data set, every schedule with every seed at the same β and σ.

Prints a table: latents in use, KL and validation ELBO at the final β, mean ± standard deviation over seeds. Numbers go
to docs/figures/schedules.json, which the docs quote.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import torch
from tests.zoo.datasets import load

import vaescope as vs
from vaescope.training import NoProgress

RESULTS = Path(__file__).parents[1] / "docs/figures/schedules.json"
SEEDS = 5
SCHEDULES = (
    "constant",
    "linear(steps=400)",
    "sigmoid(steps=400)",
    "cyclical(steps=800)",
    "capacity(nats=5,steps=400)",
    "free-bits(nats=0.25)",
)
CASES = {"digits": (8, 0.2), "swiss": (5, 1.0)}
"""Latents, and β / γ² as a share of the largest variance of x: below 1 not everything collapses in theory."""


def main() -> None:
    rows = []
    print("| data | schedule | latents in use | KL | ELBO |\n|---|---|---|---|---|")
    for name, (latents, share) in CASES.items():
        x = load(name).train.flatten(1)
        largest = float(torch.linalg.eigvalsh(torch.cov(x.T))[-1])
        fitted = vs.fit(
            x,
            latent_dim=latents,
            precision=1 / (share * 0.8 * largest),
            kl_schedule=SCHEDULES,
            seeds=SEEDS,
            epochs=60,
            patience=60,
            compile="never",
            progress=NoProgress(),
        )
        groups = [fitted.members[k : k + SEEDS] for k in range(0, len(fitted), SEEDS)]
        for schedule, members in zip(SCHEDULES, groups, strict=True):
            regimes = [vs.regime.of_model(member, load(name).test.flatten(1), decoder=False) for member in members]
            used = _spread([len(regime.used) for regime in regimes])
            kl = _spread([float(regime.kl.sum()) for regime in regimes])
            elbo = _spread([member.best_elbo for member in members])
            print(f"| {name} | {schedule} | {used} | {kl} | {elbo} |", flush=True)
            rows.append({"data": name, "schedule": schedule, "used": used, "KL": kl, "ELBO": elbo})
    RESULTS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def _spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


if __name__ == "__main__":
    main()
