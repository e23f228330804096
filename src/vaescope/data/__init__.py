"""Data sets: synthetic mixings, rendered images, official files and user files.

Files and renderers are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from vaescope.data import mixings as mixings

if TYPE_CHECKING:
    from vaescope.data import rendering as rendering
    from vaescope.data.catalogue import dataset_from, open_dataset
    from vaescope.data.dataset import Dataset
    from vaescope.data.files import load

__all__ = ["Dataset", "dataset_from", "load", "open_dataset"]

_module_of = {"Dataset": "dataset", "dataset_from": "catalogue", "load": "files", "open_dataset": "catalogue"}


def __getattr__(name: str) -> object:
    if name in ("catalogue", "files", "rendering"):
        return importlib.import_module(f"vaescope.data.{name}")
    if name in _module_of:
        return getattr(importlib.import_module(f"vaescope.data.{_module_of[name]}"), name)
    raise AttributeError(f"module 'vaescope.data' has no attribute {name!r}")
