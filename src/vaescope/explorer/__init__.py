"""A local web page with a slider per latent that shows what the decoder returns."""

from vaescope.explorer.server import serve
from vaescope.explorer.session import Session

__all__ = ["Session", "serve"]
