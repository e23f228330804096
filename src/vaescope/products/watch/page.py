"""A watch as a page that reloads itself, and as a part of a notebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from vaescope.products.watch.row import Row
from vaescope.report.page import COLOURS, number, render

if TYPE_CHECKING:
    from vaescope.products.watch.watch import Watch


WIDTH, HEIGHT = 520, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 30, 34


@dataclass(frozen=True)
class Line:
    """Values at steps; those that are not finite are left out, and at most about 300 are drawn."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]
    colour: str = COLOURS[0]

    @property
    def points(self) -> list[tuple[int, float]]:
        found = [(s, v) for s, v in zip(self.steps, self.values, strict=True) if math.isfinite(v)]
        stride = max(1, len(found) // 300)
        return found[::-1][::stride][::-1]  # the last point is always drawn


def chart(title: str, lines: Sequence[Line], *, marks: Sequence[int] = (), focus: bool = False) -> Markup:
    """An SVG chart.

    Args:
        title: with units.
        lines: those with the same label share one entry of the legend.
        marks: steps with findings, drawn as vertical lines.
        focus: leave the lowest tenth of the values out of the range, so that a poor start does not hide the rest.
    """
    drawn = [line.points for line in lines]
    points = [point for line in drawn for point in line]
    if not points:
        return Markup("")
    low, high = _limits([v for _, v in points], focus)
    first, last = min(s for s, _ in points), max(s for s, _ in points)

    def x(step: int | float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / max(last - first, 1):.1f}"

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - min(max(value, low), high)) / (high - low)

    parts = [f'<text x="{LEFT}" y="16" class="title">{escape(title)}</text>']
    for value in _ticks(low, high):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>')
        label = f'y="{y(value) + 4:.1f}" text-anchor="end" class="tick">{_short(value)}</text>'
        parts.append(f'<text x="{LEFT - 6}" {label}')
    for step, anchor in ((first, "start"), (last, "end")):
        label = f'text-anchor="{anchor}" class="tick">step {step:,}</text>'
        parts.append(f'<text x="{x(step)}" y="{HEIGHT - 12}" {label}')
    mark = '<line x1="{0}" x2="{0}" y1="{1}" y2="{2}" class="mark"/>'
    parts += [mark.format(x(step), TOP, HEIGHT - BOTTOM) for step in marks if first <= step <= last]
    for line, own in zip(lines, drawn, strict=True):
        if len(own) == 1:
            ((step, value),) = own
            parts.append(f'<circle cx="{x(step)}" cy="{y(value):.1f}" r="3" fill="{line.colour}"/>')
        else:
            path = " ".join(f"{x(s)},{y(v):.1f}" for s, v in own)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.8"/>')
    right = float(WIDTH - RIGHT)  # labels at the right of the title, in the colours of their lines
    for name, colour in reversed({line.label: line.colour for line in lines if line.label}.items()):
        label = f'text-anchor="end" fill="{colour}" class="key">{escape(name)}</text>'
        parts.append(f'<text x="{right:.0f}" y="16" {label}')
        right -= 7.0 * len(name) + 14
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>')


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


def _short(value: float) -> str:
    """A tick with few characters."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}"
    return f"{value:.1e}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def html(watch: Watch, template: str, *, refresh: int | None = None) -> str:
    """The page (`watch.html`), or findings and charts without a page around them (`watch_fragment.html`).

    Args:
        watch: what is shown.
        template: of the page or of the fragment.
        refresh: seconds after which a browser reloads the page.
    """
    return render(
        template,
        name=watch.name,
        refresh=refresh,
        rows=len(watch.rows),
        findings=watch.findings[::-1],
        verdict=watch.verdict,
        facts=facts(watch),
        charts=charts(watch),
    )


def facts(watch: Watch) -> list[tuple[str, str]]:
    """The last row, with labels."""
    if not watch.rows:
        return []
    now, trend = watch.rows[-1], watch.trend()
    learning = None
    if trend is not None:
        sign = "yes" if trend.improving else "no"
        learning = f"{sign}: {trend.change:+.3g} ± {trend.stderr:.2g} nats since step {trend.since:,}"
    shown: list[tuple[str, object]] = [
        ("Step", f"{now.step:,}"),
        ("ELBO", now.elbo),
        ("Validation ELBO", None if now.validation is None else now.validation.elbo),
        ("Still learning?", learning),
        ("KL", now.bound.kl),
        ("In use", f"{now.used} of {len(now.kl)} latents"),
        ("β", now.beta),
        ("σ", now.sigma),
        ("β / γ²", now.effective_beta),
        ("Explained variance", now.bound.explained),
        ("c_IMA", now.latents.contrast),
        ("Log-variance", "{:.3g} to {:.3g}".format(*now.latents.log_variance)),
    ]
    return [(label, number(value)) for label, value in shown if value is not None]


def charts(watch: Watch) -> list[Markup]:
    """What is drawn over steps, with marks at findings."""
    rows = watch.rows
    marks = sorted({f.step for f in watch.findings if f.severity != "note"})
    steps = [row.step for row in rows]

    def line(label: str, value: Callable[[Row], float | None], colour: int = 0) -> Line:
        values = [math.nan if (found := value(row)) is None else float(found) for row in rows]
        return Line(label, steps, values, COLOURS[colour % len(COLOURS)])

    def validation(row: Row) -> float | None:
        return None if row.validation is None else row.validation.elbo

    def latent_kl(latent: int) -> Callable[[Row], float]:
        return lambda row: row.kl[latent]

    latents = range(min(64, len(rows[-1].kl))) if rows else range(0)
    lines = {
        "ELBO, nats per sample": [line("training", lambda r: r.elbo), line("validation", validation, 1)],
        "KL of each latent, nats": [line("", latent_kl(k), k) for k in latents],
        "Latents in use": [line("", lambda r: r.used, 2)],
        "σ of the decoder": [line("", lambda r: r.sigma, 3)],
        "β": [line("", lambda r: r.beta, 4)] if len({row.beta for row in rows}) > 1 else [],
        "Log-variance of posteriors": [
            line("largest", lambda r: r.latents.log_variance[1], 1),
            line("smallest", lambda r: r.latents.log_variance[0]),
        ],
        "Gradient norm": [line("", lambda r: None if r.weights is None else r.weights.gradient_norm, 5)],
        "c_IMA of the decoder, nats": [line("", lambda r: r.latents.contrast, 3)],
    }
    drawn = [chart(title, shown, marks=marks, focus=title.startswith("ELBO")) for title, shown in lines.items()]
    return [one for one in drawn if one]
