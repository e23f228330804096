"""A local page with a slider per latent, and what the decoder makes of it."""

from vaescope.explorer.server import serve
from vaescope.explorer.session import Session

__all__ = ["Session", "serve"]
