"""The gap between log p(x) and the ELBO on simulated x, between two bounds, and its parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.certification.joint import Joint
from vaescope.certification.sandwich import Sandwich, bound_log_marginal
from vaescope.certification.simulate import Simulation
from vaescope.certification.start import laplace_at_mode
from vaescope.diagnosis.budget import Budget
from vaescope.distributions import DiagonalGaussian, Normal
from vaescope.theory.rules import matched_nodes
from vaescope.theory.sampled import sampled_gap

POINTS = 48  # simulated x whose log p(x) is bounded
ELBO_NODES = 256
LARGEST_DIM = 64


@dataclass(frozen=True, eq=False)
class GapBounds:
    """Bounds on log p(x), and the ELBOs of the encoder and of the best posterior of its family."""

    sandwich: Sandwich
    elbo: Float[Tensor, " N"] | None
    """Of the encoder; None if `encode` returns only marginals of q."""
    best_elbo: Float[Tensor, " N"] | None
    """Of the best diagonal Gaussian that gradient ascent found; None without time left or with another prior."""

    @property
    def gap(self) -> tuple[float, float] | None:
        """Mean log p(x) - ELBO: at least and at most."""
        if self.elbo is None:
            return None
        return float((self.sandwich.lower - self.elbo).mean()), float((self.sandwich.upper - self.elbo).mean())

    @property
    def amortisation(self) -> float | None:
        """Mean loss of the encoder against the best posterior of its family; a lower bound."""
        return None if self.best_elbo is None or self.elbo is None else float((self.best_elbo - self.elbo).mean())


def bound_gap(simulation: Simulation, budget: Budget, *, points: int = POINTS, seed: int = 0) -> GapBounds:
    """Bound log p(x) of some simulated x from both sides, and compare with the ELBO."""
    joint = Joint.of(simulation, points)
    q = simulation.posterior
    q = DiagonalGaussian(q.mean[:points], q.variance[:points])
    sandwich = bound_log_marginal(joint, laplace_at_mode(joint, q), simulation.u[:points], budget, seed=seed)
    if joint.sample.model.posterior_family != "diagonal":
        return GapBounds(sandwich, None, None)
    nodes = matched_nodes(q.mean.shape[1], max(ELBO_NODES, 4 * q.mean.shape[1]))
    elbo = joint.elbo(q, nodes)
    return GapBounds(sandwich, elbo, _best_elbo(joint, q, elbo) if budget.left > 0 else None)


def _best_elbo(joint: Joint, q: DiagonalGaussian, elbo: Float[Tensor, " N"]) -> Float[Tensor, " N"] | None:
    if not isinstance(joint.prior, Normal):
        return None
    sample, x = joint.sample, joint.sample.observations
    prior = Normal(sample.prior_mean.double(), sample.prior_variance.double())
    found = sampled_gap(lambda rows, z: joint.log_likelihood(x[rows], z), q, prior)
    return torch.maximum(found.best_elbo.double(), elbo)
