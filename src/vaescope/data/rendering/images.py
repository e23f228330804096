"""The structure of dSprites: a white square, ellipse or heart; 6 sizes, 40 angles, 32 x 32 positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import randomness, validation
from vaescope.core.errors import InputError
from vaescope.data.rendering.shapes import (
    OBJECTS,
    SHAPES,
    SpriteCoordinates,
    coverage,
    ellipse,
    heart,
    hue_to_rgb,
    light_maps,
    sprite_coordinates,
    square,
)
from vaescope.data.rendering.structure import GridFactor, Renderer, evenly_spaced
from vaescope.distributions import Beta

LARGEST_RADIUS = 0.22  # relative to the image: every sprite stays inside
SPRITE_SHAPES = (square, ellipse, heart)


class DSprites(Renderer):
    """Binary images in the official order and with the official factor values (Matthey et al. 2017).

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
        shape, scale, angle, x, y = values.unbind(1)
        shape_index = shape.round().long() - 1
        out = values.new_empty(len(values), 1, self.size, self.size)
        for index in shape_index.unique().tolist():
            chosen = shape_index == index
            if bool(chosen.all()):
                return self._inside(index, x, y, scale, angle).to(values.dtype).unsqueeze(1)
            columns = (column[chosen] for column in (x, y, scale, angle))
            out[chosen, 0] = self._inside(index, *columns).to(values.dtype)
        return out

    def _inside(self, shape: int, x: Tensor, y: Tensor, scale: Tensor, angle: Tensor) -> Tensor:
        pixels = sprite_coordinates(self.size, 0.25 + 0.5 * x, 0.25 + 0.5 * y, LARGEST_RADIUS * scale, angle)
        return SPRITE_SHAPES[shape](pixels) <= 0


CACHED_MAPS = 512  # light maps kept in memory: the grid has 480


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
            evenly_spaced("floor_hue", 0.0, 0.9, 10),
            evenly_spaced("wall_hue", 0.0, 0.9, 10),
            evenly_spaced("object_hue", 0.0, 0.9, 10),
            evenly_spaced("scale", 0.75, 1.25, 8),
            GridFactor("shape", (0.0, 1.0, 2.0, 3.0), continuous=False),
            evenly_spaced("orientation", -30.0, 30.0, 15),
        )
        self._maps: dict[tuple[float, int, float], Tensor] = {}

    def render_batch(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        hues = [hue_to_rgb(values[:, k]) for k in range(3)]
        colours = torch.stack([*hues, torch.ones_like(hues[0])], dim=2)  # (N, channel, material)
        maps = self._light_maps(values) if values.requires_grad else self._cached_maps(values)
        images = torch.bmm(colours, maps).clamp(max=1.0)
        return images.reshape(len(values), 3, self.size, self.size)

    def _cached_maps(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N 4 P"]:
        keys = [(round(s, 9), round(shape), round(o, 9)) for s, shape, o in values[:, 3:].tolist()]
        missing = list(dict.fromkeys(key for key in keys if key not in self._maps))
        if len(self._maps) + len(missing) > CACHED_MAPS:
            return self._light_maps(values)
        if missing:
            new = torch.tensor([(0.0, 0.0, 0.0, *key) for key in missing], dtype=values.dtype)
            self._maps |= dict(zip(missing, self._light_maps(new), strict=True))
        return torch.stack([self._maps[key] for key in keys]).to(values.dtype)

    def _light_maps(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N 4 P"]:
        shape = values[:, 4].round().long().clamp(0, len(OBJECTS) - 1)
        out = values.new_zeros(len(values), 4, self.size**2)
        for index in shape.unique().tolist():
            chosen = shape == index
            maps = light_maps(self.size, index, values[chosen, 3], values[chosen, 5])
            out = out.index_put((chosen.nonzero()[:, 0],), maps)
        return out


GRID_VALUES = 16  # values per continuous factor on the grid


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
        validation.whole_number("size", size, minimum=4)
        self.size, self.shapes = size, tuple(shapes)
        ranges = {"x": x, "y": y, "scale": scale, "hue": hue}
        factors = [evenly_spaced(name, *bounds, GRID_VALUES) for name, bounds in ranges.items()]
        if rotating:
            factors.append(evenly_spaced("angle", 0.0, 2 * math.pi * (1 - 1 / GRID_VALUES), GRID_VALUES))
        if len(shapes) > 1:
            factors.append(GridFactor("shape", tuple(map(float, range(len(shapes)))), continuous=False))
        self.factors = tuple(factors)

    def render_batch(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        column = dict(zip(self.factor_names, values.unbind(1), strict=True))
        angle = column.get("angle", torch.zeros_like(values[:, 0]))
        pixels = sprite_coordinates(self.size, column["x"], column["y"], column["scale"], angle)
        inside = self._coverage(pixels, column.get("shape"))
        return inside.unsqueeze(1) * hue_to_rgb(column["hue"])[:, :, None, None]

    def _coverage(self, pixels: SpriteCoordinates, shape: Tensor | None) -> Tensor:
        per_shape = [coverage(SHAPES[name](pixels), self.size) for name in self.shapes]
        if shape is None:
            return per_shape[0]
        return torch.stack(per_shape)[shape.round().long(), torch.arange(len(shape))]

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
