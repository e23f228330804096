"""Priors, posteriors and likelihoods, and the exact divergences between them."""

from vaescope.distributions.likelihoods import bernoulli, check_precision, gaussian, optimal_precision
from vaescope.distributions.posteriors import (
    DiagonalGaussian,
    FullGaussian,
    IsotropicGaussian,
    Posterior,
    family,
    kl,
    kl_per_latent,
)
from vaescope.distributions.priors import PRIORS, Beta, Laplace, Normal, Prior, Uniform

__all__ = [
    "PRIORS",
    "Beta",
    "DiagonalGaussian",
    "FullGaussian",
    "IsotropicGaussian",
    "Laplace",
    "Normal",
    "Posterior",
    "Prior",
    "Uniform",
    "bernoulli",
    "check_precision",
    "family",
    "gaussian",
    "kl",
    "kl_per_latent",
    "optimal_precision",
]
