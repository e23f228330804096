"""Priors, posteriors and likelihoods, and exact KL divergences between them."""

from vaescope.distributions.base import Prior
from vaescope.distributions.bounded import Beta, Uniform
from vaescope.distributions.posteriors import (
    DiagonalGaussian,
    FullGaussian,
    IsotropicGaussian,
    Posterior,
    kl,
    kl_per_latent,
)
from vaescope.distributions.priors import prior_from, prior_to_text
from vaescope.distributions.unbounded import Laplace, Normal

__all__ = [
    "Beta",
    "DiagonalGaussian",
    "FullGaussian",
    "IsotropicGaussian",
    "Laplace",
    "Normal",
    "Posterior",
    "Prior",
    "Uniform",
    "kl",
    "kl_per_latent",
    "prior_from",
    "prior_to_text",
]
