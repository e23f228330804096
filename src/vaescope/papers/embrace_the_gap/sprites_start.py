"""Weights that encode and decode the true factors: a control that separates the objective from its optimisation.

If a model that starts there stays there and has a higher ELBO than models from random weights, the ELBO prefers the
factors, and what the others lack is training.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import beta, rankdata
from torch import Tensor

from vaescope import randomness
from vaescope.distributions import Beta
from vaescope.models import VAE
from vaescope.models.networks import Params

STEPS = 1000
BATCH = 64
LEARNING_RATE = 1e-3
PRECISION = 8.0  # of the decoder's fit
WIDTH = 0.05  # initial variance of the posteriors, in the unbounded coordinate


def latents_of(factors: Float[Tensor, "N k"], prior: Beta) -> Float[Tensor, "N k"]:
    """The factors as latents that follow the prior exactly: each is mapped through its ranks.

    >>> z = latents_of(torch.tensor([[0.2], [0.9], [0.4]]), Beta(2.0, 2.0))
    >>> z.flatten().argsort().tolist(), bool((z[2] - 0.5).abs() < 1e-6)
    ([0, 2, 1], True)
    """
    ranks = (rankdata(factors.numpy(), axis=0) - 0.5) / len(factors)
    return torch.from_numpy(beta.ppf(ranks, *prior.shape).astype(np.float32))


def weights_at_factors(
    model: VAE, x: Float[Tensor, "N n"], factors: Float[Tensor, "N k"], prior: Beta, seed: int, *, steps: int = STEPS
) -> Params:
    """Weights of one member whose latents are the factors, by regression on both sides.

    Args:
        model: a VAE with as many latents as factors.
        x: images.
        factors: of the same images.
        prior: of the latents.
        seed: of initial weights and batches.
        steps: of the regression.
    """
    params = {name: value.requires_grad_() for name, value in model.init([seed]).items()}
    optimiser = torch.optim.Adam(params.values(), lr=LEARNING_RATE)
    generator = randomness.generator(seed, "factors")
    z = latents_of(factors, prior)
    for _ in range(steps):
        rows = torch.randint(len(x), (BATCH,), generator=generator)
        loss = _loss(model, params, x[None, rows], z[None, rows], prior)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return {name: value.detach() for name, value in params.items()}


def _loss(model: VAE, params: Params, x: Tensor, z: Tensor, prior: Beta) -> Tensor:
    """Errors of decoded images and of posterior means and variances, in nats."""
    posterior = model.encode(params, x)
    decoded = PRECISION / 2 * (model.decoder_output(params, z) - x).square().sum(-1)
    encoded = (posterior.mean - prior.from_support(z)).square().sum(-1) / (2 * WIDTH)
    width = (posterior.marginal_variance.log() - np.log(WIDTH)).square().sum(-1)
    return (decoded + encoded + width).mean()
