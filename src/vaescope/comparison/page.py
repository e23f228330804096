"""A comparison as one self-contained page: verdict, table, differences, matched latents, shared failures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from vaescope.comparison.drawings import drawings, matched_traversals
from vaescope.report.figures import svg
from vaescope.report.page import render, versions

if TYPE_CHECKING:
    from vaescope.comparison.compare import Comparison

PIXELS = 96  # per inch of figure width, at most
MATCHED = 4  # models whose latents are matched with those of the best, at most
COMMON = 20  # row numbers of common failures that are listed
LEGEND = (
    "ELBO, log p(x), gaps and KL in nats per sample. Family gap: what the best posterior of its kind loses; "
    "amortisation gap: what the encoder loses beyond it. c_IMA: how far the columns of the decoder's Jacobian are from "
    "orthogonal. "
    "Near-deterministic: whether posteriors are narrow and as Eq. 12 predicts. ±: two standard errors over samples."
)
_TRAVERSALS = (
    "One latent at a time, from -2 to 2 standard deviations of its prior, with the others fixed at a typical code. "
    "Each row is a matched pair; a minus sign marks a latent that is traversed backwards, because its correlation is "
    "negative."
)


@dataclass(frozen=True)
class MatchSection:
    """Matched latents of the best model and one other."""

    title: str
    rows: list[dict[str, object]]
    canonical: str
    picture: Markup | None
    width: int


def html(comparison: Comparison) -> str:
    """The page; text from users is escaped."""
    rows = [_page_row(row) for row in comparison.table]
    return render(
        "models.html",
        names=comparison.names,
        verdict=comparison.summary(),
        samples=len(comparison.models[0].sample),
        columns=[name for name in rows[0] if any(row.get(name) is not None for row in rows)],
        rows=rows,
        candidates=comparison.candidates,
        methods={str(row["model"]): row["method"] for row in comparison.table if row["method"]},
        legend=LEGEND,
        drawings=[(n, Markup(svg(f)), caption, _width(f)) for n, f, caption in drawings(comparison)],
        matches=_matches(comparison),
        failures=_failures(comparison),
        common=[] if comparison.failures is None else comparison.failures.common[:COMMON].tolist(),
        common_count=0 if comparison.failures is None else len(comparison.failures.common),
        traversal_caption=_TRAVERSALS,
        skipped=comparison.skipped,
        versions=versions(),
    )


def _page_row(row: dict[str, object]) -> dict[str, object]:
    """A row of the table with two standard errors beside each value, and without the method."""
    found = {name: value for name, value in row.items() if not name.endswith(" stderr") and name != "method"}
    for name, value in found.items():
        error = row.get(f"{name} stderr")
        if isinstance(value, float) and isinstance(error, float):
            found[name] = f"{value:.2f} ± {2 * error:.2g}"
    return found


def _width(figure: Figure) -> int:
    return round(PIXELS * figure.get_figwidth())


def _matches(comparison: Comparison) -> list[MatchSection]:
    """The best model (the first if there is none) with each of the next."""
    reference = comparison.best or comparison.names[0]
    return [_match(comparison, reference, name) for name in _ranked(comparison) if name != reference][:MATCHED]


def _ranked(comparison: Comparison) -> list[str]:
    if comparison.paired is None:
        return comparison.names
    order = np.argsort(-comparison.paired.difference[:, 0], kind="stable")
    return [comparison.names[i] for i in order]


def _match(comparison: Comparison, first: str, second: str) -> MatchSection:
    found = comparison.matched(first, second)
    a, b = (comparison.models[comparison.names.index(name)] for name in (first, second))
    figure = matched_traversals(a, b, found.latents)
    values = ", ".join(f"{v:.2f}" for v in found.canonical[:10]) + (", …" if len(found.canonical) > 10 else "")
    shared = f"{found.shared} direction{'s' * (found.shared != 1)}" if len(found.canonical) else "no direction"
    return MatchSection(
        f"{first} and {second}",
        found.rows(),
        f"Both models have {shared} in common, whatever their axes. Canonical correlations: {values or 'none'}.",
        None if figure is None else Markup(svg(figure)),
        0 if figure is None else _width(figure),
    )


def _failures(comparison: Comparison) -> list[dict[str, object]]:
    """A row per pair with the best model."""
    if comparison.failures is None or comparison.best is None:
        return []
    best = comparison.names.index(comparison.best)
    return [
        {
            "models": f"{comparison.best} and {name}",
            "worst 5 % in common": float(comparison.failures.overlap[best, k]),
            "rank correlation of ELBOs": float(comparison.failures.rank_correlation[best, k]),
        }
        for k, name in enumerate(comparison.names)
        if k != best
    ]
