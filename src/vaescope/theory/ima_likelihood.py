"""The IMA-regularised log-likelihood of an invertible decoder."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vaescope import validation
from vaescope.distributions import Normal, Prior
from vaescope.theory.derivatives import Decoder, jacobians
from vaescope.theory.ima import contrast_of_matrix
from vaescope.theory.marginal import inverse_latents
from vaescope.theory.problem import latent_dimension, prepare


def ima_likelihood(
    decoder: Decoder,
    x: Float[Tensor, "N ..."],
    *,
    strength: float = 1.0,
    prior: Prior | None = None,
    start: Float[Tensor, "N d"] | None = None,
    latent_dim: int | None = None,
) -> Float[Tensor, " N"]:
    r"""L_IMA(x) = log p(x) - λ c_IMA(g(x)), with log p by the change of variables.

    .. math:: L_\lambda = \log p_0(g(x)) - \sum_k \log \|J_k\| + (1 - \lambda)\, c_{IMA}(g(x))

    λ = 1 is the limit of ELBO* as γ → ∞ (Reizinger et al. 2022, Theorem 1), λ = 0 the log-likelihood. With n > d
    outputs it is a density on the decoder's image: the limit of ELBO*, or of log p, minus (n - d)/2 log(γ²/2π), the
    density of the noise across the image.

    Args:
        decoder: an injective map of latents (N, d) to outputs (N, ...).
        x: observations in the decoder's image.
        strength: λ >= 0.
        prior: N(0, I) by default.
        start: latents from which to search for g(x); not needed if the decoder has an inverse.
        latent_dim: the number of latents; needed only if the decoder takes codes of several sizes.

    >>> W = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    >>> x = torch.zeros(1, 2, dtype=torch.float64)
    >>> ima_likelihood(lambda z: z @ W.T, x, strength=0.0) - ima_likelihood(lambda z: z @ W.T, x)  # c_IMA
    tensor([0.3466], dtype=torch.float64)
    """
    strength = validation.number("strength", strength, minimum=0.0)
    prior = Normal() if prior is None else prior
    dim = latent_dimension(decoder, x, prior, start=start, latent_dim=latent_dim)
    problem, guess = prepare(decoder, x, 1.0, prior, start, dim)
    z = inverse_latents(problem, guess, "ima_likelihood")
    regularised = []
    for J in jacobians(decoder, z):
        penalty = 0.0 if strength == 1 else (1 - strength) * contrast_of_matrix(J)  # 0 times an infinite contrast
        regularised.append(penalty - J.norm(dim=1).log().sum(1))
    return prior.log_density(z).sum(1) + torch.cat(regularised)
