"""A local web page with a slider per latent that shows what the decoder returns."""

from vaescope.products.explore.server import serve
from vaescope.products.explore.session import Session

__all__ = ["Session", "serve"]
