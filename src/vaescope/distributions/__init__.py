"""Priors, posteriors and likelihoods, and exact KL divergences between them."""

from vaescope.distributions.base import Prior
from vaescope.distributions.posteriors import DiagonalGaussian, FullGaussian, IsotropicGaussian, kl
from vaescope.distributions.posteriors import Posterior as Posterior
from vaescope.distributions.posteriors import kl_per_latent as kl_per_latent
from vaescope.distributions.priors import Beta as Beta
from vaescope.distributions.priors import Laplace as Laplace
from vaescope.distributions.priors import Normal as Normal
from vaescope.distributions.priors import Uniform as Uniform
from vaescope.distributions.priors import prior_from as prior_from
from vaescope.distributions.priors import prior_to_text as prior_to_text

__all__ = ["DiagonalGaussian", "FullGaussian", "IsotropicGaussian", "Prior", "kl"]
