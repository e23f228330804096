"""Posteriors and priors that users give as functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vaescope import randomness
from vaescope.adapters.networks import call_user_function
from vaescope.distributions import Normal
from vaescope.distributions.densities import PosteriorDensity, PriorDensity
from vaescope.errors import InputError

MOMENT_DRAWS = 64  # per sample, for means and variances of a posterior
PRIOR_DRAWS = 4096  # for the mean and variance of a prior


def posterior_from(
    sample: Callable[[Tensor], Tensor] | None, log_q: Callable[[Tensor, Tensor], Tensor] | None
) -> PosteriorDensity | None:
    """A posterior from both of its functions; None without either."""
    if sample is None and log_q is None:
        return None
    if sample is None or log_q is None:
        raise InputError("a posterior needs both: sample=lambda x: z and log_q=lambda z, x: log q(z|x).")
    return PosteriorDensity(
        lambda x: _rows(call_user_function("sample", sample, x), len(x), "sample"),
        lambda z, x: _numbers(call_user_function("log_q", log_q, z, x), len(z), "log_q"),
    )


def prior_from(
    sample_prior: Callable[[int], Tensor] | None, log_prior: Callable[[Tensor], Tensor] | None
) -> PriorDensity | None:
    """A prior from both of its functions; None without either."""
    if sample_prior is None and log_prior is None:
        return None
    if sample_prior is None or log_prior is None:
        raise InputError("a prior needs both: sample_prior=lambda count: z and log_prior=lambda z: log p(z).")
    return PriorDensity(
        lambda count: _rows(sample_prior(count), count, "sample_prior"),
        lambda z: _numbers(call_user_function("log_prior", log_prior, z), len(z), "log_prior"),
    )


def _rows(found: object, count: int, name: str) -> Tensor:
    if not isinstance(found, Tensor) or found.ndim < 2 or len(found) != count:
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"{name} must return one draw of z per row, ({count}, d), got {shape}.")
    return found.detach().flatten(1).cpu()


def _numbers(found: object, count: int, name: str) -> Tensor:
    if not isinstance(found, Tensor) or found.shape != (count,):
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"{name} must return a number per row, ({count},), got {shape}; sum over latents.")
    return found.detach().cpu()


def moments_of(posterior: PosteriorDensity | None) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Means and variances of a posterior, from draws."""
    assert posterior is not None

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad(), randomness.seeded("moments"):
            draws = torch.stack([posterior.sample(x) for _ in range(MOMENT_DRAWS)])
        return draws.mean(0), draws.var(0)

    return encode


def normal_like(density: PriorDensity, latents: int) -> Normal:
    """The normal prior with the mean and variance of each latent."""
    with torch.no_grad(), randomness.seeded("prior moments"):
        draws = density.sample(PRIOR_DRAWS).double()
    if draws.shape[1] != latents:
        raise InputError(f"sample_prior must return draws of {latents} latents, got {draws.shape[1]}.")
    return Normal(draws.mean(0), draws.var(0))
