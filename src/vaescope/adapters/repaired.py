"""A model as the analyses want it: variances where it gave log-variances, probabilities where it gave logits, a normal
prior where it has another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vaescope.distributions import Normal, Prior


@dataclass(frozen=True, eq=False)
class Viewed:
    """The same model, seen with another scale of its posteriors or another prior."""

    model: Any
    log_variance: bool = False
    logits: bool = False
    normal: Normal | None = None
    floor: bool = True
    """Variances of zero are the least number above it."""

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
        variance = variance.exp() if self.log_variance else variance
        return mean, variance.where(variance != 0, torch.finfo(variance.dtype).tiny) if self.floor else variance

    def decode(self, z: Tensor) -> Tensor:
        out: Tensor = self.model.decode(z)
        return out.sigmoid() if self.logits else out


def with_normal_prior(model: Any) -> Any:
    """The model, its prior replaced by the normal distribution of the same mean and variance where it is another."""
    prior = model.prior
    if isinstance(prior, Normal) or getattr(model, "auxiliary_dim", 0) or not isinstance(prior, Prior):
        return model
    return Viewed(model, normal=Normal(*prior.mean_and_variance()))


def image_of(model: Any, outputs: int) -> tuple[int, int, int] | None:
    """(channels, height, width) of what a model decodes into so many numbers, where that can be drawn as a picture."""
    whole = getattr(model, "whole", model)
    shape = getattr(whole, "image", None) or getattr(getattr(whole, "model", None), "image", None)
    if shape is None:
        return None
    channels, height, width = (int(side) for side in shape)
    return (channels, height, width) if channels != 2 and channels * height * width == outputs else None
