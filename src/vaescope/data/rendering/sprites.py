"""One coloured sprite on a black background: position, scale and hue, and optionally angle and shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness, validation
from vaescope.data.rendering.shapes import SHAPES, SpriteCoordinates, coverage, hue_to_rgb, sprite_coordinates
from vaescope.data.rendering.structure import GridFactor, Renderer, evenly_spaced
from vaescope.distributions import Beta
from vaescope.errors import InputError

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
