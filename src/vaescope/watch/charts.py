"""Line charts as plain SVG text: a page that is drawn again and again must cost little."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

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
