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
    from vaescope.anomaly import AnomalyScores, anomaly_scores
    from vaescope.certification.certify import Certificate, certify
    from vaescope.comparison.compare import Comparison, compare
    from vaescope.diagnosis.diagnose import Diagnosis, diagnose
    from vaescope.distributions import Beta, Laplace, Normal, Uniform
    from vaescope.errors import InputError, RunError
    from vaescope.fitting import Fit, fit
    from vaescope.forecast.analyse import preflight
    from vaescope.forecast.result import Preflight
    from vaescope.identification.identify import Identifiability, identifiability
    from vaescope.protocol import LatentModel
    from vaescope.watch import Watch

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
    "settings",
    "sweeps",
    "theory",
    "training",
    "watch",
)
_NAMES = {
    **dict.fromkeys(("Beta", "Laplace", "Normal", "Uniform"), "vaescope.distributions"),
    **dict.fromkeys(("InputError", "RunError"), "vaescope.errors"),
    **dict.fromkeys(("Fit", "fit"), "vaescope.fitting"),
    **dict.fromkeys(("AnomalyScores", "anomaly_scores"), "vaescope.anomaly"),
    **dict.fromkeys(("Certificate", "certify"), "vaescope.certification"),
    **dict.fromkeys(("Comparison", "compare"), "vaescope.comparison"),
    **dict.fromkeys(("Diagnosis", "diagnose"), "vaescope.diagnosis"),
    "Preflight": "vaescope.forecast.result",
    "preflight": "vaescope.forecast.analyse",
    **dict.fromkeys(("Identifiability", "identifiability"), "vaescope.identification"),
    "LatentModel": "vaescope.protocol",
    "Watch": "vaescope.watch",
}

__all__ = [
    "AnomalyScores",
    "Beta",
    "Certificate",
    "Comparison",
    "Diagnosis",
    "Fit",
    "Identifiability",
    "InputError",
    "Laplace",
    "LatentModel",
    "Normal",
    "Preflight",
    "RunError",
    "Uniform",
    "Watch",
    "anomaly_scores",
    "certify",
    "compare",
    "diagnose",
    "fit",
    "identifiability",
    "preflight",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _SUBPACKAGES:
        return importlib.import_module(f"vaescope.{name}")
    raise AttributeError(f"module 'vaescope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBPACKAGES, *_NAMES})
