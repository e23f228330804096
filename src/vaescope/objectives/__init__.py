"""Training objectives: functions of the `Terms` of a batch that return a loss per member, to be minimised."""

from vaescope.objectives.disentanglement import DIP, BetaTC, Factor, decomposition
from vaescope.objectives.elbo import Capacity, beta_elbo
from vaescope.objectives.elbo import Objective as Objective
from vaescope.objectives.names import objective_by_name as objective_by_name
from vaescope.objectives.weighted import Weighted

__all__ = ["DIP", "BetaTC", "Capacity", "Factor", "Weighted", "beta_elbo", "decomposition"]
