"""Signed distances of flat shapes, for a batch of images, and colours.

Coordinates run from 0 to 1 over the image, x to the right and y down. The `radius` of a shape is that of its
circumscribed circle. Distances are exact inside and near the edge, which is sufficient for anti-aliasing, and
differentiable almost everywhere, so that the IMA contrast of the renderer itself can be computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Distances = Float[Tensor, "N H W"]
PerImage = Float[Tensor, " N"]


@dataclass(frozen=True, eq=False)
class SpriteCoordinates:
    """Pixel centres in the coordinate system of each sprite: centred on it and rotated with it."""

    x: Distances
    y: Distances
    radius: Float[Tensor, "N 1 1"]


def sprite_coordinates(size: int, x: PerImage, y: PerImage, radius: PerImage, angle: PerImage) -> SpriteCoordinates:
    """Coordinates of all pixels; a rotation is the sum of a row and a column, so it costs two additions per pixel."""
    centres = (torch.arange(size, dtype=x.dtype, device=x.device) + 0.5) / size
    dx, dy = centres - x[:, None], centres - y[:, None]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return SpriteCoordinates(
        (cos * dx)[:, None, :] + (sin * dy)[:, :, None],
        (-sin * dx)[:, None, :] + (cos * dy)[:, :, None],
        radius[:, None, None],
    )


def square(p: SpriteCoordinates) -> Distances:
    return torch.maximum(p.x.abs(), p.y.abs()) - p.radius * math.sqrt(0.5)


def triangle(p: SpriteCoordinates) -> Distances:
    """Equilateral, one corner at the top."""
    slanted = math.sqrt(0.75) * p.x.abs() - 0.5 * p.y
    return torch.maximum(p.y, slanted) - 0.5 * p.radius


def circle(p: SpriteCoordinates) -> Distances:
    return (p.x.square() + p.y.square() + 1e-12).sqrt() - p.radius


def ellipse(p: SpriteCoordinates) -> Distances:
    """Twice as wide as high; a first-order approximation of the distance."""
    u, v = p.x / p.radius, p.y / (0.5 * p.radius)
    level = u.square() + v.square()
    slope = 2 * ((u / p.radius).square() + (v / (0.5 * p.radius)).square() + 1e-12).sqrt()
    return (level - 1) / slope


def heart(p: SpriteCoordinates) -> Distances:
    """A square standing on a corner, with a semicircle on each upper side."""
    side = 0.92 * p.radius  # so that the circumscribed circle has this radius
    y = p.y - 0.28 * side
    s = math.sqrt(0.5)
    tilted = torch.maximum((s * (p.x + y)).abs(), (s * (p.x - y)).abs()) - 0.5 * side
    step = 0.25 * math.sqrt(2) * side
    lobe = ((p.x.abs() - step).square() + (y + step).square() + 1e-12).sqrt() - 0.5 * side
    return torch.minimum(tilted, lobe)


SHAPES = {"triangle": triangle, "square": square, "ellipse": ellipse, "heart": heart, "circle": circle}


def coverage(distance: Distances, size: int) -> Distances:
    """The share of each pixel inside the shape; it falls from 1 to 0 over the width of one pixel."""
    return (0.5 - size * distance).clamp(0.0, 1.0)


def hue_to_rgb(hue: PerImage) -> Float[Tensor, "N 3"]:
    """Fully saturated colours; hue 0 and hue 1 are both red.

    >>> hue_to_rgb(torch.tensor([0.0, 1 / 3])).round(decimals=4).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    h = 6 * (hue % 1.0)
    return torch.stack([(h - 3).abs() - 1, 2 - (h - 2).abs(), 2 - (h - 4).abs()], dim=1).clamp(0.0, 1.0)
