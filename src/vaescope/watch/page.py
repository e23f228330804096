"""A watch as a page that reloads itself, and as a part of a notebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from vaescope.report.page import number, render
from vaescope.watch.charts import COLOURS, Line, chart
from vaescope.watch.row import EarlyFinding, Row

if TYPE_CHECKING:
    from vaescope.watch.watch import Trend

MAX_LATENTS = 64  # whose KL is drawn


def html(
    name: str, rows: Sequence[Row], findings: Sequence[EarlyFinding], trend: Trend | None, *, refresh: int | None
) -> str:
    """The page.

    Args:
        name: of the model.
        rows: all rows.
        findings: all findings.
        trend: of the ELBO.
        refresh: seconds after which a browser reloads the page.
    """
    return render("watch.html", name=name, refresh=refresh, **_content(rows, findings, trend))


def fragment(rows: Sequence[Row], findings: Sequence[EarlyFinding], trend: Trend | None) -> str:
    """The findings and charts without a page around them."""
    return render("watch_fragment.html", **_content(rows, findings, trend))


def _content(rows: Sequence[Row], findings: Sequence[EarlyFinding], trend: Trend | None) -> dict[str, object]:
    return {
        "rows": len(rows),
        "findings": list(reversed(findings)),
        "verdict": _verdict(rows, findings),
        "facts": _facts(rows[-1], trend) if rows else [],
        "charts": _charts(rows, findings),
    }


def _verdict(rows: Sequence[Row], findings: Sequence[EarlyFinding]) -> str:
    if not rows:
        return "No rows yet."
    serious = [f for f in findings if f.severity != "note"]
    return serious[0].title if serious else "No issues found so far."


def _facts(now: Row, trend: Trend | None) -> list[tuple[str, str]]:
    shown: list[tuple[str, object]] = [("Step", f"{now.step:,}"), ("ELBO", now.elbo)]
    shown += [] if now.validation is None else [("Validation ELBO", now.validation.elbo)]
    shown += [] if trend is None else [("Still learning?", _trend(trend))]
    shown += [("KL", now.bound.kl), ("In use", f"{now.used} of {len(now.kl)} latents"), ("β", now.beta)]
    shown += [("σ", now.sigma), ("β / γ²", now.effective_beta), ("Explained variance", now.bound.explained)]
    shown += [("c_IMA", now.latents.contrast), ("Log-variance", "{:.3g} to {:.3g}".format(*now.latents.log_variance))]
    return [(label, number(value)) for label, value in shown if value is not None]


def _trend(trend: Trend) -> str:
    sign = "yes" if trend.improving else "no"
    return f"{sign}: {trend.change:+.3g} ± {trend.stderr:.2g} nats since step {trend.since:,}"


def _charts(rows: Sequence[Row], findings: Sequence[EarlyFinding]) -> list[Markup]:
    marks = sorted({f.step for f in findings if f.severity != "note"})
    steps = [row.step for row in rows]

    def line(label: str, value: Callable[[Row], float | None], colour: int = 0, *, faint: bool = False) -> Line:
        values = [math.nan if (found := value(row)) is None else float(found) for row in rows]
        return Line(label, steps, values, COLOURS[colour % len(COLOURS)], faint)

    latents = range(min(MAX_LATENTS, len(rows[-1].kl))) if rows else range(0)
    drawn = [
        chart(
            "ELBO, nats per sample",
            [
                line("training", lambda r: r.elbo),
                line("validation", lambda r: None if r.validation is None else r.validation.elbo, 1),
            ],
            marks=marks,
            focus=True,
        ),
        chart("KL of each latent, nats", [line("", _kl(k), k) for k in latents], marks=marks),
        chart("Latents in use", [line("", lambda r: r.used, 2)], marks=marks),
        chart("σ of the decoder", [line("", lambda r: r.sigma, 3)], marks=marks),
        chart("β", [line("", lambda r: r.beta, 4)], marks=marks) if _varies(rows) else Markup(""),
        chart(
            "Log-variance of posteriors",
            [
                line("largest", lambda r: r.latents.log_variance[1], 1),
                line("smallest", lambda r: r.latents.log_variance[0]),
            ],
            marks=marks,
        ),
        chart("Gradient norm", [line("", _gradient, 5)], marks=marks),
        chart("c_IMA of the decoder, nats", [line("", lambda r: r.latents.contrast, 3)], marks=marks),
    ]
    return [one for one in drawn if one]


def _kl(k: int) -> Callable[[Row], float]:
    return lambda row: row.kl[k]


def _gradient(row: Row) -> float | None:
    return None if row.weights is None else row.weights.gradient_norm


def _varies(rows: Sequence[Row]) -> bool:
    return len({row.beta for row in rows}) > 1
