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


Points = Float[Tensor, "N P 3"]
Depths = Float[Tensor, "N P"]
PerSceneImage = Float[Tensor, "N 1"]

FAR = 1e6  # depth of rays that hit nothing
OVERSAMPLING = 2  # rays per pixel along each side


def camera_rays(size: int, orientation: Float[Tensor, " N"]) -> tuple[Float[Tensor, "N 1 3"], Points]:
    """Origin and directions of the rays through all pixels, row by row; the camera orbits the centre of the room."""
    distance, height, target = 3.3, 2.1, 0.62  # from the centre, of the camera, and of the point that it looks at
    count = OVERSAMPLING * size
    grid = ((torch.arange(count, dtype=orientation.dtype) + 0.5) / count * 2 - 1) * 0.5  # half the width at distance 1
    phi = orientation * math.pi / 180
    zero, one = torch.zeros_like(phi), torch.ones_like(phi)
    origin = torch.stack([distance * phi.sin(), -distance * phi.cos(), height * one], 1)
    forward = torch.stack([zero, zero, target * one], 1) - origin
    forward = forward / forward.norm(dim=1, keepdim=True)
    right = torch.stack([phi.cos(), phi.sin(), zero], 1)
    up = torch.linalg.cross(right, forward)
    plane = (
        grid.repeat(count)[None, :, None] * right[:, None] - grid.repeat_interleave(count)[None, :, None] * up[:, None]
    )
    direction = forward[:, None] + plane
    return origin[:, None], direction / direction.norm(dim=2, keepdim=True)


def _nonzero(values: Tensor) -> Tensor:
    """Values that may be divided by."""
    return torch.where(values.abs() < 1e-9, torch.full_like(values, 1e-9), values)


def cube(origin: Tensor, direction: Points, scale: PerSceneImage) -> tuple[Depths, Points]:
    half = 0.55 * scale[..., None]
    centre = torch.cat([torch.zeros_like(half), torch.zeros_like(half), half], -1)
    inverse = 1 / _nonzero(direction)
    middle, reach = (centre - origin) * inverse, half * inverse.abs()
    enter, axis = (middle - reach).max(-1)
    leave = (middle + reach).amin(-1)
    normal = -torch.nn.functional.one_hot(axis, 3).to(direction) * direction.sign()
    return torch.where((enter <= leave) & (enter > 1e-4), enter, FAR), normal


def sphere(origin: Tensor, direction: Points, scale: PerSceneImage) -> tuple[Depths, Points]:
    return _ball(origin, direction, 0.62 * scale, 0.62 * scale)


def cylinder(origin: Tensor, direction: Points, scale: PerSceneImage) -> tuple[Depths, Points]:
    radius, height = 0.52 * scale, 1.1 * scale
    side, normal = _tube(origin, direction, radius, torch.zeros_like(height), height)
    lid = (height - origin[..., 2]) / _nonzero(direction[..., 2])
    on_lid = (origin[..., :2] + lid[..., None] * direction[..., :2]).square().sum(-1) <= radius.square()
    lid = torch.where(on_lid & (lid > 1e-4), lid, FAR)
    up = torch.tensor([0.0, 0.0, 1.0], dtype=direction.dtype)
    return _nearer((side, normal), (lid, up.expand_as(direction)))


def capsule(origin: Tensor, direction: Points, scale: PerSceneImage) -> tuple[Depths, Points]:
    radius, height = 0.42 * scale, 1.45 * scale
    body = _tube(origin, direction, radius, radius, height - radius)
    return _nearer(
        _nearer(body, _ball(origin, direction, radius, radius)), _ball(origin, direction, radius, height - radius)
    )


OBJECTS = (cube, cylinder, sphere, capsule)


def _ball(origin: Tensor, direction: Points, radius: PerSceneImage, centre: PerSceneImage) -> tuple[Depths, Points]:
    offset = origin - torch.stack([torch.zeros_like(centre), torch.zeros_like(centre), centre], -1)
    half_b = (offset * direction).sum(-1)
    depth = _first_root(torch.ones_like(half_b), half_b, offset.square().sum(-1) - radius.square())
    return depth, (offset + depth[..., None].clamp(max=1e3) * direction) / radius[..., None]


def _tube(
    origin: Tensor, direction: Points, radius: PerSceneImage, low: PerSceneImage, high: PerSceneImage
) -> tuple[Depths, Points]:
    o, d = origin[..., :2], direction[..., :2]
    depth = _first_root(d.square().sum(-1), (o * d).sum(-1), o.square().sum(-1) - radius.square())
    z = origin[..., 2] + depth * direction[..., 2]
    depth = torch.where((z >= low) & (z <= high), depth, FAR)
    flat = (o + depth[..., None].clamp(max=1e3) * d) / radius[..., None]
    return depth, torch.cat([flat, torch.zeros_like(flat[..., :1])], -1)


def _first_root(a: Depths, half_b: Depths, c: Tensor) -> Depths:
    """The first positive t with a t² + 2 half_b t + c = 0."""
    discriminant = half_b.square() - a * c
    root = (-half_b - discriminant.clamp(min=0).sqrt()) / a.clamp(min=1e-12)
    return torch.where((discriminant > 0) & (root > 1e-4), root, FAR)


def _nearer(a: tuple[Depths, Points], b: tuple[Depths, Points]) -> tuple[Depths, Points]:
    return torch.minimum(a[0], b[0]), torch.where((a[0] <= b[0])[..., None], a[1], b[1])


def light_maps(
    size: int, shape: int, scale: Float[Tensor, " N"], orientation: Float[Tensor, " N"]
) -> Float[Tensor, "N 4 P"]:
    """Floor, wall, object and white light per pixel (size², row by row), averaged over several rays."""
    origin, direction = camera_rays(size, orientation)
    sun = torch.tensor((-0.45, -0.55, 0.95), dtype=scale.dtype)
    sun = (sun / sun.norm()).expand_as(direction)
    depth, normal = OBJECTS[shape](origin, direction, scale[:, None])
    dz, d = direction[..., 2], _nonzero(direction[..., :2])
    floor = torch.where(dz < -1e-6, -origin[..., 2] / dz.clamp(max=-1e-6), FAR)
    wall, axis = ((d.sign() * 3.6 - origin[..., :2]) / d).min(-1)  # half the width of the room
    wall_light = torch.where(axis == 0, 0.74, 0.88)  # makes the corners visible
    ground = origin + torch.minimum(floor, wall)[..., None] * direction
    shade = torch.where(OBJECTS[shape](ground + 1e-3 * sun, sun, scale[:, None])[0] < FAR, 0.62, 1.0)
    hit = depth < torch.minimum(floor, wall)
    on_floor = ~hit & (floor <= wall)
    lambert = 0.42 + 0.58 * (normal * sun).sum(-1).clamp(min=0)
    halfway = torch.nn.functional.normalize(sun - direction, dim=-1)
    gloss = 0.35 * (normal * halfway).sum(-1).clamp(min=0).pow(40)
    layers = (on_floor * 0.95 * shade, (~hit & ~on_floor) * wall_light * shade, hit * lambert, hit * gloss)
    fine = torch.stack([layer.to(scale.dtype) for layer in layers], 1)
    pooled = fine.reshape(len(fine), 4, size, OVERSAMPLING, size, OVERSAMPLING).mean((3, 5))
    return pooled.reshape(len(fine), 4, size * size)
