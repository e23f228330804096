"""Posteriors and a model with a known regime, for tests of rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.analysis.posteriors import Posteriors
from vaescope.core import randomness
from vaescope.core.checks import choice
from vaescope.core.errors import InputError
from vaescope.protocol import LatentModel, ModelSpec

PRIORS = ("standard", "fixed", "conditional")


def posteriors(
    kinds: Sequence[str], samples: int = 1000, *, prior: str = "standard", share: float = 0.5, seed: int = 0
) -> Posteriors:
    """Posteriors of latents of these kinds.

    Active posteriors have variances 20 to 200 times smaller than the prior's, passive ones are within a few per cent of
    it, and a mixed latent is passive for a `share` of the samples.

    Args:
        kinds: `active`, `passive` or `mixed`, one per latent.
        samples: number of samples.
        prior: `standard` is N(0, 1), `fixed` a N(m, s²) per latent, `conditional` a different prior for each sample,
            with variances of 0.01 to 0.2.
        share: share of samples for which mixed latents are passive.
        seed: of all draws.
    """
    choice("prior", prior, PRIORS)
    if not kinds or any(kind not in ("active", "passive", "mixed") for kind in kinds):
        raise InputError(f"kinds must be active, passive or mixed, got {list(kinds)}.")
    if samples < 1 or not 0 < share < 1:
        raise InputError(f"posteriors need at least 1 sample and a share between 0 and 1, got {samples} and {share}.")
    rng = np.random.default_rng([seed, 7])
    shape = (samples, len(kinds))
    if prior == "standard":
        means, variances = np.zeros(()), np.ones(())
    elif prior == "fixed":
        means, variances = rng.normal(0, 3, shape[1]), 10 ** rng.uniform(-2, 2, shape[1])
    else:
        segment = rng.integers(0, 10, samples)
        means, variances = (
            rng.normal(0, 1, (10, shape[1]))[segment],
            10 ** rng.uniform(-2, -0.7, (10, shape[1]))[segment],
        )
    prior_mean, prior_variance = (np.broadcast_to(values, shape).copy() for values in (means, variances))
    passive = np.stack(
        [
            rng.permutation(samples) < round(share * samples)
            if kind == "mixed"
            else np.full(samples, kind == "passive")
            for kind in kinds
        ],
        axis=1,
    )
    ratio = np.where(passive, 1 + 0.05 * rng.uniform(-1, 1, shape), 10 ** rng.uniform(-2.3, -1.3, shape))
    shift = np.where(passive, 0.05, np.sqrt(1 - np.minimum(ratio, 1))) * rng.normal(size=shape)
    return Posteriors(prior_mean + shift * np.sqrt(prior_variance), ratio * prior_variance, prior_mean, prior_variance)


@dataclass(frozen=True)
class GatedModel(LatentModel):
    """A model with an active, a mixed and a passive latent, and an encoder in closed form.

    x = (5 z₁, 5 z₂ [z₁ > t]) + noise. For a share c = Φ(t) of the samples the gate is closed, x does not depend on z₂,
    and its posterior is its prior. x never depends on z₃. The encoder evaluates the gate at the mean of z₁: this is the
    exact posterior unless z₁ is within a posterior's width of t.

    Args:
        share: c, the share of samples for which the second latent is passive, between 0 and 1.
        precision: γ² = 1 / decoder variance.
        slope: factor of z₁ and z₂ in x, 5 above.

    >>> model = GatedModel(share=0.3)
    >>> model.encode(model.observe(4, seed=0))[0].shape
    torch.Size([4, 3])
    """

    share: float = 0.5
    precision: float = 100.0
    slope: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise InputError(f"share must be between 0 and 1, got {self.share}.")

    def build_spec(self) -> ModelSpec:
        return ModelSpec(latent_dim=3, precision=self.precision)

    @property
    def gate(self) -> float:
        """t, with Φ(t) = c."""
        return NormalDist().inv_cdf(self.share)

    @property
    def narrow(self) -> float:
        """Posterior variance of a latent that x depends on: 1/(1 + γ² slope²)."""
        return 1 / (1 + self.precision * self.slope**2)

    def decode(self, z: Float[Tensor, "N 3"]) -> Float[Tensor, "N 2"]:
        return self.slope * torch.stack([z[:, 0], z[:, 1] * (z[:, 0] > self.gate)], dim=1)

    def encode(
        self, x: Float[Tensor, "N 2"], auxiliary: object | None = None
    ) -> tuple[Float[Tensor, "N 3"], Float[Tensor, "N 3"]]:
        mean = self.precision * self.slope * self.narrow * x
        open_ = mean[:, 0] > self.gate
        zero = torch.zeros_like(mean[:, 0])
        narrow = torch.full_like(zero, self.narrow)
        means = torch.stack([mean[:, 0], torch.where(open_, mean[:, 1], zero), zero], dim=1)
        variances = torch.stack([narrow, torch.where(open_, narrow, zero + 1), zero + 1], dim=1)
        return means, variances

    def observe(self, samples: int, *, seed: int) -> Float[Tensor, "N 2"]:
        """Observations drawn from the model.

        Args:
            samples: number of samples.
            seed: of the draws.
        """
        generator = randomness.generator(seed, "gated")
        z = torch.randn(samples, 3, generator=generator, dtype=torch.float64)
        noise = torch.randn(samples, 2, generator=generator, dtype=torch.float64)
        return self.decode(z) + noise / self.precision**0.5
