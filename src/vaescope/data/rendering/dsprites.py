"""The structure of dSprites: a white square, ellipse or heart; 6 sizes, 40 angles, 32 x 32 positions."""

from __future__ import annotations

import math
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from vaescope.data.rendering.shapes import ellipse, heart, sprite_coordinates, square
from vaescope.data.rendering.structure import GridFactor, Renderer, evenly_spaced

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
