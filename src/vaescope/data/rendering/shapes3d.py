"""The structure of 3DShapes: a room, an object in it, and six factors."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.data.rendering.scene import OBJECTS, light
from vaescope.data.rendering.shapes import rgb
from vaescope.data.rendering.structure import Factor, Rendered, evenly

REMEMBERED = 512  # sets of light maps kept: the grid has 480


class Shapes3D(Rendered):
    """Floor, wall and object hue, scale, shape and orientation (Burgess & Kim 2018), ray-cast with shading.

    Light does not depend on colour, so a set of maps (how much floor, wall, object and white light a pixel gets)
    serves a thousand combinations of hues and is remembered; what is left per image is a small product.

    >>> data = Shapes3D()
    >>> len(data), data.shape
    (480000, (10, 10, 10, 8, 4, 15))
    """

    name: ClassVar[str] = "3dshapes"
    channels: ClassVar[int] = 3

    def __init__(self, *, size: int = 64) -> None:
        self.size = size
        self.factors = (
            evenly("floor_hue", 0.0, 0.9, 10),
            evenly("wall_hue", 0.0, 0.9, 10),
            evenly("object_hue", 0.0, 0.9, 10),
            evenly("scale", 0.75, 1.25, 8),
            Factor("shape", (0.0, 1.0, 2.0, 3.0), continuous=False),
            evenly("orientation", -30.0, 30.0, 15),
        )
        self._maps: dict[tuple[float, int, float], Tensor] = {}

    def frames(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N c h w"]:
        hues = [rgb(values[:, k]) for k in range(3)]
        colours = torch.stack([*hues, torch.ones_like(hues[0])], dim=2)  # (N, channel, material)
        maps = self._light(values) if values.requires_grad else self._remembered(values)
        images = torch.bmm(colours, maps).clamp(max=1.0)
        return images.reshape(len(values), 3, self.size, self.size)

    def _remembered(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N 4 P"]:
        keys = [(round(s, 9), round(kind), round(o, 9)) for s, kind, o in values[:, 3:].tolist()]
        missing = list(dict.fromkeys(key for key in keys if key not in self._maps))
        if len(self._maps) + len(missing) > REMEMBERED:
            return self._light(values)
        if missing:
            ahead = torch.tensor([(0.0, 0.0, 0.0, *key) for key in missing], dtype=values.dtype)
            self._maps |= dict(zip(missing, self._light(ahead), strict=True))
        return torch.stack([self._maps[key] for key in keys]).to(values.dtype)

    def _light(self, values: Float[Tensor, "N k"]) -> Float[Tensor, "N 4 P"]:
        shape = values[:, 4].round().long().clamp(0, len(OBJECTS) - 1)
        out = values.new_zeros(len(values), 4, self.size**2)
        for kind in shape.unique().tolist():
            mine = shape == kind
            out = out.index_put((mine.nonzero()[:, 0],), light(self.size, kind, values[mine, 3], values[mine, 5]))
        return out
