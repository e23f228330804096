"""Observations with known factors, and a user's own."""

from vaescope.data import arrays, mixings

__all__ = ["arrays", "mixings"]
