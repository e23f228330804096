"""One coloured sprite on a black ground: where, how large, which colour (and, if asked, which shape and angle)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import randomness
from vaescope.data.rendering.shapes import SHAPES, Placed, coverage, place, rgb
from vaescope.data.rendering.structure import Factor, Rendered, evenly
from vaescope.distributions import Beta
from vaescope.errors import InputError

STEPS = 16  # official values per continuous factor, for those who want a grid


class Sprites(Rendered):
    """x, y, scale and hue; `shapes` of more than one adds a factor for it, `turning` one for the angle.

    The ranges keep a sprite inside the frame and hue off its wrap-around, where one colour would have two
    values. `scale` is the radius of the circle around the sprite, relative to the frame.

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
        turning: bool = False,
        x: tuple[float, float] = (0.25, 0.75),
        y: tuple[float, float] = (0.25, 0.75),
        scale: tuple[float, float] = (0.1, 0.25),
        hue: tuple[float, float] = (0.0, 0.75),
    ) -> None:
        unknown = [shape for shape in shapes if shape not in SHAPES]
        if unknown or not shapes:
            raise InputError(f"shapes must be among {', '.join(SHAPES)}, got {', '.join(unknown) or 'none'}.")
        if size < 4:
            raise InputError(f"size must be at least 4 pixels, got {size}.")
        self.size, self.shapes = size, tuple(shapes)
        ranges = {"x": x, "y": y, "scale": scale, "hue": hue}
        factors = [evenly(name, *bounds, STEPS) for name, bounds in ranges.items()]
        if turning:
            factors.append(evenly("angle", 0.0, 2 * math.pi * (1 - 1 / STEPS), STEPS))
        if len(shapes) > 1:
            factors.append(Factor("shape", tuple(map(float, range(len(shapes)))), continuous=False))
        self.factors = tuple(factors)

    def frames(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        column = dict(zip(self.names, values.unbind(1), strict=True))
        angle = column.get("angle", torch.zeros_like(values[:, 0]))
        placed = place(self.size, column["x"], column["y"], column["scale"], angle)
        inside = self._inside(placed, column.get("shape"))
        return inside.unsqueeze(1) * rgb(column["hue"])[:, :, None, None]

    def _inside(self, placed: Placed, shape: Tensor | None) -> Tensor:
        drawn = [coverage(SHAPES[name](placed), self.size) for name in self.shapes]
        if shape is None:
            return drawn[0]
        every = torch.stack(drawn)
        return every[shape.round().long(), torch.arange(len(shape))]

    @staticmethod
    def published(seed: int, *, size: int = 64) -> tuple[Sprites, dict[str, Beta]]:
        """The authors' generator: raw factors in [0, 1], each from its own Beta(a, b), a and b uniform in [2, 15].

        Sprites then leave the frame at times, and some draws are far from the IMA class.
        """
        generator = randomness.generator(seed, "published sprites")
        unit = (0.0, 1.0)
        sprites = Sprites(size=size, x=unit, y=unit, scale=unit, hue=unit)
        ab = 2 + 13 * torch.rand(len(sprites.names), 2, dtype=torch.float64, generator=generator)
        return sprites, {name: Beta(float(a), float(b)) for name, (a, b) in zip(sprites.names, ab, strict=True)}
