"""Identifiability and disentanglement metrics on arrays: codes (N, d) and factors (N, k).

`evaluate` computes all of them; docs/concepts/metrics.md explains which metric answers which question.
"""

from vaescope.metrics.aggregated import aggregated_mig
from vaescope.metrics.amari import amari
from vaescope.metrics.crossfitted import mcc_crossfitted
from vaescope.metrics.dci import dci
from vaescope.metrics.dci_es import dci_es
from vaescope.metrics.dependent import conditional_mcc
from vaescope.metrics.edi import edi
from vaescope.metrics.evaluate import evaluate
from vaescope.metrics.infomec import infomec
from vaescope.metrics.information import mutual_information as mutual_information
from vaescope.metrics.interventions import beta_vae_score, factor_vae_score
from vaescope.metrics.irs import irs
from vaescope.metrics.mcc import mcc
from vaescope.metrics.mig import mig, mig_sup
from vaescope.metrics.modularity import modularity_explicitness
from vaescope.metrics.r2 import linear_r2
from vaescope.metrics.sap import sap
from vaescope.metrics.stability import stability, udr
from vaescope.metrics.tmex import tmex

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
