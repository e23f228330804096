"""The prior p(z | auxiliary) of an iVAE."""

from __future__ import annotations

import torch
from torch import Tensor

from vaescope.distributions import Normal, Prior
from vaescope.errors import InputError


class LearnedNormal(Normal):
    """A normal prior whose variance comes from a network: positive by construction, so it is not checked."""

    def __post_init__(self) -> None:
        pass

    def member(self, index: int) -> Normal:
        """The prior of one member of a stack, with a mean and a variance per sample."""
        assert isinstance(self.variance, Tensor)
        mean = torch.as_tensor(self.mean).to(self.variance).expand(self.variance.shape)
        return Normal(mean[index], self.variance[index])


class ConditionalPrior(Prior):
    """The `prior` of an iVAE, which is unknown without the auxiliary input: every method raises."""

    def log_density(self, z: Tensor) -> Tensor:
        raise _needs_auxiliary()

    def curvature(self, z: Tensor) -> Tensor:
        raise _needs_auxiliary()

    def expected_log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        raise _needs_auxiliary()

    def sample(self, *shape: int, generator: torch.Generator, dtype: torch.dtype = torch.float64) -> Tensor:
        raise _needs_auxiliary()

    def mean_and_variance(self) -> tuple[float | Tensor, float | Tensor]:
        raise _needs_auxiliary()


def _needs_auxiliary() -> InputError:
    return InputError("the prior of an iVAE depends on its auxiliary input; use prior_at(auxiliary).")
