"""The structure of dSprites: a white square, ellipse or heart; 6 sizes, 40 angles, 32 x 32 places."""

from __future__ import annotations

import math
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from vaescope.data.rendering.shapes import Placed, ellipse, heart, place, square
from vaescope.data.rendering.structure import Factor, Rendered, evenly

RADIUS = 0.22  # of the largest sprite, relative to the frame: it never leaves it
SHAPES = (square, ellipse, heart)


class DSprites(Rendered):
    """Binary images in the official order and with the official factor values (Matthey et al. 2017).

    >>> data = DSprites()
    >>> len(data), data.shape
    (737280, (3, 6, 40, 32, 32))
    """

    name: ClassVar[str] = "dsprites"
    channels: ClassVar[int] = 1

    def __init__(self, *, size: int = 64) -> None:
        self.size = size
        self.factors = (
            Factor("shape", (1.0, 2.0, 3.0), continuous=False),
            evenly("scale", 0.5, 1.0, 6),
            evenly("orientation", 0.0, 2 * math.pi, 40),
            evenly("position_x", 0.0, 1.0, 32),
            evenly("position_y", 0.0, 1.0, 32),
        )

    def frames(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        shape, scale, angle, x, y = values.unbind(1)
        kinds = shape.round().long() - 1
        out = values.new_empty(len(values), 1, self.size, self.size)
        for kind in kinds.unique().tolist():
            mine = kinds == kind
            every = bool(mine.all())
            column = [v if every else v[mine] for v in (x, y, scale, angle)]
            distance = self._distance(kind, *column)
            if every:
                return (distance <= 0).to(values.dtype).unsqueeze(1)
            out[mine, 0] = (distance <= 0).to(values.dtype)
        return out

    def _distance(self, kind: int, x: Tensor, y: Tensor, scale: Tensor, angle: Tensor) -> Tensor:
        placed: Placed = place(self.size, 0.25 + 0.5 * x, 0.25 + 0.5 * y, RADIUS * scale, angle)
        return SHAPES[kind](placed)
