"""Tables of the docs, from the JSON files that the benchmarks wrote: `python -m benchmarks.tables` prints all of them.

A test compares them with the pages, so that a number in the docs is one that was measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
CURVED = ("curved, d = 2 to 4", "curved, d = 5 to 8")


def _stored(name: str) -> Any:
    return json.loads((DOCS / f"figures/{name}.json").read_text())


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(value) for value in line) + " |" for line in lines)


def linear() -> str:
    found = _stored("preflight")["linear"]
    first, last = found["spectra"]
    return _table(
        ["random spectra", "models", "count exact", "KL, largest difference", "collapse line, largest factor"],
        [
            [
                last - first + 1,
                found["cells"],
                f"{found['equal']} of {found['cells']}",
                f"{found['KL, largest difference']:.2f} nats",
                f"{found['boundary, largest factor']:.2f}",
            ]
        ],
    )


def curved() -> str:
    parts = [_stored("preflight")[part] for part in CURVED]
    total = {key: sum(part[key] for part in parts) for key in parts[0] if isinstance(parts[0][key], int)}

    def of(part: str, whole: str) -> str:
        return f"{total[part]} of {total[whole]} ({total[part] / max(1, total[whole]):.0%})"

    return _table(
        ["", "converged models"],
        [
            ["used latents as predicted by `active`, to one", of("within one", "converged")],
            ["as predicted by `active(…, least_kl=0)`, to one", of("within one, any KL", "converged")],
            ["the linear count, to one", of("linear within one", "converged")],
            ["all latents collapsed at β/γ² = 1.5 λ₁", of("above the line, collapsed", "above the line")],
            ["latents used at β/γ² = λ₁ / 1.5", of("below the line, in use", "below the line")],
        ],
    )


def real() -> str:
    return _table(
        ["data", "samples x columns", "predicted", "trained", "converged, to one", "collapse line / λ₁"],
        [_real_row(name, found) for name, found in _stored("preflight")["real"].items()],
    )


def _real_row(name: str, found: Mapping[str, Any]) -> list[str]:
    """Counts of the models with most latents, by rising β/γ²; those that have not converged in parentheses."""
    most = max(latents for _, latents, *_ in found["cells"])
    cells = [cell for cell in found["cells"] if cell[1] == most]
    done = [cell for cell in found["cells"] if cell[4]]
    right = sum(abs(predicted - used) <= 1 for _, _, predicted, used, _ in done)
    return [
        name,
        f"{found['rows']} x {found['columns']}",
        " ".join(str(cell[2]) for cell in cells),
        " ".join(str(cell[3]) if cell[4] else f"({cell[3]})" for cell in cells),
        f"{right} of {len(done)}",
        f"{found['boundary']:.2f}",
    ]


def speed() -> str:
    found = _stored("preflight")["speed"]
    return _table(
        ["data", "CPU seconds, one thread", "memory allocated at most"],
        [
            ["60,000 x 784, in memory", f"{found['60,000 x 784, CPU seconds']:.1f}", ""],
            [
                "1,000,000 x 50, a file of 200 MB, with memory traced",
                f"{found['1,000,000 x 50, CPU seconds']:.1f}",
                f"{found['1,000,000 x 50, MB allocated at most']:.0f} MB",
            ],
            ["100,000 x 50", "", f"{found['100,000 x 50, MB allocated at most']:.0f} MB"],
        ],
    )


def faults() -> str:
    found = {name: row for name, row in _stored("watch")["faults"].items() if name != "seeds"}
    return _table(
        ["planted fault", "named first, in time", "after this share of the run (median)"],
        [[name, f"{row['right']} of {row['runs']}", _share(row)] for name, row in found.items()],
    ).replace("| healthy |", "| none: runs without a finding |")


def _share(row: Mapping[str, Any]) -> str:
    return "" if row["share of the run, median"] is None else f"{row['share of the run, median']:.1%}"


def overhead() -> str:
    return _table(
        ["network, batches of 64", "steps", "rows", "overhead, CPU time"],
        [
            [name, row["steps"], row["rows"], f"{row['overhead, CPU']:.1%}"]
            for name, row in _stored("watch")["overhead"].items()
        ],
    )


def schedules() -> str:
    return _table(
        ["data", "schedule", "latents in use", "KL", "ELBO"],
        [[row["data"], f"`{row['schedule']}`", row["used"], row["KL"], row["ELBO"]] for row in _stored("schedules")],
    )


def starts() -> str:
    return _table(
        [
            "data",
            "random weights",
            "random weights, as many steps as a start",
            '`start="geometry"`',
            "seconds of the last two",
        ],
        [
            [row["data"], *(_scores(row[key]) for key in ("random", "random, longer", "geometry")), _seconds(row)]
            for row in _stored("starts")
        ],
    )


def _scores(found: Mapping[str, Any]) -> str:
    """Median and range of the ELBO, and the median MCC where it is known."""
    low, middle, high = sorted(found["ELBO"])
    mcc = f"; MCC {sorted(found['MCC'])[1]:.2f}" if found["MCC"] else ""
    return f"{middle:.2f} ({low:.2f} to {high:.2f}){mcc}"


def _seconds(row: Mapping[str, Any]) -> str:
    return f"{row['random, longer']['seconds']:.1f}, {row['geometry']['seconds']:.1f}"


def coverage() -> str:
    found = _stored("leakage")
    return _table(
        ["problems", "replications", "truth in the 95 % interval", "mean error, nats", "mean absolute error, nats"],
        [
            [
                kind,
                one["replications"],
                f"{one['inside'] / one['replications']:.1%}",
                f"{one['mean error']:+.3f}",
                f"{one['mean absolute error']:.3f}",
            ]
            for kind, one in found.items()
        ],
    )


def check_size() -> str:
    found = _stored("check")["size"]
    return _table(
        ["data of the model itself", "replications", "with a finding"],
        [[case, one["replications"], f"{one['vs.check'] / one['replications']:.1%}"] for case, one in found.items()],
    )


PAGES: dict[str, tuple[Callable[[], str], ...]] = {
    "leakage.md": (coverage,),
    "check.md": (check_size,),
    "preflight.md": (linear, curved, real, speed),
    "questions/factors-without-labels.md": (starts,),
    "questions/is-it-still-learning.md": (overhead,),
    "questions/why-is-my-loss-nan.md": (faults,),
    "questions/why-did-my-vae-collapse.md": (schedules,),
}
"""The tables of every page."""


def main() -> None:
    for page, tables in PAGES.items():
        for table in tables:
            print(f"{page}, {table.__name__}\n\n{table()}\n")


if __name__ == "__main__":
    main()
