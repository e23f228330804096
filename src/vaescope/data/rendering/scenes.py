"""Stand-ins with the factors of MPI3D and 3DFaces, rendered from them: a robot arm with an object, and a head.

They have the structure of the published data (the same factors, with as many values), and none of its pixels. Edges
are anti-aliased and shading is smooth, so that images are differentiable in the continuous factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.data.rendering.images import GridFactor, Renderer, coverage, evenly_spaced

Pixels = Float[Tensor, "N H W"]
Vectors = Float[Tensor, "N 3"]
PerImage = Float[Tensor, " N"]


def classes(name: str, count: int) -> GridFactor:
    """A factor whose values are class numbers."""
    return GridFactor(name, tuple(map(float, range(count))), continuous=False)


def column(values: PerImage) -> Float[Tensor, "N 1 1"]:
    """One number per image, to be combined with pixels."""
    return values[:, None, None]


def linear(rows: Float[Tensor, "N H"], columns: Float[Tensor, "N W"]) -> Pixels:
    """The sum of a number per row and one per column."""
    return rows[:, :, None] + columns[:, None, :]


def pixel_centres(size: int, like: Tensor) -> Float[Tensor, " S"]:
    """From 0 to 1 over the image."""
    return (torch.arange(size, dtype=like.dtype, device=like.device) + 0.5) / size


# a robot arm with an object -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Camera:
    """In front of the arm at some height, turned to a point of its post; half the image's width at distance 1."""

    origin: Vectors
    forward: Vectors
    up: Vectors

    @classmethod
    def at_height(cls, height: PerImage) -> Camera:
        zero = torch.zeros_like(height)
        origin = torch.stack([zero, zero - 2.7, height], 1)
        target = torch.stack([zero, zero, zero + 0.62], 1)
        forward = torch.nn.functional.normalize(target - origin, dim=1)
        return cls(origin, forward, torch.stack([zero, -forward[:, 2], forward[:, 1]], 1))

    def project(self, points: Vectors) -> tuple[PerImage, PerImage, PerImage]:
        """Horizontal and vertical place in the image, from 0 to 1, and depth."""
        offset = points - self.origin
        depth = (offset * self.forward).sum(1)
        return 0.5 + offset[:, 0] / depth, 0.5 - (offset * self.up).sum(1) / depth, depth

    def background(self, size: int) -> tuple[Pixels, Pixels, Pixels]:
        """Brightness of grey things, share of the coloured strip, and the share of the table, of every pixel."""
        across = pixel_centres(size, self.origin) - 0.5
        dy, dz = (
            linear(column(self.forward[:, k])[..., 0] - self.up[:, k, None] * across, torch.zeros_like(across)[None])
            for k in (1, 2)
        )  # rays are forward + right · across - up · down
        wall_at, strip, radius = 1.9, 0.75, 1.0
        oy, oz = column(self.origin[:, 1]), column(self.origin[:, 2])
        to_wall = (wall_at - oy) / dy
        height = oz + to_wall * dz  # of the wall where the ray meets it; below 0 the floor is nearer
        per_pixel = to_wall / size
        wall = (0.5 + height / per_pixel).clamp(0, 1)
        coloured = wall * (0.5 + (strip - height) / per_pixel).clamp(0, 1)
        to_floor = -oz / dz.clamp(max=-0.05)
        x, y = to_floor * across, oy + to_floor * dy
        table = (0.5 + (radius - (x.square() + y.square()).sqrt()) * size / to_floor).clamp(0, 1) * (1 - wall)
        grey = 0.10 * wall + (1 - wall) * 0.22
        return grey.expand_as(table), coloured.expand_as(table), table


@dataclass(frozen=True, eq=False)
class Local:
    """Pixels around an object, in units of its radius: x to the right, y up."""

    x: Pixels
    y: Pixels


Body = Callable[[Local], tuple[Pixels, Pixels]]


def _facets(p: Local, *edges: float) -> Pixels:
    """Brightness of flat faces between vertical edges, darker from left to right, with edges that are a bit soft."""
    tone = torch.full_like(p.x, 0.95)
    for edge in edges:
        tone = tone - 0.55 / len(edges) * (0.5 + 6 * (p.x - edge)).clamp(0, 1)
    return tone


def _rounded(x: Pixels) -> Pixels:
    """Brightness of a round body at x from -1 to 1 across it, lit from the left."""
    return 0.62 - 0.28 * x + 0.12 * (1 - x.square()).clamp(min=0)


def _cone(p: Local) -> tuple[Pixels, Pixels]:
    half = (0.36 - 0.45 * p.y).clamp(min=0.05)  # of the width at this height
    side = (p.x.abs() - 0.36 + 0.45 * p.y) * 0.912
    return torch.maximum(side, -0.85 - p.y), _rounded((p.x / half).clamp(-1, 1))


def _cube(p: Local) -> tuple[Pixels, Pixels]:
    return torch.maximum(p.x.abs(), p.y.abs()) - 0.72, _facets(p, 0.25)


def _cylinder(p: Local) -> tuple[Pixels, Pixels]:
    return torch.maximum(p.x.abs() - 0.48, p.y.abs() - 0.88), _rounded((p.x / 0.48).clamp(-1, 1))


def _hexagonal(p: Local) -> tuple[Pixels, Pixels]:
    return torch.maximum(p.x.abs() - 0.92, p.y.abs() - 0.5), _facets(p, -0.46, 0.46)


def _pyramid(p: Local) -> tuple[Pixels, Pixels]:
    side = (p.x.abs() - 0.55 + 0.65 * p.y) * 0.838
    shifted = Local(p.x - 0.2 * (0.85 - p.y), p.y)  # the edge runs from the apex to the right
    return torch.maximum(side, -0.7 - p.y), _facets(shifted, 0.0)


def _sphere(p: Local) -> tuple[Pixels, Pixels]:
    squared = p.x.square() + p.y.square()
    shade = 0.62 - 0.24 * p.x + 0.22 * p.y + 0.12 * (1 - squared)
    return (squared + 1e-12).sqrt() - 0.8, shade.clamp(0, 1)


class RenderedMPI3D(Renderer):
    """A robot arm that holds an object, with the factors of MPI3D (Gondal et al. 2019); not its images.

    Object colour (white, green, red, blue, brown, olive), shape (cone, cube, cylinder, hexagonal, pyramid, sphere) and
    size, the height of the camera, the colour of the background (purple, sea green, salmon), and two angles of the arm.

    Args:
        size: pixels along a side of the images.

    >>> data = RenderedMPI3D()
    >>> len(data), data.shape
    (1036800, (6, 6, 2, 3, 3, 40, 40))
    """

    name: ClassVar[str] = "rendered-mpi3d"
    channels: ClassVar[int] = 3
    shoulder: ClassVar[float] = 0.5
    """Height of the arm's joint."""
    bodies: ClassVar[tuple[Body, ...]] = (_cone, _cube, _cylinder, _hexagonal, _pyramid, _sphere)
    object_colours: ClassVar[tuple[tuple[float, ...], ...]] = (
        (0.95, 0.95, 0.95),
        (0.1, 0.75, 0.2),
        (0.9, 0.1, 0.1),
        (0.15, 0.3, 0.95),
        (0.55, 0.3, 0.12),
        (0.55, 0.58, 0.1),
    )
    background_colours: ClassVar[tuple[tuple[float, ...], ...]] = (
        (0.45, 0.2, 0.6),
        (0.2, 0.55, 0.4),
        (0.95, 0.5, 0.45),
    )

    def __init__(self, *, size: int = 64) -> None:
        self.size = size
        self.factors = (
            classes("color", 6),
            classes("shape", 6),
            evenly_spaced("size", 0.65, 1.0, 2),
            evenly_spaced("camera_height", 0.7, 2.3, 3),
            classes("background_color", 3),
            evenly_spaced("horizontal_axis", -65.0, 65.0, 40),
            evenly_spaced("vertical_axis", -15.0, 55.0, 40),
        )

    def tip(self, values: Float[Tensor, "N k"]) -> Vectors:
        """Where the object is: x to the right, y away from the camera, z up.

        Args:
            values: (N, 7) factors.
        """
        turn, rise = (values[:, 5:7] * (math.pi / 180)).unbind(1)
        level = 0.95 * rise.cos()
        return torch.stack([level * turn.sin(), -level * turn.cos(), self.shoulder + 0.95 * rise.sin()], 1)

    def render_batch(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        camera = Camera.at_height(values[:, 3])
        grey, strip = self._background(values, camera)
        zero = torch.zeros_like(values[:, 0])
        shoulder, tip = torch.stack([zero, zero, zero + self.shoulder], 1), self.tip(values)
        for start, end, radius, own in ((0 * tip, shoulder, 0.085, 0.45), (shoulder, tip, 0.06, 0.62)):
            rod = self._segment(camera, start, end, radius)
            grey, strip = torch.lerp(grey, torch.full_like(grey[:1], own), rod), strip * (1 - rod)
        x, y, depth = camera.project(tip)
        inside, shade = self._object(values[:, 1], x, y, 0.27 * values[:, 2] / depth)
        outside = 1 - inside
        # how much white, background colour and object colour there is in every pixel
        maps = torch.stack([grey * outside, strip * outside, shade * inside], 1).flatten(2)
        colours = [torch.ones(len(values), 3).to(values), 0.8 * _palette(self.background_colours, values[:, 4])]
        colours.append(_palette(self.object_colours, values[:, 0]))
        return torch.bmm(torch.stack(colours, 2), maps).unflatten(2, (self.size, self.size))

    def _background(self, values: Float[Tensor, "N k"], camera: Camera) -> tuple[Pixels, Pixels]:
        """Brightness of what is grey, and the share of the coloured strip, where nothing is in front."""
        rows = None
        if not values.requires_grad:  # few camera heights on the grid
            heights, rows = values[:, 3].unique(return_inverse=True)
            camera = Camera.at_height(heights)
        grey, strip, table = camera.background(self.size)
        grey = torch.lerp(grey, torch.full_like(grey, 0.33), table) * (1 - strip)
        return (grey, strip) if rows is None else (grey[rows], strip[rows])

    def _segment(self, camera: Camera, start: Vectors, end: Vectors, radius: float) -> Pixels:
        """Coverage of a rod between two points, as thick as at its middle."""
        (ax, ay, near), (bx, by, far) = camera.project(start), camera.project(end)
        centres = pixel_centres(self.size, ax)
        dx, dy = bx - ax, by - ay
        squared = dx.square() + dy.square() + 1e-9
        px, py = centres - ax[:, None], centres - ay[:, None]
        along = linear(py * (dy / squared)[:, None], px * (dx / squared)[:, None]).clamp(0, 1)
        off_x, off_y = px[:, None, :] - along * column(dx), py[:, :, None] - along * column(dy)
        distance = (off_x.square() + off_y.square() + 1e-12).sqrt() - column(2 * radius / (near + far))
        return coverage(distance, self.size)

    def _object(self, shape: PerImage, x: PerImage, y: PerImage, radius: PerImage) -> tuple[Pixels, Pixels]:
        centres = pixel_centres(self.size, x)
        across, up = (centres - x[:, None]) / radius[:, None], (y[:, None] - centres) / radius[:, None]
        kinds, order = shape.round().long(), []
        distances, shades = [], []
        for kind in kinds.unique().tolist():
            own = (kinds == kind).nonzero()[:, 0]
            pixels_of = (len(own), self.size, self.size)
            pixels = Local(across[own, None, :].expand(pixels_of), up[own, :, None].expand(pixels_of))
            distance, shade = self.bodies[kind](pixels)
            order.append(own)
            distances.append(distance)
            shades.append(shade)
        back = torch.cat(order).argsort()
        return coverage(torch.cat(distances)[back] * column(radius), self.size), torch.cat(shades)[back]


def _palette(colours: tuple[tuple[float, ...], ...], index: PerImage) -> Vectors:
    return torch.tensor(colours, dtype=index.dtype, device=index.device)[index.round().long()]


# a head ---------------------------------------------------------------------------------------


class Rendered3DFaces(Renderer):
    """A head in grey, with the factors of 3DFaces (Paysan et al. 2009): identity, azimuth, elevation, lighting.

    An ellipsoid with eyes, brows, nose and mouth; an identity is a point of a low-discrepancy sequence in the space of
    their sizes and places. The light is fixed to the camera. None of the pixels are those of the Basel face model.

    Args:
        size: pixels along a side of the images.

    >>> data = Rendered3DFaces()
    >>> len(data), data.shape
    (127050, (50, 21, 11, 11))
    """

    name: ClassVar[str] = "rendered-3dfaces"
    channels: ClassVar[int] = 1
    ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "width": (0.27, 0.35),
        "height": (0.37, 0.45),
        "skin": (0.65, 1.0),
        "eye distance": (0.30, 0.42),
        "eye height": (0.05, 0.2),
        "eye size": (0.09, 0.15),
        "brow": (0.2, 0.9),
        "nose": (0.3, 1.0),
        "mouth height": (-0.55, -0.4),
        "mouth width": (0.14, 0.28),
    }

    def __init__(self, *, size: int = 64) -> None:
        self.size = size
        self.factors = (
            classes("identity", 50),
            evenly_spaced("azimuth", -50.0, 50.0, 21),
            evenly_spaced("elevation", -25.0, 25.0, 11),
            evenly_spaced("lighting", -70.0, 70.0, 11),
        )

    def traits(self, identity: PerImage) -> dict[str, PerImage]:
        """Sizes and places of the parts of a face.

        Args:
            identity: (N,) class numbers.
        """
        number = identity.round().double() + 1
        ratio = _plastic(len(self.ranges))
        shares = ((0.5 + number * ratio ** -(k + 1)) % 1 for k in range(len(self.ranges)))
        return {
            name: (low + (high - low) * share).to(identity)
            for (name, (low, high)), share in zip(self.ranges.items(), shares, strict=True)
        }

    def render_batch(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        face = self.traits(values[:, 0])
        azimuth, elevation, light = (values[:, 1:] * (math.pi / 180)).unbind(1)
        axes = torch.stack([face["width"], face["height"], 0.5 * (face["width"] + face["height"])], 1)
        turn = _turn(azimuth, elevation)  # columns: right, up and towards the camera, in the coordinates of the head
        inside, (x, y, z) = self._ellipsoid(turn / axes[:, :, None], axes)
        from_light = torch.stack([light.sin(), 0.35 + 0 * light, light.cos()], 1)
        sun = (turn @ torch.nn.functional.normalize(from_light, dim=1)[:, :, None])[:, :, 0]
        shade = _lambert((x, y, z), 1 / axes, sun)
        front = (4 * z).clamp(0, 1)
        beside, above = x.abs() - column(face["eye distance"]), y - column(face["eye height"])  # of the nearer eye
        eyes = _blob(beside, face["eye size"], above, 0.055)
        brows = _blob(beside, face["eye size"] * 1.4, above - 0.17, 0.04)
        mouth = _blob(x, face["mouth width"], y - column(face["mouth height"]), 0.05)
        ridge = _blob(x, torch.full_like(light, 0.11), y + 0.12, 0.2) * front
        dark = torch.addcmul(torch.add(0.85 * eyes, mouth, alpha=0.6), column(face["brow"]), brows) * front
        relief = column(0.13 * face["nose"]) * ridge * (1 + column(7 * sun[:, 0]) * x)
        grey = torch.addcmul(relief, shade, 1 - dark.clamp(max=1)) * column(face["skin"])
        return (inside * grey.clamp(0, 1)).unsqueeze(1)

    def _ellipsoid(
        self, inverse: Float[Tensor, "N 3 3"], axes: Vectors
    ) -> tuple[Pixels, tuple[Pixels, Pixels, Pixels]]:
        """Its coverage, and the visible point of every pixel on the unit sphere: x to its left, y up, z to its front.

        Points (X, Y, Z) of the camera's coordinates are M (X, Y, Z) on the unit sphere; the visible one has the
        larger Z of the two solutions of |M (X, Y, Z)| = 1.
        """
        centres = pixel_centres(self.size, axes) - 0.5
        right, up, toward = inverse.unbind(2)
        length = toward.square().sum(1)
        # M (X, Y, Z) is shortest at Z = -(toward · (right X + up Y)) / length: subtract the part along `toward`
        along_x, along_y = (toward * right).sum(1) / length, (toward * up).sum(1) / length
        flat_x, flat_y = right - along_x[:, None] * toward, up - along_y[:, None] * toward
        # 1 - |flat_x X + flat_y Y|², and Y = -rows
        in_rows = 1 - flat_y.square().sum(1)[:, None] * centres.square()
        in_columns = -flat_x.square().sum(1)[:, None] * centres.square()
        across = 2 * (flat_x * flat_y).sum(1)[:, None] * centres
        rest = torch.addcmul(linear(in_rows, in_columns), across[:, :, None], centres)
        depth = rest.clamp(min=1e-4).sqrt() / column(length.sqrt())
        points = [
            torch.addcmul(
                linear(-flat_y[:, k, None] * centres, flat_x[:, k, None] * centres), column(toward[:, k]), depth
            )
            for k in range(3)
        ]
        distance = -rest * column(0.25 * (axes[:, 0] + axes[:, 1]))  # near the edge of a circle of this diameter
        return coverage(distance, self.size), (points[0], points[1], points[2])


def _plastic(dim: int) -> float:
    """The root of x^(d+1) = x + 1, whose powers give an evenly spread sequence in d dimensions (Roberts 2018).

    >>> round(_plastic(1), 6)
    1.618034
    """
    root = 2.0
    for _ in range(64):
        root = (1 + root) ** (1 / (dim + 1))
    return root


def _turn(azimuth: PerImage, elevation: PerImage) -> Float[Tensor, "N 3 3"]:
    """From camera coordinates to those of a head that is turned, then seen from above."""
    (ca, sa), (ce, se) = ((a.cos(), a.sin()) for a in (azimuth, elevation))
    zero = torch.zeros_like(ca)
    rows = ((ca, sa * se, -sa * ce), (zero, ce, se), (sa, -ca * se, ca * ce))
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


def _lambert(point: tuple[Pixels, Pixels, Pixels], inverse: Vectors, sun: Vectors) -> Pixels:
    """Ambient light, and that of a lamp on the surface of an ellipsoid, whose normal is the point over the axes."""
    scaled = [own * column(inverse[:, k]) for k, own in enumerate(point)]
    squared, lit = scaled[0].square(), scaled[0] * column(sun[:, 0])
    for k in (1, 2):
        squared = torch.addcmul(squared, scaled[k], scaled[k])
        lit = torch.addcmul(lit, scaled[k], column(sun[:, k]))
    return 0.18 + 0.72 * (lit / squared.sqrt()).clamp(min=0)


def _blob(x: Pixels, width: PerImage, y: Pixels, height: float) -> Pixels:
    """A smooth spot, 1 at its centre and 0 outside an ellipse with 1.7 times these radii."""
    level = torch.addcmul(1 - 0.35 * height**-2 * y.square(), x.square(), column(-0.35 * width.pow(-2)))
    return level.clamp(min=0).square()
