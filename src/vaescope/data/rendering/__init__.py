"""Images rendered from known factors."""

from vaescope.data.rendering.images import DSprites, Shapes3D, Sprites
from vaescope.data.rendering.images import LabelledImages as LabelledImages
from vaescope.data.rendering.images import Renderer as Renderer

__all__ = ["DSprites", "Shapes3D", "Sprites"]
