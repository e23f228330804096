"""Images rendered from known factors: sprites, and the structures of dSprites and 3D Shapes."""

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
from vaescope.data.rendering.shapes import (
    OBJECTS,
    SHAPES,
    coverage,
    hue_to_rgb,
    light_maps,
    sprite_coordinates,
)
from vaescope.distributions import Beta, Prior, Uniform


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
