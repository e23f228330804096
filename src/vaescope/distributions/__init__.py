"""Priors, posteriors and likelihoods, and exact KL divergences between them."""

from vaescope.distributions.base import Prior
from vaescope.distributions.bounded import Beta as Beta
from vaescope.distributions.bounded import Uniform as Uniform
from vaescope.distributions.posteriors import DiagonalGaussian, FullGaussian, IsotropicGaussian, kl
from vaescope.distributions.posteriors import Posterior as Posterior
from vaescope.distributions.posteriors import kl_per_latent as kl_per_latent
from vaescope.distributions.priors import prior_from, prior_to_text
from vaescope.distributions.unbounded import Laplace as Laplace
from vaescope.distributions.unbounded import Normal as Normal

__all__ = ["DiagonalGaussian", "FullGaussian", "IsotropicGaussian", "Prior", "kl", "prior_from", "prior_to_text"]
