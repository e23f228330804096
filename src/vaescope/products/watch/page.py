"""A watch as a page that reloads itself, and as a part of a notebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from vaescope.products.watch.row import EarlyFinding, Row
from vaescope.report.page import number, render

if TYPE_CHECKING:
    from vaescope.products.watch.watch import Trend


COLOURS = ("#1f5fa8", "#d1592b", "#2c8a5b", "#8150a8", "#b08a1e", "#5d6b78")
WIDTH, HEIGHT = 520, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 30, 34
MAX_POINTS = 300


@dataclass(frozen=True)
class Line:
    """Values at steps; those that are not finite are left out."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]
    colour: str = COLOURS[0]
    faint: bool = False

    @property
    def points(self) -> list[tuple[int, float]]:
        found = [(s, v) for s, v in zip(self.steps, self.values, strict=True) if math.isfinite(v)]
        stride = max(1, len(found) // MAX_POINTS)
        return found[::-1][::stride][::-1]  # the last point is always drawn


def chart(title: str, lines: Sequence[Line], *, marks: Sequence[int] = (), focus: bool = False) -> Markup:
    """An SVG chart.

    Args:
        title: with units.
        lines: those with the same label share one entry of the legend.
        marks: steps with findings, drawn as vertical lines.
        focus: leave the lowest tenth of the values out of the range, so that a poor start does not hide the rest.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return Markup("")
    low, high = _limits([v for _, v in points], focus)
    first, last = min(s for s, _ in points), max(s for s, _ in points)
    scale = _Scale(float(first), float(max(last, first + 1)), float(low), float(high))
    parts = [f'<text x="{LEFT}" y="16" class="title">{escape(title)}</text>']
    parts += [_tick(scale, value) for value in _ticks(low, high)]
    for step, anchor in ((first, "start"), (last, "end")):
        x = scale.x(step)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 12}" text-anchor="{anchor}" class="tick">step {step:,}</text>')
    parts += [_mark(scale.x(step)) for step in marks if first <= step <= last]
    parts += [_polyline(scale, line) for line in lines]
    parts += _legend(lines)
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>')


@dataclass(frozen=True)
class _Scale:
    first: float
    last: float
    low: float
    high: float

    def x(self, step: float | int) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - self.first) / (self.last - self.first)

    def y(self, value: float | int) -> float:
        inside = min(max(value, self.low), self.high)
        return TOP + (HEIGHT - TOP - BOTTOM) * (self.high - inside) / (self.high - self.low)


def _limits(values: list[float], focus: bool) -> tuple[float, float]:
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10] if focus else ordered[0], ordered[-1]
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - margin if low < 0 or low - margin > 0 else 0.0, high + margin


def _ticks(low: float, high: float) -> list[float]:
    """About four round numbers."""
    raw = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * m for m in (1, 2, 2.5, 5, 10) if unit * m >= raw)
    return [k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _tick(scale: _Scale, value: float | int) -> str:
    y = scale.y(value)
    line = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
    return line + f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end" class="tick">{_short(value)}</text>'


def _short(value: float | int) -> str:
    """A tick with few characters."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:.1e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def _mark(x: float) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" class="mark"/>'


def _polyline(scale: _Scale, line: Line) -> str:
    points = line.points
    if len(points) == 1:
        (step, value) = points[0]
        return f'<circle cx="{scale.x(step):.1f}" cy="{scale.y(value):.1f}" r="3" fill="{line.colour}"/>'
    path = " ".join(f"{scale.x(s):.1f},{scale.y(v):.1f}" for s, v in points)
    opacity = ' stroke-opacity="0.35"' if line.faint else ""
    return f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.8"{opacity}/>'


def _legend(lines: Sequence[Line]) -> list[str]:
    """Labels at the right of the title, in the colours of their lines."""
    labels = {line.label: line.colour for line in lines if line.label}
    found, x = [], float(WIDTH - RIGHT)
    for label, colour in reversed(labels.items()):
        found.append(f'<text x="{x:.0f}" y="16" text-anchor="end" fill="{colour}" class="key">{escape(label)}</text>')
        x -= 7.0 * len(label) + 14
    return found


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
