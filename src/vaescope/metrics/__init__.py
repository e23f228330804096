"""Identifiability and disentanglement metrics on arrays: codes (N, d) and factors (N, k).

`evaluate` computes all of them; docs/concepts/metrics.md explains which metric answers which question.
"""

from vaescope.metrics.conditional import conditional_mcc, mcc_crossfitted, tmex
from vaescope.metrics.correlation import amari, linear_r2, mcc, stability, udr
from vaescope.metrics.evaluate import evaluate
from vaescope.metrics.importances import dci, dci_es
from vaescope.metrics.information import aggregated_mig, edi, mig, mig_sup, sap
from vaescope.metrics.information import mutual_information as mutual_information
from vaescope.metrics.informativeness import infomec, modularity_explicitness
from vaescope.metrics.interventions import beta_vae_score, factor_vae_score, irs

__all__ = [
    "aggregated_mig",
    "amari",
    "beta_vae_score",
    "conditional_mcc",
    "dci",
    "dci_es",
    "edi",
    "evaluate",
    "factor_vae_score",
    "infomec",
    "irs",
    "linear_r2",
    "mcc",
    "mcc_crossfitted",
    "mig",
    "mig_sup",
    "modularity_explicitness",
    "sap",
    "stability",
    "tmex",
    "udr",
]
