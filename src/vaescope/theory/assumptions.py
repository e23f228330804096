"""Checks of what the propositions of the papers assume: constants that contradict each other, priors outside them."""

from __future__ import annotations

import torch
from torch import Tensor

from vaescope import validation
from vaescope.distributions import Prior
from vaescope.errors import InputError

SPAN, POINTS = 6.0, 401  # standard deviations on either side, and points, at which a prior is examined
ROUNDING = 1e-9


def check_lipschitz(*, lipschitz: float | None = None, lipschitz_inverse: float | None = None) -> None:
    """Constants must be > 0, and those of f and of g = f⁻¹ must have a product of at least 1."""
    given = {"lipschitz": lipschitz, "lipschitz_inverse": lipschitz_inverse}
    for name, value in given.items():
        if value is not None and value != float("inf"):
            validation.number(name, value, above=0.0)
    if lipschitz is not None and lipschitz_inverse is not None and lipschitz * lipschitz_inverse < 1 - ROUNDING:
        raise InputError(
            f"lipschitz * lipschitz_inverse must be at least 1 for a map and its inverse, got {lipschitz:g} * "
            f"{lipschitz_inverse:g}."
        )


def check_log_concave(prior: Prior) -> None:
    """Assumption 1 (i) of Reizinger et al. 2022: supported on all of R, with (log p₀)'' <= 0."""
    if prior.bounds is not None:
        raise InputError("the bound needs a prior that is supported on all of R; this one is bounded.")
    if bool((prior.curvature(examined_points(prior)) < -ROUNDING).any()):
        raise InputError("the bound needs a log-concave prior; this one is not.")


def check_domination(prior: Prior, domination: tuple[float, float]) -> None:
    """-log p₀(u) <= D u² + E, as Prop. 7 of Reizinger et al. 2022 assumes."""
    D, E = domination
    check_log_concave(prior)
    points = examined_points(prior)
    if bool((-prior.log_density(points) > D * points.square() + E + ROUNDING).any()):
        raise InputError(
            f"domination must satisfy -log p(u) <= D u² + E for every u; D = {D:g}, E = {E:g} does not for this prior."
        )


def examined_points(prior: Prior) -> Tensor:
    """Points of every latent across the prior, (POINTS, d) or (POINTS, 1)."""
    mean, variance = (torch.as_tensor(value, dtype=torch.float64) for value in prior.mean_and_variance())
    steps = torch.linspace(-SPAN, SPAN, POINTS, dtype=torch.float64).unsqueeze(1)
    return mean + variance.sqrt() * steps
