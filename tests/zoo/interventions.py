"""Advice scored by intervention: `python -m tests.zoo.interventions RESULTS.jsonl [--half scored] [--seconds 540]`.

For every model the interventions that the first finding asks for are carried out, then all that `vs.improve` finds. The
samples that measure the gains decided nothing. The healthy twin is the model that a case's fault was planted into. Rows
are appended to the file as they are finished, and cases that are in it are not run again.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch

import vaescope as vs
from tests.zoo.cases import HEALTHY, Case
from tests.zoo.datasets import load
from tests.zoo.draws import cases
from vaescope.improvement.improve import Gain

WANTED = (
    "decoder-variance", "amortization", "rotated", "aggregate", "beta-high", "beta-low", "collapsed",
    "scale-of-variance", "negative-variance", "logits", "not-a-vae", "untrained", "reconstruction", "too-many-latents",
    "overfit", HEALTHY,
)  # fmt: skip


def elbo(model: object, x: torch.Tensor) -> float | None:
    """Of a healthy twin, as it is."""
    from vaescope.analysis.models import RepairedModel
    from vaescope.analysis.samples import read_samples
    from vaescope.improvement.interventions import elbo_values
    from vaescope.products.compare.measure import mirrored_noise

    repaired = RepairedModel(model)
    given = read_samples(repaired, x)
    return float(elbo_values(repaired, given, mirrored_noise(1000, repaired.latent_dim, 32)).mean())


def score(case: Case, budget: float) -> dict[str, object]:
    model, x, _ = case.make()
    train = load(case.data).train
    if not torch.equal(x, load(case.data).test):  # samples that were changed: train as they are
        train = {16: train * 16}.get(round(float(x.abs().max() / load(case.data).test.abs().max())))
        if train is None:
            return {"name": case.name, "condition": case.condition, "left_out": "samples of another form"}
    rows = np.random.default_rng(0).permutation(len(x))
    half = len(x) // 2
    valid, test = x[rows[:half]], x[rows[half:]]
    started = time.monotonic()
    found = vs.improve(model, train, test, x_valid=valid, budget=budget, progress=None)
    first = found.steps[0].reason if found.steps else None
    advice = [step for step in found.steps if step.round == 0 and step.reason == first and step.kept]
    gains = [step.gain for step in advice if step.gain is not None]
    twin = None
    if case.condition != HEALTHY and case.sound is not None:
        twin = elbo(case.sound()[0], test)

    def plain(gain: Gain | None) -> list[float] | None:
        return None if gain is None else [gain.value, gain.half_width]

    return {
        "name": case.name,
        "half": case.half,
        "condition": case.condition,
        "first": first,
        "first_gain": sum(gain.value for gain in gains),
        "first_low": bool(advice) and all(gain.low > 0 for gain in gains) and bool(gains),
        "unmeasured_before": found.before.elbo is None,
        "steps": [[step.name, step.reason, step.kept, plain(step.gain), plain(step.selected)] for step in found.steps],
        "gain": plain(found.gain),
        "log_marginal_gain": plain(found.log_marginal_gain),
        "before": None if found.before.elbo is None else float(found.before.elbo.mean()),
        "after": None if found.after.elbo is None else float(found.after.elbo.mean()),
        "twin": twin,
        "remaining": [finding.code for finding in found.findings],
        "stopped": found.stopped,
        "skipped": found.skipped,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--half", default="scored")
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--budget", type=float, default=40.0)
    parser.add_argument("--only", default="", help="letters that names must contain")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    done = (
        {json.loads(line)["name"] for line in given.results.read_text().splitlines()}
        if given.results.exists()
        else set()
    )
    chosen = [c for c in cases() if c.half == given.half and c.library == "torch" and c.condition in WANTED]
    seen: Counter[str] = Counter()
    order = {}
    for case in chosen:  # a case of every condition before a second one of any
        order[case.name] = (seen[case.condition], WANTED.index(case.condition))
        seen[case.condition] += given.only in case.name
    chosen.sort(key=lambda case: order[case.name])
    started = time.monotonic()
    for case in chosen:
        if case.name in done or given.only not in case.name:
            continue
        if time.monotonic() - started > given.seconds:
            break
        try:
            row = score(case, given.budget)
        except Exception as error:
            row = {"name": case.name, "condition": case.condition, "failed": repr(error)[:300]}
            traceback.print_exc()
        with given.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row["name"], row.get("gain"), row.get("first"), flush=True)


if __name__ == "__main__":
    main()
