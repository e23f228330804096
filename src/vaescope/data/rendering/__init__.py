"""Images rendered from known factors."""

from vaescope.data.rendering.images import DSprites, Shapes3D, Sprites
from vaescope.data.rendering.images import LabelledImages as LabelledImages
from vaescope.data.rendering.images import Renderer as Renderer
from vaescope.data.rendering.scenes import Rendered3DFaces, RenderedMPI3D

__all__ = ["DSprites", "Rendered3DFaces", "RenderedMPI3D", "Shapes3D", "Sprites"]
