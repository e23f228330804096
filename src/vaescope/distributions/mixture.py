"""A mixture of normal distributions per latent, fixed, learned, or made of posteriors of pseudo-inputs (VampPrior)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.distributions.base import LOG_2PI, Number, Prior
from vaescope.distributions.quadrature import normal_expectation
from vaescope.errors import InputError

# nodes of the one-dimensional quadrature: the log-density bends sharply between modes, and components may be narrow;
# components 20 times narrower than the normal distribution are resolved
NODES = 601
NUMBERS_AT_ONCE = 2**24  # nodes times components in memory at a time


@dataclass(frozen=True, eq=False)
class Mixture(Prior):
    """Σ_k w_k N(mean_k, variance_k), the components along the last axis.

    A leading axis gives every latent its own mixture. It is not log-concave, so outside Assumption 1 of Reizinger et
    al. 2022.

    >>> two = Mixture(torch.tensor([-2.0, 2.0]), torch.tensor([0.1, 0.1]))
    >>> round(float(two.log_density(torch.tensor([2.0])).exp()), 4)  # half of the density of one mode
    0.6308
    """

    mean: Float[Tensor, "*d K"]
    variance: Float[Tensor, "*d K"]
    weight: Float[Tensor, "*d K"] | None = None
    """Equal by default."""

    def __post_init__(self) -> None:
        shapes = {tuple(part.shape) for part in (self.mean, self.variance, self.weight) if part is not None}
        if len(shapes) > 1:
            raise InputError(f"mean, variance and weight of a mixture must have one shape, got {sorted(shapes)}.")
        if not bool((self.variance > 0).all()):
            raise InputError("variance of a mixture must be > 0.")
        if self.weight is not None and not bool((self.weight > 0).all()):
            raise InputError("weight of a mixture must be > 0.")

    @property
    def _log_weight(self) -> Tensor:
        weight = torch.ones_like(self.mean) if self.weight is None else self.weight
        return weight.log() - weight.sum(-1, keepdim=True).log()

    def log_density(self, z: Tensor) -> Tensor:
        mean, variance, log_weight = (part.to(z) for part in (self.mean, self.variance, self._log_weight))
        squares = (z.unsqueeze(-1) - mean) ** 2 / variance
        return torch.logsumexp(log_weight - 0.5 * (squares + variance.log() + LOG_2PI), dim=-1)

    def curvature(self, z: Tensor) -> Tensor:
        mean, variance, log_weight = (part.to(z) for part in (self.mean, self.variance, self._log_weight))
        slope = (mean - z.unsqueeze(-1)) / variance
        share = torch.softmax(log_weight - 0.5 * (variance * slope**2 + variance.log()), dim=-1)
        average = (share * slope).sum(-1)
        return (share * (1 / variance - slope**2)).sum(-1) + average**2

    def expected_log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        def density(u: Tensor) -> Tensor:  # nodes last; latents are the axis before them
            return self.log_density(u.movedim(-1, 0)).movedim(0, -1)

        if mean.ndim < 2:
            return normal_expectation(density, mean, variance, order=NODES, even=True)
        rows = max(1, NUMBERS_AT_ONCE // (NODES * self.mean.shape[-1] * mean[0].numel()))
        chunks = zip(mean.split(rows), variance.expand_as(mean).split(rows), strict=True)
        return torch.cat([normal_expectation(density, m, v, order=NODES, even=True) for m, v in chunks])

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        components = self.mean.expand(*shape, self.mean.shape[-1]).to(dtype)
        weight = self._log_weight.exp().expand_as(components).reshape(-1, components.shape[-1])
        chosen = torch.multinomial(weight, 1, generator=generator).reshape(*shape, 1)
        spread = self.variance.expand_as(components).to(dtype).gather(-1, chosen).squeeze(-1).sqrt()
        noise = torch.randn(shape, generator=generator, dtype=dtype)
        return components.gather(-1, chosen).squeeze(-1) + spread * noise

    def mean_and_variance(self) -> tuple[Number, Number]:
        weight = self._log_weight.exp()
        mean = (weight * self.mean).sum(-1)
        return mean, (weight * (self.variance + self.mean**2)).sum(-1) - mean**2


def mixture_of_posteriors(mean: Float[Tensor, "K d"], variance: Float[Tensor, "K d"]) -> Mixture:
    """The marginals of a VampPrior: for every latent, the posteriors of K pseudo-inputs with equal weights."""
    return Mixture(mean.mT, variance.mT)
