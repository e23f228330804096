"""Data sets: synthetic mixings, rendered images, official files and user files.

Files and renderers are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from vaescope.data import mixings

if TYPE_CHECKING:
    from vaescope.data import rendering
    from vaescope.data.catalogue import dataset_from, open_dataset
    from vaescope.data.dataset import Dataset
    from vaescope.data.files import load

__all__ = ["Dataset", "dataset_from", "load", "mixings", "open_dataset", "rendering"]

_SUBMODULES = ("arrays", "catalogue", "files", "rendering")
_MODULE_OF = {
    "Dataset": "vaescope.data.dataset",
    "dataset_from": "vaescope.data.catalogue",
    "load": "vaescope.data.files",
    "open_dataset": "vaescope.data.catalogue",
}


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"vaescope.data.{name}")
    if name in _MODULE_OF:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    raise AttributeError(f"module 'vaescope.data' has no attribute {name!r}")
