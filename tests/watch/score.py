"""Score the rules of `vs.Watch`: python -m tests.watch.score [development|scored] [seeds] [fault …]."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from tests.watch.faults import DEVELOPMENT, NAMES, SCORED, Outcome, Setup, run, suitable


def outcomes(fault: str, setups: tuple[Setup, ...], seeds: Iterable[int]) -> list[Outcome]:
    """A run per seed; seeds go through the setups in turn."""
    usable = suitable(fault, setups)
    return [run(fault, usable[seed % len(usable)], seed) for seed in seeds]


def main() -> None:
    half = sys.argv[1] if len(sys.argv) > 1 else "development"
    seeds = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    setups = {"development": DEVELOPMENT, "scored": SCORED}[half]
    print(f"{half}, {seeds} seeds of each fault\n")
    print("| fault | right | named at, median share of the run | overhead |\n|---|---|---|---|")
    for fault in sys.argv[3:] or NAMES:
        begin = time.perf_counter()
        runs = outcomes(fault, setups, range(seeds))
        shares = sorted(o.first.step / o.lost for o in runs if o.first is not None)
        middle = f"{shares[len(shares) // 2]:.1%}" if shares else "-"
        overhead = sorted(o.watch.overhead for o in runs)[len(runs) // 2]
        right = sum(o.right for o in runs)
        print(f"| {fault} | {right} of {seeds} | {middle} | {overhead:.1%} |", flush=True)
        for outcome in runs:
            if not outcome.right:
                print(f"  wrong: {outcome}; all {[(f.code, f.step) for f in outcome.watch.findings]}", file=sys.stderr)
        print(f"  {time.perf_counter() - begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
