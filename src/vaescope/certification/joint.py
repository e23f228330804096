"""log p(x, u) of simulated x, with its gradient, for many codes per x at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.adapters.log_likelihood import sample_log_likelihood
from vaescope.certification.simulate import Simulation
from vaescope.distributions import DiagonalGaussian, Normal, Prior
from vaescope.encoded import EncodedSample
from vaescope.protocol import LogLikelihood
from vaescope.skipped import Skipped

NUMBERS_AT_ONCE = 2**21  # of decoded x, with their gradients


@dataclass(frozen=True, eq=False)
class Joint:
    """p(x, u) at N observations; u is (C, N, d), C codes per observation."""

    sample: EncodedSample
    prior: Prior

    @classmethod
    def of(cls, simulation: Simulation, rows: int | None = None) -> Joint:
        """The joint of all draws, or of the first ones."""
        if rows is None or rows >= len(simulation):
            return cls(simulation.encoded, simulation.prior)
        e, prior = simulation.encoded, simulation.prior
        parts = (e.x, e.mean, e.variance, e.prior_mean, e.prior_variance)
        if simulation.auxiliary is not None:
            prior = Normal(*(part[:rows].double() for part in (e.prior_mean, e.prior_variance)))
        return cls(EncodedSample(e.model, e.rows[:rows], *(part[:rows] for part in parts)), prior)

    def __len__(self) -> int:
        return len(self.sample)

    @cached_property
    def log_likelihood(self) -> LogLikelihood:
        """(x, z) -> log p(x|z)."""
        return sample_log_likelihood(self.sample)

    def log_prior(self, u: Float[Tensor, "C N d"]) -> Float[Tensor, "C N"]:
        """log p(u): the density in z times dz/du."""
        return (self.prior.log_density(self.prior.to_support(u)) + self.prior.log_derivative(u)).sum(-1)

    def __call__(self, u: Float[Tensor, "C N d"]) -> Float[Tensor, "C N"]:
        """log p(x, u), differentiable."""
        x = self.sample.observations.expand(len(u), -1, -1).flatten(0, 1)
        z = self.prior.to_support(u).flatten(0, 1)
        return self.log_likelihood(x, z).reshape(u.shape[:2]) + self.log_prior(u)

    def with_gradient(self, u: Float[Tensor, "C N d"]) -> tuple[Float[Tensor, "C N"], Float[Tensor, "C N d"]]:
        """log p(x, u) and its gradient in u, a chunk of codes at a time."""
        step = max(1, NUMBERS_AT_ONCE // max(1, len(self) * self.sample.observations.shape[1]))
        parts = [self._value_and_gradient(part) for part in u.split(step)]
        return torch.cat([value for value, _ in parts]), torch.cat([slope for _, slope in parts])

    def _value_and_gradient(self, u: Float[Tensor, "C N d"]) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            here = u.detach().requires_grad_()
            value = self(here)
            if not bool((value.detach() == value.detach()).any()):
                raise Skipped("the likelihood of simulated x is not a number")
            (slope,) = torch.autograd.grad(value.sum(), here)
        return value.detach(), slope.nan_to_num(0.0, 0.0, 0.0)

    def elbo(self, q: DiagonalGaussian, noise: Float[Tensor, "S d"]) -> Float[Tensor, " N"]:
        """E_q log p(x, u) + entropy, over the same noise for every observation."""
        total = torch.zeros(len(self), dtype=torch.float64)
        with torch.no_grad():
            for row in noise:
                total += self((q.mean + q.variance.sqrt() * row).unsqueeze(0))[0]
        return total / len(noise) + q.entropy()
