"""vaescope: why a VAE disentangles, whether yours does, and what to change.

Rooms and names are imported when first used, so that `vaescope --help` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vaescope import (
        adapters,
        data,
        distributions,
        explorer,
        metrics,
        models,
        objectives,
        orthogonality,
        regime,
        theory,
        training,
    )
    from vaescope.diagnosis.diagnose import Diagnosis, diagnose
    from vaescope.distributions import Beta, Laplace, Normal, Uniform
    from vaescope.errors import InputError, RunError
    from vaescope.fitting import Fit, fit
    from vaescope.protocol import LatentModel

__version__ = "0.1.0"

_ROOMS = (
    "adapters",
    "data",
    "distributions",
    "explorer",
    "jobs",
    "metrics",
    "models",
    "objectives",
    "orthogonality",
    "papers",
    "regime",
    "sweeps",
    "theory",
    "training",
)
_NAMES = {
    **dict.fromkeys(("Beta", "Laplace", "Normal", "Uniform"), "vaescope.distributions"),
    **dict.fromkeys(("InputError", "RunError"), "vaescope.errors"),
    **dict.fromkeys(("Fit", "fit"), "vaescope.fitting"),
    **dict.fromkeys(("Diagnosis", "diagnose"), "vaescope.diagnosis"),
    "LatentModel": "vaescope.protocol",
}

__all__ = [
    "Beta",
    "Diagnosis",
    "Fit",
    "InputError",
    "Laplace",
    "LatentModel",
    "Normal",
    "RunError",
    "Uniform",
    "adapters",
    "data",
    "diagnose",
    "distributions",
    "explorer",
    "fit",
    "jobs",
    "metrics",
    "models",
    "objectives",
    "orthogonality",
    "regime",
    "sweeps",
    "theory",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"vaescope.{name}")
    raise AttributeError(f"module 'vaescope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOMS, *_NAMES})
