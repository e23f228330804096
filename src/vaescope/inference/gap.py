"""The gap between log p(x) and the ELBO, split into its parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.core import validation
from vaescope.core.errors import InputError
from vaescope.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian, Normal, Posterior, Prior
from vaescope.inference.derivatives import Decoder, jacobians
from vaescope.inference.geometry import contrast_of_matrix, ima_contrast
from vaescope.inference.joint import latent_dimension, prepare
from vaescope.inference.marginal import LARGEST_DIM, inverse_latents, log_marginal
from vaescope.inference.projection import Projection, elbo, project


@dataclass(frozen=True, eq=False)
class Gap:
    """log p(x) - ELBO = family + amortisation at each point, in nats.

    `family` is the gap of the best Gaussian of the family. As γ → ∞ that of diagonal Gaussians tends to `contrast`, the
    IMA contrast of the decoder at the mean of the best one; that of isotropic Gaussians to the conformal contrast, and
    that of full covariances to 0. `amortisation` is what the encoder loses beyond it. Both are non-negative up to
    numerical error.
    """

    log_marginal: Float[Tensor, " N"]
    stderr: Float[Tensor, " N"]
    elbo: Float[Tensor, " N"]
    contrast: Float[Tensor, " N"]
    projection: Projection
    pareto_k: Float[Tensor, " N"] | None

    @property
    def elbo_star(self) -> Float[Tensor, " N"]:
        return self.projection.elbo

    @property
    def converged(self) -> Bool[Tensor, " N"]:
        return self.projection.converged

    @property
    def family(self) -> Float[Tensor, " N"]:
        return self.log_marginal - self.elbo_star

    @property
    def amortisation(self) -> Float[Tensor, " N"]:
        return self.elbo_star - self.elbo

    @property
    def total(self) -> Float[Tensor, " N"]:
        return self.log_marginal - self.elbo


def gap(
    decoder: Decoder,
    x: Float[Tensor, "N ..."],
    posterior: Posterior,
    *,
    precision: float | Float[Tensor, " N"],
    prior: Prior | None = None,
    method: str | None = None,
) -> Gap:
    """Split the gap of an encoder.

    Args:
        decoder: maps latents (N, d) to outputs (N, ...).
        x: observations.
        posterior: the encoder's posteriors of x, in u, the unbounded coordinate. The best Gaussian is of its family.
        precision: γ² = 1 / decoder variance; one number, or one for each observation.
        prior: N(0, I) by default.
        method: how log p(x) is computed, see `log_marginal`; by default quadrature up to four latents, importance
            sampling above.

    >>> import torch
    >>> W = torch.tensor([[1.0, 0.5], [0.0, 1.0]], dtype=torch.float64)
    >>> q = DiagonalGaussian(torch.zeros(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64))
    >>> split = gap(lambda z: z @ W.T, torch.zeros(1, 2, dtype=torch.float64), q, precision=1e8)
    >>> torch.allclose(split.family, split.contrast)
    True
    """
    prior = Normal() if prior is None else prior
    start = prior.to_support(posterior.mean)
    best = project(decoder, x, precision=precision, prior=prior, start=start, family=_family_name(posterior))
    dim = posterior.mean.shape[1]
    method = method or ("quadrature" if dim <= min(4, LARGEST_DIM) else "importance")
    likelihood = log_marginal(decoder, x, precision=precision, prior=prior, method=method, start=best.mean)
    return Gap(
        log_marginal=likelihood.value,
        stderr=likelihood.stderr,
        elbo=elbo(decoder, x, posterior, precision=precision, prior=prior),
        contrast=ima_contrast(decoder, best.mean),
        projection=best,
        pareto_k=likelihood.pareto_k,
    )


def _family_name(posterior: Posterior) -> str:
    names = {DiagonalGaussian: "diagonal", IsotropicGaussian: "isotropic", FullGaussian: "full"}
    if type(posterior) not in names:
        raise InputError(f"posterior must be one of vaescope's Gaussians, got {type(posterior).__name__}.")
    return names[type(posterior)]


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
