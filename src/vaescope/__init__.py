"""vaescope: understand variational autoencoders: why they disentangle, whether yours does, what to change.

Subpackages and names are imported on first use, so that the command line starts at once.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vaescope import adapters as adapters
    from vaescope import data as data
    from vaescope import distributions as distributions
    from vaescope import interop as interop
    from vaescope import jobs as jobs
    from vaescope import metrics as metrics
    from vaescope import models as models
    from vaescope import objectives as objectives
    from vaescope import orthogonality as orthogonality
    from vaescope import regime as regime
    from vaescope import sklearn as sklearn
    from vaescope import sweeps as sweeps
    from vaescope import theory as theory
    from vaescope import training as training
    from vaescope.core.errors import InputError, RunError, VaescopeWarning
    from vaescope.distributions import Beta, Laplace, Normal, Uniform
    from vaescope.fitting import Fit, fit
    from vaescope.improvement.improve import Improvement, improve
    from vaescope.products import explore as explorer  # noqa: F401
    from vaescope.products import watch as watch
    from vaescope.products.anomaly import AnomalyScores, anomaly_scores
    from vaescope.products.audit.audit import Audit, audit
    from vaescope.products.certify.certify import Certificate, certify
    from vaescope.products.check import Check, check
    from vaescope.products.compare.compare import Comparison, compare
    from vaescope.products.diagnose.diagnose import Diagnosis, diagnose
    from vaescope.products.identifiability import Identifiability, identifiability
    from vaescope.products.leakage import Leakage, leakage
    from vaescope.products.preflight.preflight import Preflight, preflight
    from vaescope.products.watch.watch import Watch
    from vaescope.protocol import LatentModel, ModelSpec

__version__ = "0.2.0"
logging.getLogger("vaescope").addHandler(logging.NullHandler())  # nothing is shown unless an application asks for it

_SUBPACKAGES = {
    **{
        name: f"vaescope.{name}"
        for name in (
            "adapters",
            "data",
            "distributions",
            "interop",
            "jobs",
            "metrics",
            "models",
            "objectives",
            "orthogonality",
            "regime",
            "settings",
            "sklearn",
            "sweeps",
            "theory",
            "training",
        )
    },
    "explorer": "vaescope.products.explore",
    "watch": "vaescope.products.watch",
}
_NAMES = {
    **dict.fromkeys(("Beta", "Laplace", "Normal", "Uniform"), "vaescope.distributions"),
    **dict.fromkeys(("InputError", "RunError", "VaescopeWarning"), "vaescope.core.errors"),
    **dict.fromkeys(("Fit", "fit"), "vaescope.fitting"),
    **dict.fromkeys(("AnomalyScores", "anomaly_scores"), "vaescope.products.anomaly"),
    **dict.fromkeys(("Audit", "audit"), "vaescope.products.audit.audit"),
    **dict.fromkeys(("Certificate", "certify"), "vaescope.products.certify.certify"),
    **dict.fromkeys(("Check", "check"), "vaescope.products.check"),
    **dict.fromkeys(("Comparison", "compare"), "vaescope.products.compare.compare"),
    **dict.fromkeys(("Diagnosis", "diagnose"), "vaescope.products.diagnose.diagnose"),
    "Preflight": "vaescope.products.preflight.preflight",
    "preflight": "vaescope.products.preflight.preflight",
    **dict.fromkeys(("Identifiability", "identifiability"), "vaescope.products.identifiability"),
    **dict.fromkeys(("Improvement", "improve"), "vaescope.improvement.improve"),
    **dict.fromkeys(("Leakage", "leakage"), "vaescope.products.leakage"),
    **dict.fromkeys(("LatentModel", "ModelSpec"), "vaescope.protocol"),
    "Watch": "vaescope.products.watch",
}

__all__ = [
    "AnomalyScores",
    "Audit",
    "Beta",
    "Certificate",
    "Check",
    "Comparison",
    "Diagnosis",
    "Fit",
    "Identifiability",
    "Improvement",
    "InputError",
    "Laplace",
    "LatentModel",
    "Leakage",
    "ModelSpec",
    "Normal",
    "Preflight",
    "RunError",
    "Uniform",
    "VaescopeWarning",
    "Watch",
    "anomaly_scores",
    "audit",
    "certify",
    "check",
    "compare",
    "diagnose",
    "fit",
    "identifiability",
    "improve",
    "leakage",
    "preflight",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in _SUBPACKAGES:
        return importlib.import_module(_SUBPACKAGES[name])
    raise AttributeError(f"module 'vaescope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBPACKAGES, *_NAMES})
