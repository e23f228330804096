"""Images with exact factors, computed and not downloaded."""

from vaescope.data.rendering.dsprites import DSprites
from vaescope.data.rendering.shapes3d import Shapes3D
from vaescope.data.rendering.sprites import Sprites
from vaescope.data.rendering.structure import Factor, Images, Rendered

__all__ = ["DSprites", "Factor", "Images", "Rendered", "Shapes3D", "Sprites"]
