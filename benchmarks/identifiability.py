"""Does `vs.identifiability` know which sources a VAE has recovered? On mixings with known sources, without using them.

    python -m benchmarks.identifiability docs/figures/identifiability.json models

The second argument is a folder in which trained models are kept. A latent counts as recovered if its correlation with
its source is at least 0.95. Scores: that of `vs.identifiability` for one model and for five seeds, per-latent UDR and
the median rank correlation with the matched latent of other seeds. Mixing 0 is for development, 1 to 3 are scored.
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
from vaescope.analysis.identification import axis_score
from vaescope.data.dataset import split
from vaescope.metrics.correlation import best_matching, pearson_correlations, spearman_correlations
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
Row = dict[str, object]


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


def measure(case: Case, mixing: int, members: list[Member]) -> list[Row]:
    """A row per latent of every member: whether it is recovered, and what every score says."""
    x, sources = case.data(mixing)
    codes = [member.encode(x)[0].double().numpy() for member in members]
    rows = []
    for index, member in enumerate(members):
        others = [k for k in range(len(members)) if k != index]
        recovered, source = best_matching(pearson_correlations(sources.numpy(), codes[index]))
        correlations = [spearman_correlations(codes[k], codes[index]) for k in others]
        found = vs.identifiability([member, *(members[k] for k in others)], x)
        scores = {
            "one model": _alone(found),
            "five seeds": found.score,
            "UDR": np.median([_udr(c) for c in correlations], axis=0),
            "stability": np.median([best_matching(c)[0] for c in correlations], axis=0),
        }
        for latent in range(DIM):
            row = {"case": case.name, "mixing": mixing, "seed": member.seed, "latent": latent}
            row |= {
                "source": int(source[latent]),
                "recovery": float(recovered[latent]),
                "kind": found.kind[latent],
            }
            rows.append(row | {name: float(values[latent]) for name, values in scores.items()})
    return rows


def _alone(found: vs.Identifiability) -> np.ndarray:
    """The score of the first model without the others: from rotation costs alone."""
    score = np.zeros(len(found.kind))
    if found.planes is not None:
        score[found.used] = axis_score(found.planes)
    return score


def _udr(correlations: np.ndarray) -> np.ndarray:
    """Per latent, the share of its similarity that is with one latent of the other model (Duan et al. 2020, Eq. 4)."""
    best, summed = correlations.max(0), correlations.sum(0)
    return np.asarray(np.square(best) / np.where(summed > 0, summed, 1.0))


def summarise(rows: list[Row]) -> dict[str, object]:
    """AUROC of every score with and without the cases that no score can know, and medians per case."""
    firm = {case.name for case in CASES if case.firm}
    cases = {}
    for case in dict.fromkeys(str(row["case"]) for row in rows):
        own = [row for row in rows if row["case"] == case]
        cases[case] = {
            "recovered": round(float(np.mean(_recovered(own))), 3),
            "called axis": round(float(np.mean([row["kind"] == "axis" for row in own])), 3),
        } | {name: round(float(np.median(_values(own, name))), 3) for name in SCORES}
    return {
        "mixings": sorted({int(str(row["mixing"])) for row in rows}),
        "latents": len(rows),
        "recovered": int(_recovered(rows).sum()),
        "all cases": _aurocs(rows),
        "without firm axes that are not the sources": _aurocs([row for row in rows if row["case"] not in firm]),
        "cases": cases,
    }


def _values(rows: list[Row], name: str) -> np.ndarray:
    return np.array([float(str(row[name])) for row in rows])


def _recovered(rows: list[Row]) -> np.ndarray:
    return _values(rows, "recovery") >= RECOVERED


def _aurocs(rows: list[Row]) -> dict[str, dict[str, float]]:
    """Of latents one by one, and of sources: recovery and scores averaged over seeds, without what is right by luck.

    `possible` is what a score would reach that knows how often seeds recover each source, and not which of them.
    """
    keys = dict.fromkeys((row["case"], row["mixing"], row["source"]) for row in rows)
    groups = [[row for row in rows if (row["case"], row["mixing"], row["source"]) == key] for key in keys]
    of_sources = np.array([_values(group, "recovery").mean() for group in groups]) >= RECOVERED
    ordered = [row for group in groups for row in group]
    rate = np.concatenate([np.full(len(group), _recovered(group).mean()) for group in groups])
    sources = {name: _auroc(of_sources, [_values(g, name).mean() for g in groups]) for name in SCORES}
    latents = {name: _auroc(_recovered(ordered), _values(ordered, name)) for name in SCORES}
    return {"sources": sources, "latents": latents | {"possible": _auroc(_recovered(ordered), rate)}}


def _auroc(recovered: np.ndarray, score: object) -> float:
    return round(float(roc_auc_score(recovered, score)), 3)


def main() -> None:
    """Score every mixing in turn; models and rows are kept in the folder, so that nothing is computed twice."""
    out, folder = Path(sys.argv[1]), Path(sys.argv[2])
    mixings = [int(value) for value in sys.argv[3].split(",")] if len(sys.argv) > 3 else list(MIXINGS)
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for mixing in mixings:
        file = folder / f"rows, mixing {mixing}.json"
        if not file.exists():
            measured = [measure(*group) for group in trained([mixing], folder)]
            file.write_text(json.dumps([row for part in measured for row in part]))
        rows += json.loads(file.read_text())
    out.write_text(json.dumps(summarise(rows), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
