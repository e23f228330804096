"""Objectives as pure functions of the terms: each returns a loss per member, to be minimised."""

from vaescope.objectives.dip import DIP
from vaescope.objectives.elbo import Capacity, Objective, WithNetwork, at, beta_elbo, describe, elbo
from vaescope.objectives.factor import Factor
from vaescope.objectives.names import NAMES, named
from vaescope.objectives.total_correlation import BetaTC, Parts, decompose, decomposition

__all__ = [
    "DIP",
    "NAMES",
    "BetaTC",
    "Capacity",
    "Factor",
    "Objective",
    "Parts",
    "WithNetwork",
    "at",
    "beta_elbo",
    "decompose",
    "decomposition",
    "describe",
    "elbo",
    "named",
]
