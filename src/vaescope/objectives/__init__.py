"""Objectives as pure functions of the terms: each returns a loss per member, to be minimised."""

from vaescope.objectives.dip import dip
from vaescope.objectives.elbo import Objective, beta_elbo, capacity, elbo
from vaescope.objectives.total_correlation import Parts, beta_tc, decompose, decomposition

__all__ = ["Objective", "Parts", "beta_elbo", "beta_tc", "capacity", "decompose", "decomposition", "dip", "elbo"]
