"""The structure of 3DShapes: a room, an object in it, and six factors."""

from __future__ import annotations

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.data.rendering.scene import OBJECTS, light_maps
from vaescope.data.rendering.shapes import hue_to_rgb
from vaescope.data.rendering.structure import GridFactor, Renderer, evenly_spaced

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
