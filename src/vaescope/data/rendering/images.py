"""Images rendered from known factors: sprites, and the structures of dSprites and 3D Shapes.

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
