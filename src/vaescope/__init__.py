"""vaescope: understand variational autoencoders: why they disentangle, whether yours does, what to change.

Subpackages and names are imported on first use, so that the command line starts at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vaescope import adapters as adapters
    from vaescope import data as data
    from vaescope import distributions as distributions
    from vaescope import explorer as explorer
    from vaescope import interop as interop
    from vaescope import jobs as jobs
    from vaescope import metrics as metrics
    from vaescope import models as models
    from vaescope import objectives as objectives
    from vaescope import orthogonality as orthogonality
    from vaescope import regime as regime
    from vaescope import sweeps as sweeps
    from vaescope import theory as theory
    from vaescope import training as training
    from vaescope.diagnosis.diagnose import Diagnosis, diagnose
    from vaescope.distributions import Beta, Laplace, Normal, Uniform
    from vaescope.errors import InputError, RunError
    from vaescope.fitting import Fit, fit
    from vaescope.protocol import LatentModel

__version__ = "0.2.0"

_SUBPACKAGES = (
    "adapters",
    "data",
    "distributions",
    "explorer",
    "interop",
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
    "diagnose",
    "fit",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _SUBPACKAGES:
        return importlib.import_module(f"vaescope.{name}")
    raise AttributeError(f"module 'vaescope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBPACKAGES, *_NAMES})
