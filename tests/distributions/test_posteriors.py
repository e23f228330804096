"""The KL of every posterior family against torch.distributions and against sampling."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import distributions as td

import vaescope as vs
from vaescope.distributions import DiagonalGaussian, FullGaussian, IsotropicGaussian, family, kl, kl_per_latent
from vaescope.distributions.posteriors import FAMILIES


def random_posterior(name: str, d: int = 3, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    cls = family(name)
    return cls.from_outputs(torch.randn(5, cls.outputs(d), dtype=torch.float64, generator=generator), d)


def as_torch(posterior):
    if isinstance(posterior, FullGaussian):
        return td.MultivariateNormal(posterior.mean, scale_tril=posterior.scale)
    sd = posterior.marginal_variance.sqrt()
    return td.MultivariateNormal(posterior.mean, scale_tril=torch.diag_embed(sd))


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(sorted(FAMILIES)), d=st.integers(1, 6), seed=st.integers(0, 1000))
def test_kl_to_a_normal_prior_is_torchs(name, d, seed):
    posterior = random_posterior(name, d, seed)
    prior = vs.Normal(0.3, 2.0)
    target = td.MultivariateNormal(torch.full((d,), 0.3, dtype=torch.float64), 2.0 * torch.eye(d, dtype=torch.float64))
    torch.testing.assert_close(kl(posterior, prior), td.kl_divergence(as_torch(posterior), target))


@pytest.mark.parametrize("name", FAMILIES)
def test_entropy_is_torchs(name):
    posterior = random_posterior(name)
    torch.testing.assert_close(posterior.entropy(), as_torch(posterior).entropy())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    "prior", [vs.Uniform(-0.5, 0.5), vs.Beta(2.0, 5.0), vs.Laplace()], ids=lambda p: type(p).__name__
)
def test_kl_to_other_priors_by_sampling(name, prior):
    posterior = random_posterior(name, seed=3)
    q = as_torch(posterior)
    noise = torch.randn(200_000, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    u = posterior.sample(noise)
    log_ratio = q.log_prob(u) - (prior.log_density(prior.to_support(u)) + prior.log_slope(u)).sum(-1)
    error = log_ratio.std(0) / 200_000**0.5
    assert ((log_ratio.mean(0) - kl(posterior, prior)).abs() < 4.5 * error + 1e-5).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_samples_have_the_stated_covariance(name):
    posterior = random_posterior(name, seed=2)
    noise = torch.randn(100_000, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    draws = posterior.sample(noise)
    torch.testing.assert_close(draws.var(0), posterior.marginal_variance, rtol=0.03, atol=0)
    covariance = torch.cov(draws[:, 0].T)
    torch.testing.assert_close(covariance, as_torch(posterior).covariance_matrix[0], rtol=0.05, atol=0.03)


def test_the_families_meet_where_they_should():
    mean, variance = torch.randn(4, 2), torch.full((4, 1), 0.3)
    isotropic = IsotropicGaussian(mean, variance)
    diagonal = DiagonalGaussian(mean, variance.expand(4, 2))
    full = FullGaussian(mean, torch.diag_embed(variance.sqrt().expand(4, 2)))
    for other in (diagonal, full):
        torch.testing.assert_close(kl(isotropic, vs.Normal()), kl(other, vs.Normal()))


def test_per_latent_kl_sums_to_the_kl():
    posterior = random_posterior("diagonal")
    for prior in (vs.Normal(), vs.Uniform(), vs.Laplace()):
        per_latent = kl_per_latent(posterior.mean, posterior.variance, prior)
        torch.testing.assert_close(per_latent.sum(-1), kl(posterior, prior))


def test_an_unknown_family_is_named():
    with pytest.raises(vs.InputError, match="one of diagonal, isotropic, full, got 'banana'"):
        family("banana")
