"""A model as the analyses want it: variances where it gave log-variances, a normal prior where it has another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vaescope.distributions import Normal, Prior


@dataclass(frozen=True, eq=False)
class Viewed:
    """The same model, seen with another scale of its posteriors or another prior."""

    model: Any
    log_variance: bool = False
    normal: Normal | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    @property
    def whole(self) -> Any:
        return getattr(self.model, "whole", self.model)

    @property
    def latent_dim(self) -> int:
        return int(self.model.latent_dim)

    @property
    def prior(self) -> Any:
        return self.model.prior if self.normal is None else self.normal

    @property
    def precision(self) -> float | None:
        declared: float | None = self.model.precision
        return declared

    def encode(self, x: Tensor, *u: Any) -> tuple[Tensor, Tensor]:
        mean, variance = self.model.encode(x, *u)
        return mean, variance.exp() if self.log_variance else variance

    def decode(self, z: Tensor) -> Tensor:
        out: Tensor = self.model.decode(z)
        return out


def with_normal_prior(model: Any) -> Any:
    """The model, its prior replaced by the normal distribution of the same mean and variance where it is another."""
    prior = model.prior
    if isinstance(prior, Normal) or getattr(model, "conditional", False) or not isinstance(prior, Prior):
        return model
    return Viewed(model, normal=Normal(*prior.mean_and_variance()))
