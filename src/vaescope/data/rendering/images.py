"""Images rendered from known factors: sprites, and the structures of dSprites, 3D Shapes, MPI3D and 3DFaces.

Coordinates run from 0 to 1 over the image, x to the right and y down. The `radius` of a shape is that of its
circumscribed circle. Signed distances are exact inside and near the edge, which is sufficient for anti-aliasing, and
differentiable almost everywhere, so that the IMA contrast of the renderer itself can be computed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vaescope.core import randomness, validation
from vaescope.core.errors import InputError
from vaescope.distributions import Beta, Prior, Uniform

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


@dataclass(frozen=True)
class GridFactor:
    """A factor of variation: its values on the grid, and whether values between them are valid."""

    name: str
    values: tuple[float, ...]
    continuous: bool = True

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)


def evenly_spaced(name: str, low: float, high: float, count: int) -> GridFactor:
    """A factor with equally spaced values from low to high."""
    return GridFactor(name, tuple(torch.linspace(low, high, count, dtype=torch.float64).tolist()))


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images (N, channels, height, width) in [0, 1] with their factors (N, k)."""

    images: Float[Tensor, "N c h w"]
    factors: Float[Tensor, "N k"]
    factor_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.images)


class Renderer(ABC):
    """Renders images from factors; the same factors give the same image on any machine."""

    name: ClassVar[str]
    channels: ClassVar[int]
    factors: tuple[GridFactor, ...]
    size: int

    @abstractmethod
    def render_batch(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        """Render a small batch; differentiable in the continuous factors.

        Args:
            values: (N, k) factors, in the order of `factor_names`; for a discrete factor one of its grid values.
        """

    @property
    def factor_names(self) -> tuple[str, ...]:
        return tuple(factor.name for factor in self.factors)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of grid values of every factor."""
        return tuple(len(factor.values) for factor in self.factors)

    def __len__(self) -> int:
        return math.prod(self.shape)

    def render(self, values: Float[Tensor, "N k"], *, dtype: torch.dtype = torch.float32) -> Float[Tensor, "N c h w"]:
        """Render images with these factors, in batches of 64, which fit into the cache.

        Args:
            values: (N, k) factors, in the order of `factor_names`; for a discrete factor one of its grid values.
            dtype: floating-point type of the images.
        """
        if values.ndim != 2 or values.shape[1] != len(self.factors):
            names = ", ".join(self.factor_names)
            raise InputError(f"{self.name} needs a value for each of {names}, got shape {tuple(values.shape)}.")
        values = values.to(dtype)
        if len(values) <= 64 or values.requires_grad:
            return self.render_batch(values)
        out = torch.empty(len(values), self.channels, self.size, self.size, dtype=dtype)
        for part, into in zip(values.split(64), out.split(64), strict=True):
            into.copy_(self.render_batch(part))
        return out

    def values_at(self, indices: Int[Tensor, " N"]) -> Float[Tensor, "N k"]:
        """Factors of images at these grid indices; the last factor changes fastest.

        Args:
            indices: (N,) from 0 to the number of images minus one.
        """
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < len(self):
            wrong = min(int(indices.min()), 0) or int(indices.max())
            raise InputError(f"{self.name} has images 0 to {len(self) - 1}, got index {wrong}.")
        places = torch.unravel_index(indices, self.shape)
        tables = (torch.tensor(factor.values, dtype=torch.float64) for factor in self.factors)
        return torch.stack([table[place] for table, place in zip(tables, places, strict=True)], dim=1)

    def images_at(self, indices: Int[Tensor, " N"]) -> LabelledImages:
        """Render images at these grid indices.

        Args:
            indices: (N,) from 0 to the number of images minus one.
        """
        values = self.values_at(indices)
        return LabelledImages(self.render(values), values, self.factor_names)

    def stream(self, batch_size: int = 1024, *, shuffle: bool = False, seed: int = 0) -> Iterator[LabelledImages]:
        """Render the complete grid in batches.

        Args:
            batch_size: images per batch.
            shuffle: whether the order is random; by default that of the grid.
            seed: of the order.
        """
        order = torch.arange(len(self))
        if shuffle:
            order = torch.randperm(len(self), generator=randomness.generator(seed, "stream"))
        for part in order.split(batch_size):
            yield self.images_at(part)

    def sample(
        self, count: int, *, seed: int, distributions: Mapping[str, Prior | str] | Prior | str = "uniform"
    ) -> LabelledImages:
        """Render images with independent random factors.

        Args:
            count: number of images.
            seed: seed of the factors.
            distributions: `grid` (grid values), `uniform`, or a Beta or uniform prior on [0, 1], which is rescaled to
                the range of the factor; one for all factors, or a mapping from factor names.
        """
        validation.integer("count", count)
        given = distributions if isinstance(distributions, Mapping) else dict.fromkeys(self.factor_names, distributions)
        if unknown := sorted(set(given) - set(self.factor_names)):
            raise InputError(f"{self.name} has no factor {unknown[0]!r}; it has {', '.join(self.factor_names)}.")
        columns = [_draw(factor, given.get(factor.name, "uniform"), count, seed) for factor in self.factors]
        values = torch.stack(columns, dim=1)
        return LabelledImages(self.render(values), values, self.factor_names)


def _draw(factor: GridFactor, distribution: Prior | str, count: int, seed: int) -> Float[Tensor, " N"]:
    generator = randomness.generator(seed, f"factor {factor.name}")
    if distribution == "grid" or not factor.continuous:
        table = torch.tensor(factor.values, dtype=torch.float64)
        return table[torch.randint(len(table), (count,), generator=generator)]
    prior = Uniform(0.0, 1.0) if distribution == "uniform" else distribution
    if not isinstance(prior, Beta | Uniform) or prior.bounds != (0.0, 1.0):
        raise InputError(
            f"distributions of factors must be grid, uniform, or a Beta prior on [0, 1], got {distribution!r}."
        )
    return factor.low + (factor.high - factor.low) * prior.sample(count, 1, generator=generator)[:, 0]


def _render_by_shape(
    shapes: Int[Tensor, " N"], values: Float[Tensor, "N k"], render: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """What `render` makes of the values of each shape at once, in the order of the values."""
    found = [render(index, values[shapes == index]) for index in shapes.unique().tolist() or [1]]
    return found[0] if len(found) == 1 else torch.cat(found)[shapes.argsort(stable=True).argsort()]


class DSprites(Renderer):
    """Binary images in the official order and with the official factor values (Matthey et al. 2017).

    A white square, ellipse or heart; 6 sizes, 40 angles, 32 x 32 positions.

    Args:
        size: pixels along a side of the images.

    >>> data = DSprites()
    >>> len(data), data.shape
    (737280, (3, 6, 40, 32, 32))
    """

    name: ClassVar[str] = "dsprites"
    channels: ClassVar[int] = 1

    def __init__(self, *, size: int = 64) -> None:
        self.size = size
        self.factors = (
            GridFactor("shape", (1.0, 2.0, 3.0), continuous=False),
            evenly_spaced("scale", 0.5, 1.0, 6),
            evenly_spaced("orientation", 0.0, 2 * math.pi, 40),
            evenly_spaced("position_x", 0.0, 1.0, 32),
            evenly_spaced("position_y", 0.0, 1.0, 32),
        )

    def render_batch(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        def inside(shape: int, own: Float[Tensor, "M k"]) -> Float[Tensor, "M 1 h w"]:
            _, scale, angle, x, y = own.unbind(1)
            radius = 0.22 * scale  # relative to the image: every sprite stays inside
            pixels = sprite_coordinates(self.size, 0.25 + 0.5 * x, 0.25 + 0.5 * y, radius, angle)
            return (SHAPES[("square", "ellipse", "heart")[shape - 1]](pixels) <= 0).to(own.dtype).unsqueeze(1)

        return _render_by_shape(values[:, 0].round().long(), values, inside)


class Shapes3D(Renderer):
    """Floor, wall and object hue, scale, shape and orientation (Burgess & Kim 2018), ray-cast with shading.

    Shading does not depend on colour. The light maps (how much floor, wall, object and white light a pixel receives)
    are cached and shared by a thousand combinations of hues; the rest is a small matrix product per image.

    Args:
        size: pixels along a side of the images.

    >>> data = Shapes3D()
    >>> len(data), data.shape
    (480000, (10, 10, 10, 8, 4, 15))
    """

    name: ClassVar[str] = "3dshapes"
    channels: ClassVar[int] = 3

    def __init__(self, *, size: int = 64) -> None:
        self.size = size
        self.factors = (
            *(evenly_spaced(f"{what}_hue", 0.0, 0.9, 10) for what in ("floor", "wall", "object")),
            evenly_spaced("scale", 0.75, 1.25, 8),
            GridFactor("shape", (0.0, 1.0, 2.0, 3.0), continuous=False),
            evenly_spaced("orientation", -30.0, 30.0, 15),
        )
        self._maps: dict[tuple[float, int, float], Tensor] = {}

    def render_batch(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        hues = [hue_to_rgb(values[:, k]) for k in range(3)]
        colours = torch.stack([*hues, torch.ones_like(hues[0])], dim=2)  # (N, channel, material)
        maps = self._light_maps(values[:, 3:]) if values.requires_grad else self._cached_maps(values[:, 3:])
        images = torch.bmm(colours, maps).clamp(max=1.0)
        return images.reshape(len(values), 3, self.size, self.size)

    def _cached_maps(self, scenes: Float[Tensor, "N 3"]) -> Float[Tensor, "N 4 P"]:
        keys = [(round(s, 9), round(shape), round(o, 9)) for s, shape, o in scenes.tolist()]
        missing = list(dict.fromkeys(key for key in keys if key not in self._maps))
        if len(self._maps) + len(missing) > 512:  # the grid has 480
            return self._light_maps(scenes)
        if missing:
            self._maps |= dict(zip(missing, self._light_maps(torch.tensor(missing, dtype=scenes.dtype)), strict=True))
        return torch.stack([self._maps[key] for key in keys]).to(scenes.dtype)

    def _light_maps(self, scenes: Float[Tensor, "N 3"]) -> Float[Tensor, "N 4 P"]:
        shapes = scenes[:, 1].round().long().clamp(0, len(OBJECTS) - 1)
        return _render_by_shape(shapes, scenes, lambda k, own: light_maps(self.size, k, own[:, 0], own[:, 2]))


class Sprites(Renderer):
    """Factors x, y, scale and hue; several `shapes` add the factor shape, `rotating` adds the factor angle.

    The default ranges keep sprites inside the image, and hue below its wrap-around, where one colour would have two
    values. `scale` is the radius of the circumscribed circle, relative to the image.

    Args:
        size: pixels along a side of the images, at least 4.
        shapes: one or more of `triangle`, `square`, `ellipse`, `heart` and `circle`.
        rotating: whether the angle is a factor, from 0 to 15/16 of a turn.
        x: range of the horizontal position of the centre, from 0 (left) to 1 (right).
        y: range of the vertical position of the centre, from 0 (top) to 1 (bottom).
        scale: range of the radius.
        hue: range of the hue, where 0 and 1 are both red.

    >>> Sprites(size=32).sample(5, seed=0).images.shape
    torch.Size([5, 3, 32, 32])
    """

    name: ClassVar[str] = "sprites"
    channels: ClassVar[int] = 3

    def __init__(
        self,
        *,
        size: int = 64,
        shapes: Sequence[str] = ("triangle",),
        rotating: bool = False,
        x: tuple[float, float] = (0.25, 0.75),
        y: tuple[float, float] = (0.25, 0.75),
        scale: tuple[float, float] = (0.1, 0.25),
        hue: tuple[float, float] = (0.0, 0.75),
    ) -> None:
        unknown = [shape for shape in shapes if shape not in SHAPES]
        if unknown or not shapes:
            raise InputError(f"shapes must be from {', '.join(SHAPES)}, got {', '.join(unknown) or 'none'}.")
        validation.integer("size", size, minimum=4)
        self.size, self.shapes = size, tuple(shapes)
        ranges = {"x": x, "y": y, "scale": scale, "hue": hue}
        if rotating:
            ranges["angle"] = (0.0, 2 * math.pi * (15 / 16))
        factors = [evenly_spaced(name, *bounds, 16) for name, bounds in ranges.items()]
        if len(shapes) > 1:
            factors.append(GridFactor("shape", tuple(map(float, range(len(shapes)))), continuous=False))
        self.factors = tuple(factors)

    def render_batch(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        column = dict(zip(self.factor_names, values.unbind(1), strict=True))
        angle = column.get("angle", torch.zeros_like(values[:, 0]))
        pixels = sprite_coordinates(self.size, column["x"], column["y"], column["scale"], angle)
        per_shape = [coverage(SHAPES[name](pixels), self.size) for name in self.shapes]
        inside = per_shape[0]
        if "shape" in column:
            inside = torch.stack(per_shape)[column["shape"].round().long(), torch.arange(len(values))]
        return inside.unsqueeze(1) * hue_to_rgb(column["hue"])[:, :, None, None]

    @staticmethod
    def published(seed: int, *, size: int = 64) -> tuple[Sprites, dict[str, Beta]]:
        """The generator of Reizinger et al. 2022: factors in [0, 1] from Beta(a, b), with a and b uniform in [2, 15].

        Some sprites are partly outside the image, and some seeds are far from the IMA class.

        Args:
            seed: of a and b.
            size: pixels along a side of the images.
        """
        generator = randomness.generator(seed, "published sprites")
        unit = (0.0, 1.0)
        sprites = Sprites(size=size, x=unit, y=unit, scale=unit, hue=unit)
        ab = 2 + 13 * torch.rand(len(sprites.factor_names), 2, dtype=torch.float64, generator=generator)
        return sprites, {name: Beta(float(a), float(b)) for name, (a, b) in zip(sprites.factor_names, ab, strict=True)}


# stand-ins: the factors of MPI3D and 3DFaces, with as many values, and none of their pixels ----

Pixels = Float[Tensor, "N H W"]
Vectors = Float[Tensor, "N 3"]


def classes(name: str, count: int) -> GridFactor:
    """A factor whose values are class numbers."""
    return GridFactor(name, tuple(map(float, range(count))), continuous=False)


def column(values: PerImage) -> Float[Tensor, "N 1 1"]:
    """One number per image, to be combined with pixels."""
    return values[:, None, None]


def linear(rows: Float[Tensor, "#N H"], columns: Float[Tensor, "#N W"]) -> Pixels:
    """The sum of a number per row and one per column; a single image is broadcast."""
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
