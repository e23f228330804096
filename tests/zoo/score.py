"""Diagnose every model of the zoo, and score the findings: `python -m tests.zoo.score [DATA SET ...]`.

Results of each case are kept beside the weights, so that a run that was interrupted goes on, for as long as the source
of the diagnosis does not change.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import traceback
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import torch

import vaescope as vs
from tests.zoo.cases import HEALTHY, Case
from tests.zoo.certificates import certify
from tests.zoo.draws import cases
from tests.zoo.training import FOLDER

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "zoo.json"
BUDGET = 10.0  # seconds of a diagnosis, on one core
HALVES = ("development", "scored")
NOT_USED = ("papers", "cli", "jobs", "sweeps", "explorer", "watch", "preflight", "training", "fitting.py")


@cache
def source_hash() -> str:
    """Of everything that findings depend on, except experiments and the command line; and of the certificates."""
    source = ROOT / "src" / "vaescope"
    files = [
        file for file in sorted(source.rglob("*.py")) if not file.relative_to(source).as_posix().startswith(NOT_USED)
    ]
    content = b"".join(file.read_bytes() for file in [*files, Path(__file__).parent / "certificates.py"])
    return hashlib.sha256(content).hexdigest()[:16]


def score_case(case: Case) -> dict[str, object]:
    """Findings of one case, the most severe first; from the cache if they are there."""
    file = FOLDER / "scores" / source_hash() / f"{hashlib.sha256(case.name.encode()).hexdigest()[:16]}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(diagnose_case(case)))
    return json.loads(file.read_text())


def diagnose_case(case: Case) -> dict[str, object]:
    model, x, more = given = case.make()
    certificate = certify(case.condition, given, None if case.sound is None else case.sound())
    started = time.monotonic()
    found = vs.diagnose(model, x, budget=BUDGET, progress=None, **more)
    return {
        "name": case.name,
        "data": case.data,
        "half": case.half,
        "library": case.library,
        "condition": case.condition,
        "certified": certificate.holds,
        "measured": certificate.measured,
        "findings": [f.code for f in found.findings if f.severity != "note"],
        "notes": [f.code for f in found.findings if f.severity == "note"],
        "gap": "gap" not in found.skipped,
        "seconds": round(time.monotonic() - started, 1),
    }


def summary(rows: list[dict]) -> dict[str, object]:
    """Healthy models with a warning, wrong first causes, and precision and recall of every finding.

    Cases whose model does not have the planted condition do not count.
    """
    uncertified = sum(not row["certified"] for row in rows)
    rows = [row for row in rows if row["certified"]]
    healthy = [row for row in rows if row["condition"] == HEALTHY]
    faulty = [row for row in rows if row["condition"] != HEALTHY]
    first = {row["name"]: (row["findings"] or [None])[0] for row in rows}
    wrong = [row["name"] for row in faulty if first[row["name"]] not in (row["condition"], None)]
    named = Counter(code for code in first.values() if code is not None)
    right = Counter(row["condition"] for row in faulty if first[row["name"]] == row["condition"])
    planted = Counter(row["condition"] for row in faulty)
    return {
        "not_as_planted": uncertified,
        "healthy": len(healthy),
        "healthy_with_a_warning": sum(bool(row["findings"]) for row in healthy),
        "faulty": len(faulty),
        "found": sum(right.values()),
        "wrong_first_cause": len(wrong),
        "nothing_found": sum(first[row["name"]] is None for row in faulty),
        "by_finding": {
            code: {
                "planted": planted[code],
                "recall": right[code] / planted[code] if planted[code] else None,
                "precision": right[code] / named[code] if named[code] else None,
            }
            for code in sorted(set(planted) | set(named))
        },
    }


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows, wanted = [], [case for case in cases() if not names or case.data in names or case.half in names]
    for case in wanted:
        try:
            row = score_case(case)
        except Exception:
            print("failed:", case.name, traceback.format_exc().splitlines()[-1], flush=True)
            continue
        rows.append(row)
        right = (row["findings"] or [HEALTHY])[0] == case.condition
        verdict = "-  " if not row["certified"] else "ok " if right else "BAD"
        print(f"{verdict} {case.condition:18s} {case.name}: {row['findings']} {row['seconds']} s", flush=True)
    scores = {half: summary([row for row in rows if row["half"] == half]) for half in HALVES}
    print(json.dumps(scores, indent=1))
    if not names:
        RESULTS.write_text(
            json.dumps({"budget": BUDGET, "scores": scores, "cases": rows}, indent=1, ensure_ascii=False)
        )


if __name__ == "__main__":
    main(sys.argv[1:])
