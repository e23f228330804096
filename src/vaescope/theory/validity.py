"""When the near-deterministic picture holds: how far the gap of a decoder is from its IMA contrast, in nats."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope import validation
from vaescope.distributions import Normal, Prior
from vaescope.theory.derivatives import Decoder
from vaescope.theory.expansion import Expansion, curvature_coefficient, expansion
from vaescope.theory.ima import ima_contrast

TOLERANCE = 0.1  # nats


@dataclass(frozen=True, eq=False)
class Validity:
    """The gap log p - ELBO* of a decoder beside its limit c_IMA, at each point, in nats."""

    contrast: Float[Tensor, " N"]
    """c_IMA, the gap for γ → ∞."""
    expansion: Expansion
    required_precision: Float[Tensor, " N"]
    """A γ² from which the gap is within the tolerance of c_IMA, by the limit of the 1/γ² law; whatever γ² is now.

    It adds the sizes of both parts. Where they have opposite signs, a lower γ² suffices."""
    tolerance: float

    @property
    def prior_part(self) -> Float[Tensor, " N"]:
        """What noise and prior change: the gap of the linearised decoder minus c_IMA. -c_IMA for unused latents."""
        return self.expansion.linear_gap - self.contrast

    @property
    def curvature_part(self) -> Float[Tensor, " N"]:
        """What the decoder's curvature within the posterior adds to the gap."""
        return self.expansion.curvature

    @property
    def nats(self) -> Float[Tensor, " N"]:
        """|gap - c_IMA|: how wrong "the ELBO is the likelihood minus c_IMA" is. Infinite if it has no meaning."""
        distance = (self.expansion.gap - self.contrast).abs()
        return torch.where(distance.isfinite(), distance, torch.inf)

    @property
    def resolved(self) -> Bool[Tensor, " N"]:
        """Whether derivatives describe the decoder across the posterior; False at kinks and for wide posteriors."""
        return self.expansion.remainder.abs() <= self.tolerance

    @property
    def valid(self) -> Bool[Tensor, " N"]:
        """Whether the gap is within the tolerance of c_IMA, and the expansion that says so is resolved."""
        return (self.nats <= self.tolerance) & self.resolved

    def to_data(self) -> dict[str, object]:
        """Medians over points, as JSON data."""
        return {
            "nats": float(self.nats.median()),
            "valid_share": float(self.valid.double().mean()),
            "resolved_share": float(self.resolved.double().mean()),
            "required_precision": float(self.required_precision.median()),
            "tolerance": self.tolerance,
            "sentence": self.sentence(),
        }

    def sentence(self) -> str:
        """The verdict over all points in a sentence."""
        share = float(self.valid.double().mean())
        needed = float(self.required_precision.median())
        return (
            f"The gap is within {self.tolerance:g} nats of c_IMA at {share:.0%} of the points (median distance "
            f"{float(self.nats.median()):.2g} nats, of which {float(self.prior_part.median()):+.2g} from noise and "
            f"prior and {float(self.curvature_part.median()):+.2g} from curvature); at half of the points a precision "
            f"of {needed:.2g} suffices."
        )


def validity(
    decoder: Decoder,
    z: Float[Tensor, "N d"],
    *,
    precision: float,
    prior: Prior | None = None,
    tolerance: float = TOLERANCE,
) -> Validity:
    """How far the gap of this decoder is from c_IMA at this precision, in nats, and why.

    Reizinger et al. 2022, Theorem 1, says that log p - ELBO* = c_IMA + O(1/γ²); here is the coefficient (`expansion`).

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        z: latents, such as encoded means; the observations are f(z).
        precision: γ² = 1 / decoder variance.
        prior: N(0, I) by default.
        tolerance: largest distance in nats at which the picture counts as valid.

    >>> bend = lambda z: z + 0.1 * z**2
    >>> found = validity(bend, torch.full((1, 1), 0.5, dtype=torch.float64), precision=100.0)
    >>> round(float(found.nats), 5), found.valid.tolist()
    (0.0002, [True])
    """
    gamma2 = validation.precision(precision)
    tolerance = validation.number("tolerance", tolerance, above=0.0)
    prior = Normal() if prior is None else prior
    found = expansion(decoder, z, precision=gamma2, prior=prior)
    contrast = ima_contrast(decoder, z)
    bent = curvature_coefficient(decoder, z, prior=prior)
    needed = (found.prior_coefficient.abs() + bent.abs()) / tolerance
    needed = torch.where(needed.isfinite() & contrast.isfinite(), needed, torch.inf)
    return Validity(contrast, found, needed, tolerance)
