"""Images rendered from known factors."""

from vaescope.data.rendering.dsprites import DSprites
from vaescope.data.rendering.shapes3d import Shapes3D
from vaescope.data.rendering.sprites import Sprites
from vaescope.data.rendering.structure import LabelledImages as LabelledImages
from vaescope.data.rendering.structure import Renderer as Renderer

__all__ = ["DSprites", "Shapes3D", "Sprites"]
