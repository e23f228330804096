"""Does `vs.identifiability` know which sources a VAE has recovered? On mixings with known sources, without using them.

    python -m benchmarks.identifiability docs/figures/identifiability.json

A latent counts as recovered if its correlation with its source is at least 0.95. Scores: that of `vs.identifiability`
for one model and for five seeds, per-latent UDR and the median rank correlation with the matched latent of other seeds.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from sklearn.metrics import roc_auc_score

import vaescope as vs
from benchmarks.identifiability_cases import BOX, CASES, DIM, Case
from vaescope.data.arrays import split
from vaescope.metrics.mcc import best_matching, pearson_correlations, spearman_correlations
from vaescope.models import VAE, Member
from vaescope.settings import TrainSettings
from vaescope.training import MemberSpec, train

MIXINGS = (1, 2, 3)  # seeds of the mixings; 0 was used in development
SEEDS = 5
RECOVERED = 0.95
SETTINGS = TrainSettings(
    epochs=120,
    patience=120,
    learning_rate=3e-3,
    decay="cosine",
    precision_start=100.0,
    precision_hold=1000,
    precision_warmup=2500,
)
SCORES = ("one model", "five seeds", "UDR", "stability")


def trained(mixings: Sequence[int], folder: Path) -> list[tuple[Case, int, list[Member]]]:
    """Five seeds per case and mixing, from the folder or trained; those of one architecture as one stack."""
    wanted = [(case, mixing) for case in CASES for mixing in mixings]
    missing = [pair for pair in wanted if not _file(folder, *pair).exists()]
    for key in dict.fromkeys((case.sources, case.outputs) for case, _ in missing):
        _train([(case, mixing) for case, mixing in missing if (case.sources, case.outputs) == key], folder)
    return [(case, mixing, _load(case, mixing, folder)) for case, mixing in wanted]


def _file(folder: Path, case: Case, mixing: int) -> Path:
    return folder / f"{case.name}, mixing {mixing}.safetensors"


def _model(case: Case) -> VAE:
    return VAE.mlp(case.outputs, DIM, hidden=(30, 30), prior=BOX if case.sources == "uniform" else vs.Normal())


def _specs(case: Case, data: int = 0) -> list[MemberSpec]:
    return [MemberSpec(seed, precision=case.precision, data=data) for seed in range(SEEDS)]


def _train(cases: list[tuple[Case, int]], folder: Path) -> None:
    parts = [split(case.data(mixing)[0], fractions=(0.8, 0.2)) for case, mixing in cases]
    data = [torch.stack([getattr(part, name) for part in parts]) for name in ("train", "validation")]
    specs = [spec for index, (case, _) in enumerate(cases) for spec in _specs(case, index)]
    members = train(_model(cases[0][0]), *data, specs, SETTINGS)
    for index, pair in enumerate(cases):
        own = members[SEEDS * index : SEEDS * (index + 1)]
        params = {n: torch.cat([m.params[n] for m in own]).contiguous() for n in own[0].params}
        save_file(params, _file(folder, *pair))


def _load(case: Case, mixing: int, folder: Path) -> list[Member]:
    stored, model = load_file(_file(folder, case, mixing)), _model(case)
    return [
        Member(model, {name: value[[index]] for name, value in stored.items()}, spec.seed, 1.0, spec.precision)
        for index, spec in enumerate(_specs(case))
    ]


def measure(case: Case, mixing: int, members: list[Member]) -> list[dict[str, object]]:
    """A row per latent of every member: whether it is recovered, and what every score says."""
    x, sources = case.data(mixing)
    codes = [member.encode(x)[0].double().numpy() for member in members]
    rows = []
    for index, member in enumerate(members):
        others = [k for k in range(len(members)) if k != index]
        recovered, source = best_matching(pearson_correlations(sources.numpy(), codes[index]))
        correlations = [spearman_correlations(codes[k], codes[index]) for k in others]
        one = vs.identifiability(member, x)
        several = vs.identifiability([member, *(members[k] for k in others)], x)
        scores = {
            "one model": one.score,
            "five seeds": several.score,
            "UDR": np.median([_udr(c) for c in correlations], axis=0),
            "stability": np.median([best_matching(c)[0] for c in correlations], axis=0),
        }
        for latent in range(DIM):
            row = {"case": case.name, "mixing": mixing, "seed": member.seed, "latent": latent}
            row |= {
                "source": int(source[latent]),
                "recovery": float(recovered[latent]),
                "kind": one.kind[latent],
                "kind of five": several.kind[latent],
            }
            rows.append(row | {name: float(values[latent]) for name, values in scores.items()})
    return rows


def _udr(correlations: np.ndarray) -> np.ndarray:
    """Per latent, the share of its similarity that is with one latent of the other model (Duan et al. 2020, Eq. 4)."""
    best, summed = correlations.max(0), correlations.sum(0)
    return np.asarray(np.square(best) / np.where(summed > 0, summed, 1.0))


def summarise(rows: list[dict[str, object]]) -> dict[str, object]:
    """AUROC of every score over all latents, and per case how many latents are recovered and what is said of them."""
    recovered = np.array([float(row["recovery"]) >= RECOVERED for row in rows])  # type: ignore[arg-type]
    auroc = {name: round(float(roc_auc_score(recovered, [row[name] for row in rows])), 3) for name in SCORES}
    cases = {}
    for case in dict.fromkeys(str(row["case"]) for row in rows):
        own = [row for row in rows if row["case"] == case]
        cases[case] = {
            "recovered": round(float(np.mean([float(r["recovery"]) >= RECOVERED for r in own])), 3),  # type: ignore[arg-type]
            "axis, one model": round(float(np.mean([r["kind"] == "axis" for r in own])), 3),
            "axis, five seeds": round(float(np.mean([r["kind of five"] == "axis" for r in own])), 3),
        } | {name: round(float(np.median([r[name] for r in own])), 3) for name in SCORES}  # type: ignore[misc]
    return {
        "latents": len(rows),
        "recovered": int(recovered.sum()),
        "auroc of latents": auroc,
        "auroc of sources": _auroc_of_sources(rows),
        "cases": cases,
    }


def _auroc_of_sources(rows: list[dict[str, object]]) -> dict[str, float]:
    """The same with recovery and scores of a source averaged over seeds: without those that are right by luck."""
    keys = dict.fromkeys((row["case"], row["mixing"], row["source"]) for row in rows)
    groups = [[r for r in rows if (r["case"], r["mixing"], r["source"]) == key] for key in keys]
    means = {n: [np.mean([float(str(r[n])) for r in g]) for g in groups] for n in ("recovery", *SCORES)}
    recovered = np.array(means["recovery"]) >= RECOVERED
    return {name: round(float(roc_auc_score(recovered, means[name])), 3) for name in SCORES}


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    mixings = tuple(int(value) for value in sys.argv[3].split(",")) if len(sys.argv) > 3 else MIXINGS
    groups = [group for kind in ("normal", "uniform") for group in trained(kind, mixings, folder)]
    rows = [row for group in groups for row in measure(*group)]
    found = summarise(rows)
    print(json.dumps(found, indent=1, ensure_ascii=False))
    if out is not None:
        out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    if folder is not None:
        (folder / "rows.json").write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
