"""Identifiability and disentanglement metrics on plain arrays: codes (N, d), factors (N, k).

`evaluate` gives all of them as one table; docs/concepts/metrics.md says which answers which question.
"""

from vaescope.metrics.aggregated import AggregatedMIG, aggregated_mig
from vaescope.metrics.amari import amari, amari_distance
from vaescope.metrics.dci import DCI, dci
from vaescope.metrics.evaluate import Evaluation, evaluate
from vaescope.metrics.infomec import InfoMEC, infomec
from vaescope.metrics.information import mutual_information
from vaescope.metrics.interventions import beta_vae_score, factor_vae_score
from vaescope.metrics.irs import irs
from vaescope.metrics.mcc import MCC, mcc
from vaescope.metrics.mig import mig, mig_sup
from vaescope.metrics.modularity import ModularityExplicitness, modularity_explicitness
from vaescope.metrics.r2 import linear_r2
from vaescope.metrics.sap import sap
from vaescope.metrics.score import Score
from vaescope.metrics.stability import Stability, stability, udr

__all__ = [
    "DCI",
    "MCC",
    "AggregatedMIG",
    "Evaluation",
    "InfoMEC",
    "ModularityExplicitness",
    "Score",
    "Stability",
    "aggregated_mig",
    "amari",
    "amari_distance",
    "beta_vae_score",
    "dci",
    "evaluate",
    "factor_vae_score",
    "infomec",
    "irs",
    "linear_r2",
    "mcc",
    "mig",
    "mig_sup",
    "modularity_explicitness",
    "mutual_information",
    "sap",
    "stability",
    "udr",
]
