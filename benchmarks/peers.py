"""Other implementations, for comparison."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def disent_metric(name: str) -> ModuleType:
    """A metric module of disent (`_dci`, `_mig`, `_sap`), imported without its data sets and trainers.

    The metrics are functions of arrays; only the rest of the package needs torchvision and Lightning.
    """
    found = importlib.util.find_spec("disent")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("disent is not installed")
    data, metrics = ModuleType("disent.dataset"), ModuleType("disent.metrics")
    data.DisentDataset = object  # type: ignore[attr-defined]
    metrics.__path__ = [str(Path(found.origin).parent / "metrics")]
    sys.modules.setdefault("disent.dataset", data)
    sys.modules.setdefault("disent.metrics", metrics)
    return importlib.import_module(f"disent.metrics.{name}")
