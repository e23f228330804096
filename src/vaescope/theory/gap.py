"""The gap between log p(x) and the ELBO, split into its parts."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from vaescope.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian, Normal, Posterior, Prior
from vaescope.errors import InputError
from vaescope.theory.derivatives import Decoder
from vaescope.theory.ima import ima_contrast
from vaescope.theory.marginal import LARGEST_DIM, log_marginal
from vaescope.theory.projection import Projection, elbo, project


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
