"""Objectives by name."""

from __future__ import annotations

from typing import cast

from vaescope.core.errors import InputError
from vaescope.core.plugins import plugin, plugins
from vaescope.objectives.disentanglement import DIP, BetaTC, Factor
from vaescope.objectives.elbo import Capacity, Objective, beta_elbo

NAMES = ("beta", "beta-tc", "factor", "dip-1", "dip-2", "capacity")
CAPACITY_STEPS = 100_000  # to reach 25 nats: Burgess et al. 2018 on dSprites


def objective_by_name(name: str, *, samples: int, latent_dim: int, steps: int = CAPACITY_STEPS) -> Objective:
    """The objective of this name with its published settings.

    Args:
        name: one of `NAMES`, or what an installed package adds to them.
        samples: size of the training set.
        latent_dim: of the model.
        steps: of the training; a capacity is reached after half of them at the latest.

    >>> objective_by_name("beta-tc", samples=100, latent_dim=2)
    BetaTC(samples=100, sampling='stratified')
    """
    match name:
        case "beta":
            return beta_elbo
        case "beta-tc":
            return BetaTC(samples)
        case "factor":
            return Factor(latent_dim)
        case "dip-1":
            return DIP(1, off_diagonal=10.0, diagonal=100.0)
        case "dip-2":
            return DIP(2)
        case "capacity":
            return Capacity(25.0, steps=min(CAPACITY_STEPS, steps // 2))
    own = plugin("objectives", name)
    if own is None:
        raise InputError(f"objective must be one of {', '.join((*NAMES, *plugins('objectives')))}, got {name!r}.")
    return cast(Objective, own)
