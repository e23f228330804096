"""Flat shapes as signed distances, on a whole batch of frames at once, and colours.

Coordinates run from 0 to 1 over the frame, x to the right and y down. A shape's `radius` is that of the
circle around it. Distances are exact inside and near the edge, which is all that anti-aliasing needs; they
are smooth enough to differentiate, so that the contrast of the renderer itself can be measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Frames = Float[Tensor, "N H W"]
Each = Float[Tensor, " N"]


@dataclass(frozen=True, eq=False)
class Placed:
    """Pixel centres in the coordinates of every sprite: shifted to its centre and turned with it."""

    across: Frames
    along: Frames
    radius: Float[Tensor, "N 1 1"]


def place(size: int, x: Each, y: Each, radius: Each, angle: Each) -> Placed:
    """Two additions per pixel: a rotation is the sum of a row and a column."""
    centres = (torch.arange(size, dtype=x.dtype, device=x.device) + 0.5) / size
    dx, dy = centres - x[:, None], centres - y[:, None]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return Placed(
        (cos * dx)[:, None, :] + (sin * dy)[:, :, None],
        (-sin * dx)[:, None, :] + (cos * dy)[:, :, None],
        radius[:, None, None],
    )


def square(p: Placed) -> Frames:
    return torch.maximum(p.across.abs(), p.along.abs()) - p.radius * math.sqrt(0.5)


def triangle(p: Placed) -> Frames:
    """Equilateral, one corner up."""
    slanted = math.sqrt(0.75) * p.across.abs() - 0.5 * p.along
    return torch.maximum(p.along, slanted) - 0.5 * p.radius


def circle(p: Placed) -> Frames:
    return (p.across.square() + p.along.square() + 1e-12).sqrt() - p.radius


def ellipse(p: Placed) -> Frames:
    """Twice as wide as high; the distance to first order in the distance."""
    u, v = p.across / p.radius, p.along / (0.5 * p.radius)
    level = u.square() + v.square()
    slope = 2 * ((u / p.radius).square() + (v / (0.5 * p.radius)).square() + 1e-12).sqrt()
    return (level - 1) / slope


def heart(p: Placed) -> Frames:
    """A square on its corner, with a half-circle on each of its upper sides."""
    side = 0.92 * p.radius  # the circle around it then has the radius asked for
    along = p.along - 0.28 * side
    s = math.sqrt(0.5)
    tilted = torch.maximum((s * (p.across + along)).abs(), (s * (p.across - along)).abs()) - 0.5 * side
    step = 0.25 * math.sqrt(2) * side
    lobe = ((p.across.abs() - step).square() + (along + step).square() + 1e-12).sqrt() - 0.5 * side
    return torch.minimum(tilted, lobe)


SHAPES = {"triangle": triangle, "square": square, "ellipse": ellipse, "heart": heart, "circle": circle}


def coverage(distance: Frames, size: int) -> Frames:
    """How much of each pixel lies inside, from 0 to 1 over one pixel."""
    return (0.5 - size * distance).clamp(0.0, 1.0)


def rgb(hue: Each) -> Float[Tensor, "N 3"]:
    """Fully saturated colours; 0 and 1 are the same red.

    >>> rgb(torch.tensor([0.0, 1 / 3])).round(decimals=4).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    h = 6 * (hue % 1.0)
    return torch.stack([(h - 3).abs() - 1, 2 - (h - 2).abs(), 2 - (h - 4).abs()], dim=1).clamp(0.0, 1.0)
