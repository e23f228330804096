"""Images rendered from known factors."""

from vaescope.data.rendering.dsprites import DSprites
from vaescope.data.rendering.shapes3d import Shapes3D
from vaescope.data.rendering.sprites import Sprites
from vaescope.data.rendering.structure import LabelledImages, Renderer

__all__ = ["DSprites", "LabelledImages", "Renderer", "Shapes3D", "Sprites"]
