"""What a rotation costs because the prior is not normal: rotated codes fill a box, say, less well."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vaescope.adapters.repaired import RepairedModel
from vaescope.distributions import Laplace, Normal, Prior, Uniform
from vaescope.encoded import EncodedSample

SCALES = torch.linspace(-1.0, 1.0, 201, dtype=torch.float64)  # log of the scales that are tried


def own_prior(sample: EncodedSample) -> Prior:
    """The prior of the model itself, if it was replaced by a normal one."""
    model = sample.model
    if isinstance(model, RepairedModel) and model.normal_prior is not None:
        return model.model.prior
    return sample.prior


def prior_costs(prior: Prior, codes: Float[Tensor, "N 2"], angles: Float[Tensor, " A"]) -> Float[Tensor, " A"]:
    r"""ELBO lost through the prior by rotating two latents, in nats per sample.

    The decoder can undo any rotation, shift and scale of the latents, so each rotated latent is shifted and scaled to
    suit the prior best: h(θ) = Σ_k min_D -E[log p₀(D y_k) + log D]. A normal prior is invariant to rotations.

    Args:
        prior: of every latent.
        codes: posterior means of the two latents.
        angles: in radians.

    >>> corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> prior_costs(Uniform(0.0, 1.0), corners, torch.tensor([0.0, torch.pi / 4])).exp().round(decimals=3)
    tensor([1., 2.], dtype=torch.float64)
    """
    if isinstance(prior, Normal):
        return torch.zeros(len(angles), dtype=torch.float64)
    cos, sin = angles.double().cos()[:, None], angles.double().sin()[:, None]
    first, second = codes.double().cpu().unbind(1)
    misfit = _misfit(prior, cos * first + sin * second) + _misfit(prior, cos * second - sin * first)
    return misfit - _misfit(prior, first[None]) - _misfit(prior, second[None])


def _misfit(prior: Prior, y: Float[Tensor, "A N"]) -> Float[Tensor, " A"]:
    """min over shifts and scales of -E[log p₀ + log scale], up to a constant."""
    if isinstance(prior, Uniform):
        return (y.amax(1) - y.amin(1)).log()
    if isinstance(prior, Laplace):
        return (y - y.median(1, keepdim=True).values).abs().mean(1).log()
    mean, variance = (float(np.mean(np.asarray(value))) for value in prior.mean_and_variance())
    deviation = y.std(1, correction=0, keepdim=True)
    unit = (y - y.mean(1, keepdim=True)) / deviation
    fits = [prior.log_density(mean + variance**0.5 * scale.exp() * unit).mean(1) + scale for scale in SCALES]
    best: Tensor = torch.stack(fits).max(0).values
    return torch.where(best.isfinite(), deviation.squeeze(1).log() - best, torch.full_like(best, 1e3))
