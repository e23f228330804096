"""Observations with known factors, and a user's own.

Files and renderers are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vaescope.data import arrays, mixings

if TYPE_CHECKING:
    from vaescope.data import catalogue, files, rendering
    from vaescope.data.files import Dataset, load

__all__ = ["Dataset", "arrays", "catalogue", "files", "load", "mixings", "rendering"]


def __getattr__(name: str) -> Any:
    if name in ("catalogue", "files", "rendering"):
        return importlib.import_module(f"vaescope.data.{name}")
    if name in ("Dataset", "load"):
        return getattr(importlib.import_module("vaescope.data.files"), name)
    raise AttributeError(f"module 'vaescope.data' has no attribute {name!r}")
