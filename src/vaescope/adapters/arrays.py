"""A model from posteriors alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.distributions import Normal, Prior
from vaescope.protocol import LatentModel


@dataclass(frozen=True, eq=False)
class Arrays(LatentModel):
    """Posteriors of all samples, for analyses that need no networks."""

    mean: Float[Tensor, "N d"]
    variance: Float[Tensor, "N d"]
    prior: Prior = field(default_factory=Normal)
    name: str = "posteriors"

    @property
    def latent_dim(self) -> int:
        return self.mean.shape[1]

    @property
    def has_decoder(self) -> bool:
        return False

    @property
    def samples(self) -> Float[Tensor, "N both"]:
        """The input of `encode`: mean and variance of each sample, side by side."""
        return torch.cat([self.mean, self.variance], dim=1)

    def encode(self, x: Tensor, auxiliary: object | None = None) -> tuple[Tensor, Tensor]:
        """The posteriors of some rows of `samples`."""
        if x.ndim != 2 or x.shape[1] != 2 * self.latent_dim:
            raise InputError(f"posteriors encode only rows of their own `samples`, got {tuple(x.shape)}.")
        mean, variance = x.split(self.latent_dim, dim=1)
        return mean, variance

    def decode(self, z: Tensor) -> Tensor:
        raise InputError("posteriors have no decoder.")


def from_arrays(mean: object, variance: object, *, prior: Prior | None = None, name: str = "posteriors") -> Arrays:
    """A model from the posteriors of all samples; analyses that need a decoder are skipped.

    Args:
        mean: (N, d) posterior means, an array or a tensor.
        variance: (N, d) posterior variances.
        prior: N(0, I) by default.
        name: what reports call the model.
    """
    means, variances = (torch.from_numpy(validation.matrix(v, n)) for v, n in ((mean, "mean"), (variance, "variance")))
    if means.shape != variances.shape:
        raise InputError(
            f"mean and variance must have the same shape (N, d), got {tuple(means.shape)} and {tuple(variances.shape)}."
        )
    return Arrays(means, variances, Normal() if prior is None else prior, name)
