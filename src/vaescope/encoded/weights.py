"""How strongly the likelihood and the KL count: weights of outputs, and the declared β."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from vaescope.protocol import LatentModel

SMALLEST_VARIANCE = 1e-4  # of a Bernoulli output


def output_weights(likelihood: str | None, output: Float[Tensor, "P n"]) -> Float[Tensor, "P n 1"] | float:
    """Inverse standard deviations of the outputs under the likelihood, up to a common factor."""
    if likelihood != "bernoulli":
        return 1.0
    return (output * (1 - output)).clamp(min=SMALLEST_VARIANCE).rsqrt().unsqueeze(2)


def declared_beta(model: LatentModel) -> float:
    """The weight of the KL in training; 1 for a model that declares 0."""
    return model.beta or 1.0
