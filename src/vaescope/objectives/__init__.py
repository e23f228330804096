"""Training objectives: functions of the `Terms` of a batch that return a loss per member, to be minimised."""

from vaescope.objectives.dip import DIP
from vaescope.objectives.elbo import Capacity, Objective, beta_elbo, describe
from vaescope.objectives.factor import Factor
from vaescope.objectives.names import NAMES, objective_by_name
from vaescope.objectives.total_correlation import BetaTC, decomposition

__all__ = [
    "DIP",
    "NAMES",
    "BetaTC",
    "Capacity",
    "Factor",
    "Objective",
    "beta_elbo",
    "decomposition",
    "describe",
    "objective_by_name",
]
